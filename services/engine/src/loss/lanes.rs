//! Elementary functions on 16 numbers at a time, written without branches so that the compiler vectorises them.
//!
//! They use plain multiplications and additions in a fixed order: every machine computes the same bits. They are
//! inlined by force, so that inside a kernel they are compiled for its instruction set.

/// How many numbers are worked on at once.
pub(super) const LANES: usize = 16;

/// 16 numbers.
pub(super) type Lanes = [f32; LANES];

/// `1.5 · 2²³`: adding it rounds a small float to the nearest integer, kept in the low mantissa bits.
const ROUND: f32 = 12_582_912.0;
/// The natural logarithm of 2 in two parts; the first has few enough bits that multiplying by an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// Below it `exp` is no longer a normal number.
const EXP_MINIMUM: f32 = -87.0;

/// Returns `exp(x)` for `x ≤ 0`, to about one unit in the last place; below -87 it stays at `exp(-87)`, which is
/// zero for every use here. A NaN stays one.
#[inline(always)]
pub(super) fn exp_of_nonpositive(x: Lanes) -> Lanes {
    x.map(|x| {
        let x = if x < EXP_MINIMUM { EXP_MINIMUM } else { x };
        let rounded = x * std::f32::consts::LOG2_E + ROUND;
        let exponent = rounded - ROUND;
        let r = x - exponent * LN_2_HIGH - exponent * LN_2_LOW;
        // |r| ≤ ln 2 / 2, where the first term left out, r⁸/8!, is below 6e-9.
        let mut sum = 1.0 / 5040.0;
        for coefficient in [
            1.0 / 720.0,
            1.0 / 120.0,
            1.0 / 24.0,
            1.0 / 6.0,
            0.5,
            1.0,
            1.0,
        ] {
            sum = sum * r + coefficient;
        }
        let power = rounded
            .to_bits()
            .wrapping_sub(ROUND.to_bits())
            .wrapping_add(127)
            << 23;
        sum * f32::from_bits(power)
    })
}

/// Returns `ln(1 + x)` for `0 ≤ x ≤ 1` with a small *relative* error, also for tiny `x`.
#[inline(always)]
pub(super) fn ln_one_plus(x: Lanes) -> Lanes {
    x.map(|x| {
        // ln(1+x) = 2·artanh(x / (2+x)), and the argument is at most 1/3.
        let s = x / (2.0 + x);
        let square = s * s;
        let mut sum = 1.0 / 15.0;
        for coefficient in [
            1.0 / 13.0,
            1.0 / 11.0,
            1.0 / 9.0,
            1.0 / 7.0,
            1.0 / 5.0,
            1.0 / 3.0,
            1.0,
        ] {
            sum = sum * square + coefficient;
        }
        2.0 * s * sum
    })
}

/// Returns up to 16 numbers, zeros after the last.
#[inline(always)]
pub(super) fn load(block: &[f32]) -> Lanes {
    match block.try_into() {
        Ok(full) => full,
        Err(_) => {
            let mut lanes = [0.0; LANES];
            lanes[..block.len()].copy_from_slice(block);
            lanes
        }
    }
}

/// Returns `exp(-|x|)`, which softplus and sigmoid are made of.
#[inline(always)]
pub(super) fn decay(x: &Lanes) -> Lanes {
    exp_of_nonpositive(x.map(|x| -x.abs()))
}

/// Returns `σ(x)`.
#[inline(always)]
pub(super) fn sigmoid(x: &Lanes) -> Lanes {
    sigmoid_of_decay(x, &decay(x))
}

/// Returns `σ(x)` from `x` and [`decay`] of it.
#[inline(always)]
pub(super) fn sigmoid_of_decay(x: &Lanes, decay: &Lanes) -> Lanes {
    std::array::from_fn(|i| {
        let numerator = if x[i] >= 0.0 { 1.0 } else { decay[i] };
        numerator / (1.0 + decay[i])
    })
}

/// Returns `ln(1 + exp(x))` from `x` and [`decay`] of it.
#[inline(always)]
pub(super) fn softplus_of_decay(x: &Lanes, decay: &Lanes) -> Lanes {
    let tail = ln_one_plus(*decay);
    std::array::from_fn(|i| positive_part(x[i]) + tail[i])
}

/// Returns the sum of the first `count` numbers. Halving keeps the order one that a vector unit likes.
#[inline(always)]
pub(super) fn sum_of_first(mut terms: Lanes, count: usize) -> f32 {
    for (i, term) in terms.iter_mut().enumerate() {
        *term = if i < count { *term } else { 0.0 };
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            terms[i] += terms[i + width];
        }
        width /= 2;
    }
    terms[0]
}

/// Returns the binary cross-entropy of the first `count` logits with their targets, summed, and the slope of each.
#[inline(always)]
pub(super) fn cross_entropy_with_slope(x: &Lanes, targets: &Lanes, count: usize) -> (f32, Lanes) {
    let decay = decay(x);
    let softplus = softplus_of_decay(x, &decay);
    let sigmoid = sigmoid_of_decay(x, &decay);
    let terms = std::array::from_fn(|i| softplus[i] - x[i] * targets[i]);
    let slopes = std::array::from_fn(|i| sigmoid[i] - targets[i]);
    (sum_of_first(terms, count), slopes)
}

/// Returns `max(x, 0)`; a NaN stays one.
#[inline(always)]
fn positive_part(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns numbers in [-1, 1) that depend on the seed and the place only.
    pub fn noise(seed: u64, index: usize) -> f32 {
        let mut z = seed
            .wrapping_mul(0x2545_f491_4f6c_dd1d)
            .wrapping_add((index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / 8_388_608.0 - 1.0
    }

    #[test]
    fn exp_and_ln_one_plus_are_right_to_a_few_units_in_the_last_place() {
        let mut worst = [0.0f64; 2];
        for i in 0..130_000 {
            let x = -(i as f32) * 6e-4;
            let exp = f64::from(exp_of_nonpositive([x; LANES])[3]);
            worst[0] = worst[0].max((exp / f64::from(x).exp() - 1.0).abs());
            let small = f64::from(exp as f32);
            let ln = f64::from(ln_one_plus([exp as f32; LANES])[7]);
            worst[1] = worst[1].max((ln / small.ln_1p() - 1.0).abs());
        }
        assert!(worst[0] < 3e-7 && worst[1] < 3e-7, "{worst:?}");
    }

    #[test]
    fn exp_takes_extreme_values() {
        let mut x = [0.0; LANES];
        x[1] = f32::NEG_INFINITY;
        x[2] = f32::NAN;
        let y = exp_of_nonpositive(x);
        assert_eq!(y[0], 1.0);
        assert!(y[1] >= 0.0 && y[1] < 1e-37);
        assert!(y[2].is_nan());
    }
}

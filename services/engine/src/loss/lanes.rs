//! Elementary functions on 16 numbers at a time, written without branches so that the compiler vectorises them.
//!
//! They use plain multiplications and additions in a fixed order: every machine computes the same bits.

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

#[cfg(test)]
mod tests {
    use super::*;

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

//! Binary cross-entropy of the class logits of one anchor.
//!
//! With target `t` it is `softplus(x) - x·t` and its slope `σ(x) - t`. All but a few targets are zero, so the
//! terms without `t` are computed for whole rows and the assigned anchors are corrected afterwards.

use super::lanes::{LANES, Lanes, exp_of_nonpositive, ln_one_plus};

/// Returns `Σ softplus(x)` over the first `class_count` logits of a row.
pub(super) fn background_loss(row: &[f32], class_count: usize) -> f64 {
    let mut sum = 0.0;
    for block in row[..class_count].chunks(LANES) {
        let x = load(block);
        sum += softplus_sum(&x, &decay(&x), block.len());
    }
    sum
}

/// Returns [`background_loss`] and writes `scale · σ(x)` to `gradient`, zero in the padding.
pub(super) fn background_loss_with_gradient(
    row: &[f32],
    gradient: &mut [f32],
    class_count: usize,
    scale: f32,
) -> f64 {
    let (gradient, padding) = gradient.split_at_mut(class_count);
    padding.fill(0.0);
    let mut sum = 0.0;
    for (block, gradient) in row[..class_count]
        .chunks(LANES)
        .zip(gradient.chunks_mut(LANES))
    {
        let x = load(block);
        let decay = decay(&x);
        sum += softplus_sum(&x, &decay, block.len());
        let slope = sigmoid(&x, &decay).map(|s| s * scale);
        gradient.copy_from_slice(&slope[..block.len()]);
    }
    sum
}

/// Returns `σ(x)`.
pub(super) fn sigmoid_of(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

fn load(block: &[f32]) -> Lanes {
    match block.try_into() {
        Ok(full) => full,
        Err(_) => {
            let mut lanes = [0.0; LANES];
            lanes[..block.len()].copy_from_slice(block);
            lanes
        }
    }
}

/// Returns `exp(-|x|)`, which both terms are made of.
fn decay(x: &Lanes) -> Lanes {
    exp_of_nonpositive(x.map(|x| -x.abs()))
}

fn softplus_sum(x: &Lanes, decay: &Lanes, count: usize) -> f64 {
    let tail = ln_one_plus(*decay);
    let mut terms: Lanes = std::array::from_fn(|i| positive_part(x[i]) + tail[i]);
    terms[count..].fill(0.0);
    // Halving keeps the order of the additions the one a vector unit likes.
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            terms[i] += terms[i + width];
        }
        width /= 2;
    }
    f64::from(terms[0])
}

fn sigmoid(x: &Lanes, decay: &Lanes) -> Lanes {
    std::array::from_fn(|i| {
        let numerator = if x[i] >= 0.0 { 1.0 } else { decay[i] };
        numerator / (1.0 + decay[i])
    })
}

/// Returns `max(x, 0)`; a NaN stays one.
fn positive_part(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 37) % 101) as f32 * 0.4 - 25.0)
            .collect()
    }

    #[test]
    fn values_and_slopes_are_right_for_any_class_count_and_padding_is_zero() {
        for class_count in [1usize, 3, 16, 17, 80] {
            let stride = class_count.div_ceil(16) * 16;
            let row = logits(stride);
            let mut gradient = vec![9.0; stride];
            let sum = background_loss_with_gradient(&row, &mut gradient, class_count, 0.5);
            let expected: f64 = row[..class_count]
                .iter()
                .map(|&x| f64::from(x).exp().ln_1p())
                .sum();
            assert!((sum - expected).abs() < 1e-6 * expected, "{class_count}");
            assert_eq!(sum, background_loss(&row, class_count));
            for (i, &slope) in gradient.iter().enumerate() {
                let expected = if i < class_count {
                    0.5 * sigmoid_of(row[i])
                } else {
                    0.0
                };
                assert!((f64::from(slope) - expected).abs() <= 3e-7 * expected);
            }
        }
    }

    #[test]
    fn a_logit_that_is_no_number_makes_the_loss_no_number() {
        let mut row = logits(16);
        row[3] = f32::NAN;
        assert!(background_loss(&row, 16).is_nan());
    }
}

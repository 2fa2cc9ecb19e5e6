//! Binary cross-entropy of the class logits of one anchor.
//!
//! With target `t` it is `softplus(x) - x·t` and its slope `σ(x) - t`. All but a few targets are zero, so the
//! terms without `t` are computed for whole rows and the assigned anchors are corrected afterwards.

use crate::ops::simd::{Kernel, Level, Simd};

use super::lanes::{LANES, decay, load, sigmoid_of_decay, softplus_of_decay, sum_of_first};

/// Rows of class logits whose targets are all zero.
pub(super) struct Background<'a> {
    pub rows: &'a [f32],
    pub row_stride: usize,
    pub class_count: usize,
    /// What each class counts, padded to whole lanes; empty when all count the same.
    pub weights: &'a [f32],
    /// Where the gradient of `scale` times the loss is written, zero in the padding; empty when none is wanted.
    pub gradient: &'a mut [f32],
    pub scale: f32,
}

impl Background<'_> {
    /// Returns `Σ weight · softplus(x)` over all rows and classes.
    pub fn loss(self) -> f64 {
        Level::best().dispatch(self)
    }
}

impl Kernel for Background<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) -> f64 {
        let mut sum = 0.0;
        let mut gradients = self.gradient.chunks_exact_mut(self.row_stride);
        for row in self.rows.chunks_exact(self.row_stride) {
            let mut gradient = gradients.next();
            if let Some(gradient) = &mut gradient {
                gradient[self.class_count..].fill(0.0);
            }
            for (block, logits) in row[..self.class_count].chunks(LANES).enumerate() {
                let first = block * LANES;
                let x = load(logits);
                let decay = decay(&x);
                let mut terms = softplus_of_decay(&x, &decay);
                let weights = self.weights.get(first..first + LANES);
                if let Some(weights) = weights {
                    terms = std::array::from_fn(|i| terms[i] * weights[i]);
                }
                sum += f64::from(sum_of_first(terms, logits.len()));
                if let Some(gradient) = &mut gradient {
                    let mut slopes = sigmoid_of_decay(&x, &decay).map(|s| s * self.scale);
                    if let Some(weights) = weights {
                        slopes = std::array::from_fn(|i| slopes[i] * weights[i]);
                    }
                    gradient[first..first + logits.len()].copy_from_slice(&slopes[..logits.len()]);
                }
            }
        }
        sum
    }
}

/// Returns `σ(x)`.
pub(super) fn sigmoid_of(x: f32) -> f64 {
    1.0 / (1.0 + (-f64::from(x)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 3;

    fn logits(count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| ((i * 37) % 101) as f32 * 0.4 - 25.0)
            .collect()
    }

    #[test]
    fn values_and_slopes_are_right_for_any_class_count_and_padding_is_zero() {
        for class_count in [1usize, 3, 16, 17, 80] {
            let row_stride = class_count.next_multiple_of(LANES);
            let rows = logits(ROWS * row_stride);
            let weights: Vec<f32> = (0..row_stride).map(|i| 0.5 + i as f32 / 8.0).collect();
            for weights in [&[][..], &weights] {
                let weight = |class: usize| weights.get(class).map_or(1.0, |&w| f64::from(w));
                let mut gradient = vec![9.0; rows.len()];
                let loss = |gradient: &mut [f32]| {
                    let background = Background {
                        rows: &rows,
                        row_stride,
                        class_count,
                        weights,
                        gradient,
                        scale: 0.5,
                    };
                    background.loss()
                };
                let sum = loss(&mut gradient);
                let mut expected = 0.0;
                for (i, &slope) in gradient.iter().enumerate() {
                    let (x, class) = (f64::from(rows[i]), i % row_stride);
                    let mut expected_slope = 0.0;
                    if class < class_count {
                        expected += weight(class) * x.exp().ln_1p();
                        expected_slope = 0.5 * weight(class) * sigmoid_of(rows[i]);
                    }
                    let error = (f64::from(slope) - expected_slope).abs();
                    assert!(error <= 4e-7 * expected_slope);
                }
                assert!((sum - expected).abs() < 1e-6 * expected, "{class_count}");
                assert_eq!(sum, loss(&mut []));
            }
        }
    }

    #[test]
    fn a_logit_that_is_no_number_makes_the_loss_no_number() {
        let mut rows = logits(16);
        rows[3] = f32::NAN;
        let background = Background {
            rows: &rows,
            row_stride: 16,
            class_count: 16,
            weights: &[],
            gradient: &mut [],
            scale: 1.0,
        };
        assert!(background.loss().is_nan());
    }
}

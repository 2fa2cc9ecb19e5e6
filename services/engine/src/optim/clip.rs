//! The limit on the length of the whole gradient.

use crate::parallel::Threads;

/// The longest gradient a step may use.
pub const GRADIENT_NORM_MAX: f64 = 10.0;

/// Elements added up by one task. Part of the result's bits: do not tune.
const CHUNK_ELEMENTS: usize = 1 << 15;

/// What clipping found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clip {
    /// The gradient's length before clipping. Not finite when an element is not.
    pub norm: f64,
    /// What the gradient is to be multiplied by: 1 when it is short enough.
    pub factor: f32,
}

/// Measures a gradient and says by which factor a step must shorten it to at most `limit`.
///
/// The gradient stays as it is: [`super::Optimizer::step`] applies the factor while it reads it anyway.
pub fn clip_gradient_norm(gradient: &[f32], limit: f64, threads: &Threads) -> Clip {
    let mut sums = vec![0.0f64; gradient.len().div_ceil(CHUNK_ELEMENTS)];
    let chunks = gradient.chunks(CHUNK_ELEMENTS).zip(&mut sums);
    threads.run_each(chunks, |_, (chunk, sum)| *sum = sum_of_squares(chunk));
    let norm = sums.iter().sum::<f64>().sqrt();
    Clip {
        norm,
        factor: (limit / (norm + 1e-6)).min(1.0) as f32,
    }
}

fn sum_of_squares(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    let (blocks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0f64; LANES];
    for block in blocks {
        for (sum, &value) in sums.iter_mut().zip(block) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    let rest = rest
        .iter()
        .map(|&value| f64::from(value) * f64::from(value));
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_gradient_is_cut_to_the_limit_and_a_short_one_left_alone() {
        let threads = Threads::new(2).unwrap();
        let long = clip_gradient_norm(&[3.0, 4.0, 12.0, 0.0], 1.3, &threads);
        assert_eq!(long.norm, 13.0);
        assert!((long.factor - 0.1).abs() < 1e-7);
        assert_eq!(clip_gradient_norm(&[3.0, 4.0], 10.0, &threads).factor, 1.0);
        assert_eq!(clip_gradient_norm(&[], 10.0, &threads).norm, 0.0);
    }

    #[test]
    fn the_norm_is_the_same_bits_for_any_number_of_threads() {
        let gradient: Vec<f32> = (0..200_001).map(|i| (i as f32 * 0.37).sin()).collect();
        let norm = |count| {
            let threads = Threads::new(count).unwrap();
            clip_gradient_norm(&gradient, 10.0, &threads).norm
        };
        assert!((1..6).all(|count| norm(count).to_bits() == norm(1).to_bits()));
    }

    #[test]
    fn a_gradient_with_a_hole_shows_in_the_norm() {
        let threads = Threads::new(1).unwrap();
        assert!(
            clip_gradient_norm(&[1.0, f32::NAN], 10.0, &threads)
                .norm
                .is_nan()
        );
    }
}

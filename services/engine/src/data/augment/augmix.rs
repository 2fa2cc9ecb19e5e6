//! AugMix: a picture mixed with versions of itself that chains of mild operations made (Hendrycks et al. 2020, with
//! the operations and strengths of torchvision, BSD).

use super::operations::{self, Operation};
use crate::data::picture::Picture;
use crate::random::Philox;

/// Versions that are mixed, and the most operations of one.
const WIDTH: usize = 3;
const DEPTH_MAX: u32 = 3;
/// Places on the scale of strengths that are drawn, and its highest one.
const SEVERITY: u32 = 3;
const PLACE_MAX: f64 = 9.0;
/// Bits that posterising leaves out at the lowest strength, and more of them at the highest.
const POSTERISE_BITS: f64 = 4.0;
/// How far a picture moves at full strength, in parts of how far RandAugment moves it: a third of its side.
const TRANSLATE_SHARE: f64 = (1.0 / 3.0) / (150.0 / 331.0);
/// RandAugment's operations but the first, which does nothing.
const OPERATIONS: &[Operation] = Operation::DRAWN.split_at(1).1;

/// Mixes the picture with versions of itself: the shares of the versions, then that of the picture, are drawn evenly.
pub fn augmix(picture: &mut Picture, stream: &mut Philox) {
    let own = stream.uniform();
    // Exponentials over their sum are spread evenly over all shares that add up to one.
    let parts: [f64; WIDTH] = std::array::from_fn(|_| -(1.0 - stream.uniform()).ln());
    let sum: f64 = parts.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let mut mixture = Mixture::new(picture, own);
    for part in parts {
        let mut version = picture.clone();
        for _ in 0..=stream.below(DEPTH_MAX) {
            let operation = OPERATIONS[stream.below(OPERATIONS.len() as u32) as usize];
            let (place, is_negative) = (stream.below(SEVERITY), stream.chance(0.5));
            apply(
                operation,
                &mut version,
                f64::from(place) / PLACE_MAX,
                is_negative,
            );
        }
        mixture.add(&version, (1.0 - own) * part / sum);
    }
    mixture.write(picture);
}

fn apply(operation: Operation, picture: &mut Picture, strength: f64, is_negative: bool) {
    match operation {
        Operation::TranslateX | Operation::TranslateY => {
            operation.apply(picture, strength * TRANSLATE_SHARE, is_negative);
        }
        Operation::Posterise => {
            let lost = POSTERISE_BITS + (POSTERISE_BITS * strength).round_ties_even();
            operations::posterise(picture, lost as u32);
        }
        _ => operation.apply(picture, strength, is_negative),
    }
}

/// A weighted sum of pictures of one size.
struct Mixture(Vec<f32>);

impl Mixture {
    fn new(picture: &Picture, share: f64) -> Self {
        let mut mixture = Self(vec![0.0; picture.pixels().len()]);
        mixture.add(picture, share);
        mixture
    }

    fn add(&mut self, picture: &Picture, share: f64) {
        for (sum, level) in self.0.iter_mut().zip(picture.pixels()) {
            *sum += share as f32 * f32::from(*level);
        }
    }

    fn write(self, picture: &mut Picture) {
        for (level, sum) in picture.pixels_mut().iter_mut().zip(self.0) {
            *level = sum.round() as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Use;

    fn photo() -> Picture {
        let pixels = (0..24 * 24 * 3)
            .map(|index| (index % 97) as u8 + 60)
            .collect();
        Picture::new(24, 24, pixels)
    }

    fn mixed(sample: u32) -> Picture {
        let mut picture = photo();
        augmix(&mut picture, &mut Philox::new(1, 0, sample, Use::Test));
        picture
    }

    #[test]
    fn a_mixture_of_a_picture_with_itself_is_the_picture() {
        let mut mixture = Mixture::new(&photo(), 0.31);
        for share in [0.07, 0.22, 0.4] {
            mixture.add(&photo(), share);
        }
        let mut picture = Picture::filled(24, 24, [0; 3]);
        mixture.write(&mut picture);
        assert_eq!(picture, photo());
    }

    #[test]
    fn no_strength_changes_nothing_but_what_has_none_or_loses_bits() {
        for &operation in OPERATIONS {
            let mut picture = photo();
            apply(operation, &mut picture, 0.0, true);
            let is_changed = picture != photo();
            let may_change = matches!(
                operation,
                Operation::AutoContrast | Operation::Equalise | Operation::Posterise
            );
            assert!(may_change || !is_changed, "{operation:?}");
        }
        let mut picture = Picture::filled(2, 2, [0b1011_0111, 0b0001_1111, 255]);
        apply(Operation::Posterise, &mut picture, 0.0, false);
        assert_eq!(picture.at(0, 0), [0b1011_0000, 0b0001_0000, 0b1111_0000]);
    }

    #[test]
    fn a_mixture_is_a_function_of_the_stream_and_keeps_what_is_seen() {
        let mut changed = 0;
        for sample in 0..60 {
            assert_eq!(mixed(sample), mixed(sample));
            changed += u32::from(mixed(sample) != photo());
        }
        assert!(changed > 50, "{changed}");
        let photo = photo();
        let mut differences = Vec::new();
        for sample in 0..60 {
            let mixed = mixed(sample);
            let pairs = mixed.pixels().iter().zip(photo.pixels());
            differences.extend(pairs.map(|(a, b)| f64::from(a.abs_diff(*b))));
        }
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        assert!((6.0..18.0).contains(&mean), "{mean}");
    }
}

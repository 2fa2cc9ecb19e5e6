//! AutoAugment's policy for photographs: pairs of operations, each with its probability and strength.

use super::operations::Operation::{
    self, AutoContrast, Colour, Contrast, Equalise, Invert, Posterise, Rotate, Sharpness, ShearX,
    Solarise,
};
use crate::data::picture::Picture;
use crate::random::Philox;

/// An operation, its probability in tenths, and its strength as a place on a scale.
type Step = (Operation, u32, u32);

/// The highest place on the scale of strengths.
const STRENGTH_MAX: f64 = 9.0;

/// The policy found on ImageNet (Cubuk et al. 2019, table 9).
const POLICY: [[Step; 2]; 25] = [
    [(Posterise, 4, 8), (Rotate, 6, 9)],
    [(Solarise, 6, 5), (AutoContrast, 6, 0)],
    [(Equalise, 8, 0), (Equalise, 6, 0)],
    [(Posterise, 6, 7), (Posterise, 6, 6)],
    [(Equalise, 4, 0), (Solarise, 2, 4)],
    [(Equalise, 4, 0), (Rotate, 8, 8)],
    [(Solarise, 6, 3), (Equalise, 6, 0)],
    [(Posterise, 8, 5), (Equalise, 10, 0)],
    [(Rotate, 2, 3), (Solarise, 6, 8)],
    [(Equalise, 6, 0), (Posterise, 4, 6)],
    [(Rotate, 8, 8), (Colour, 4, 0)],
    [(Rotate, 4, 9), (Equalise, 6, 0)],
    [(Equalise, 0, 0), (Equalise, 8, 0)],
    [(Invert, 6, 0), (Equalise, 10, 0)],
    [(Colour, 6, 4), (Contrast, 10, 8)],
    [(Rotate, 8, 8), (Colour, 10, 2)],
    [(Colour, 8, 8), (Solarise, 8, 7)],
    [(Sharpness, 4, 7), (Invert, 6, 0)],
    [(ShearX, 6, 5), (Equalise, 10, 0)],
    [(Colour, 4, 0), (Equalise, 6, 0)],
    [(Equalise, 4, 0), (Solarise, 2, 4)],
    [(Solarise, 6, 5), (AutoContrast, 6, 0)],
    [(Invert, 6, 0), (Equalise, 10, 0)],
    [(Colour, 6, 4), (Contrast, 10, 8)],
    [(Equalise, 8, 0), (Equalise, 6, 0)],
];

/// Applies a pair of operations drawn from the policy.
pub fn auto_augment(picture: &mut Picture, stream: &mut Philox) {
    let pair = &POLICY[stream.below(POLICY.len() as u32) as usize];
    for &(operation, tenths, place) in pair {
        // Both drawn in any case, so that the second operation doesn't depend on the first.
        let (happens, is_negative) = (stream.below(10) < tenths, stream.chance(0.5));
        if happens {
            operation.apply(picture, f64::from(place) / STRENGTH_MAX, is_negative);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Use;

    #[test]
    fn a_pair_is_a_function_of_the_stream_and_mostly_changes_the_picture() {
        let pixels = (0..24 * 24 * 3)
            .map(|index| (index % 97) as u8 + 60)
            .collect();
        let photo = Picture::new(24, 24, pixels);
        let mut changed = 0;
        for sample in 0..60 {
            let augmented = || {
                let mut picture = photo.clone();
                auto_augment(&mut picture, &mut Philox::new(1, 0, sample, Use::Test));
                picture
            };
            assert_eq!(augmented(), augmented());
            changed += u32::from(augmented() != photo);
        }
        assert!((30..60).contains(&changed), "{changed}");
    }
}

//! The operations of RandAugment and AutoAugment on 8-bit pictures, as Pillow and torchvision (BSD) define them.

use crate::data::picture::{Matrix, Picture};
use crate::random::Philox;

/// What may happen to a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Colour,
    Contrast,
    Sharpness,
    Posterise,
    Solarise,
    AutoContrast,
    Equalise,
    Invert,
}

impl Operation {
    /// RandAugment's operations, in the order in which they are drawn.
    pub const DRAWN: [Self; 14] = [
        Self::Identity,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
        Self::Rotate,
        Self::Brightness,
        Self::Colour,
        Self::Contrast,
        Self::Sharpness,
        Self::Posterise,
        Self::Solarise,
        Self::AutoContrast,
        Self::Equalise,
    ];

    /// Applies the operation with a strength of 0 to 1, in either direction where it has two.
    pub fn apply(self, picture: &mut Picture, strength: f64, is_negative: bool) {
        let signed = if is_negative { -strength } else { strength };
        match self {
            Self::Identity => {}
            Self::ShearX => shear(picture, SHEAR_MAX * signed, 0.0),
            Self::ShearY => shear(picture, 0.0, SHEAR_MAX * signed),
            Self::TranslateX => {
                let by = TRANSLATE_MAX * signed * picture.width() as f64;
                warp(picture, Matrix::translation(by.trunc(), 0.0));
            }
            Self::TranslateY => {
                let by = TRANSLATE_MAX * signed * picture.height() as f64;
                warp(picture, Matrix::translation(0.0, by.trunc()));
            }
            Self::Rotate => rotate(picture, (ROTATE_MAX * signed).to_radians()),
            Self::Brightness => brightness(picture, 1.0 + FACTOR_MAX * signed),
            Self::Colour => saturation(picture, 1.0 + FACTOR_MAX * signed),
            Self::Contrast => contrast(picture, 1.0 + FACTOR_MAX * signed),
            Self::Sharpness => sharpness(picture, 1.0 + FACTOR_MAX * signed),
            Self::Posterise => {
                let lost = (POSTERISE_BITS_MAX * strength).round_ties_even() as u32;
                posterise(picture, lost);
            }
            Self::Solarise => {
                let from = 255.0 * (1.0 - strength);
                map(picture, |level| {
                    if f64::from(level) >= from {
                        255 - level
                    } else {
                        level
                    }
                });
            }
            Self::AutoContrast => auto_contrast(picture),
            Self::Equalise => equalise(picture),
            Self::Invert => map(picture, |level| 255 - level),
        }
    }
}

/// How far each operation goes at full strength.
const SHEAR_MAX: f64 = 0.3;
const TRANSLATE_MAX: f64 = 150.0 / 331.0;
const ROTATE_MAX: f64 = 30.0;
const FACTOR_MAX: f64 = 0.9;
const POSTERISE_BITS_MAX: f64 = 4.0;
/// What lies outside a moved picture.
const OUTSIDE: u8 = 0;

/// RandAugment's own constants: operations of a picture, and the strength as a place on a scale.
const OPERATIONS: u32 = 2;
const MAGNITUDE: f64 = 9.0;
const MAGNITUDE_MAX: f64 = 30.0;

/// Applies two operations drawn from the list (Cubuk et al. 2019, "RandAugment").
pub fn rand_augment(picture: &mut Picture, stream: &mut Philox) {
    for _ in 0..OPERATIONS {
        let operation = Operation::DRAWN[stream.below(Operation::DRAWN.len() as u32) as usize];
        operation.apply(picture, MAGNITUDE / MAGNITUDE_MAX, stream.chance(0.5));
    }
}

fn warp(picture: &mut Picture, matrix: Matrix) {
    *picture = picture.warped_over(&matrix, picture.width(), picture.height(), OUTSIDE);
}

fn shear(picture: &mut Picture, x: f64, y: f64) {
    warp(
        picture,
        Matrix([[1.0, x, 0.0], [y, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    );
}

fn rotate(picture: &mut Picture, angle: f64) {
    let (sine, cosine) = angle.sin_cos();
    let (x, y) = (
        (picture.width() - 1) as f64 / 2.0,
        (picture.height() - 1) as f64 / 2.0,
    );
    let turn = Matrix([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]]);
    let matrix = Matrix::translation(x, y)
        .after(&turn)
        .after(&Matrix::translation(-x, -y));
    warp(picture, matrix);
}

/// Leaves out the lowest bits of every level.
pub fn posterise(picture: &mut Picture, lost: u32) {
    let kept = !((1u32 << lost) - 1) as u8;
    map(picture, |level| level & kept);
}

/// Multiplies every level.
pub fn brightness(picture: &mut Picture, factor: f64) {
    let table: [u8; 256] = std::array::from_fn(|level| blend(level as f64, 0.0, factor));
    map(picture, |level| table[usize::from(level)]);
}

/// Moves every level away from the picture's mean grey, or towards it below 1.
pub fn contrast(picture: &mut Picture, factor: f64) {
    let pixels = picture.pixels().as_chunks::<3>().0;
    let sum: u64 = pixels.iter().map(|&pixel| u64::from(grey(pixel))).sum();
    let mean = (sum as f64 / pixels.len().max(1) as f64 + 0.5).floor();
    let table: [u8; 256] = std::array::from_fn(|level| blend(level as f64, mean, factor));
    map(picture, |level| table[usize::from(level)]);
}

/// Moves every pixel away from its own grey, or towards it below 1.
pub fn saturation(picture: &mut Picture, factor: f64) {
    for pixel in picture.pixels_mut().as_chunks_mut::<3>().0 {
        let grey = f64::from(grey(*pixel));
        *pixel = pixel.map(|level| blend(f64::from(level), grey, factor));
    }
}

/// Moves every pixel away from the weighted mean of its neighbourhood, or towards it below 1.
fn sharpness(picture: &mut Picture, factor: f64) {
    /// Weight of the pixel itself; each of its eight neighbours has 1.
    const MIDDLE: u32 = 5;
    const ALL: u32 = MIDDLE + 8;
    let original = picture.clone();
    let width = picture.width();
    for y in 1..picture.height().saturating_sub(1) {
        let rows = [original.row(y - 1), original.row(y), original.row(y + 1)];
        let start = (y * width + 1) * 3;
        let end = start + width.saturating_sub(2) * 3;
        for (offset, sample) in picture.pixels_mut()[start..end].iter_mut().enumerate() {
            let sum: u32 = rows
                .iter()
                .flat_map(|row| [row[offset], row[offset + 3], row[offset + 6]])
                .map(u32::from)
                .sum();
            let level = u32::from(*sample);
            let mean = (sum + (MIDDLE - 1) * level + ALL / 2) / ALL;
            *sample = blend(f64::from(level), f64::from(mean), factor);
        }
    }
}

/// Stretches each channel to the whole range.
fn auto_contrast(picture: &mut Picture) {
    for channel in 0..3 {
        let levels = picture.pixels().iter().skip(channel).step_by(3);
        let (low, high) = levels.fold((u8::MAX, 0), |(low, high), &level| {
            (low.min(level), high.max(level))
        });
        if low < high {
            let scale = 255.0 / f64::from(high - low);
            map_channel(picture, channel, |level| {
                (f64::from(level.saturating_sub(low)) * scale).min(255.0) as u8
            });
        }
    }
}

/// Spreads each channel's levels so that all are as frequent as can be.
fn equalise(picture: &mut Picture) {
    for channel in 0..3 {
        let mut counts = [0usize; 256];
        for &level in picture.pixels().iter().skip(channel).step_by(3) {
            counts[usize::from(level)] += 1;
        }
        let highest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
        let step = counts[..highest].iter().sum::<usize>() / 255;
        if step == 0 {
            continue;
        }
        let mut before = step / 2;
        let table = counts.map(|count| {
            let level = (before / step).min(255) as u8;
            before += count;
            level
        });
        map_channel(picture, channel, |level| table[usize::from(level)]);
    }
}

/// Returns a level so much further from another, or nearer below 1.
fn blend(level: f64, from: f64, factor: f64) -> u8 {
    (from + (level - from) * factor).clamp(0.0, 255.0) as u8
}

/// Returns the brightness of a pixel (ITU-R BT.601).
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 299 * u32::from(red) + 587 * u32::from(green) + 114 * u32::from(blue);
    (sum / 1000) as u8
}

fn map(picture: &mut Picture, change: impl Fn(u8) -> u8) {
    for sample in picture.pixels_mut() {
        *sample = change(*sample);
    }
}

fn map_channel(picture: &mut Picture, channel: usize, change: impl Fn(u8) -> u8) {
    for sample in picture.pixels_mut().iter_mut().skip(channel).step_by(3) {
        *sample = change(*sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Picture {
        let pixels = (0..32 * 32)
            .flat_map(|index| [(index % 32 * 4) as u8 + 40, (index / 32 * 3) as u8 + 20, 90])
            .collect();
        Picture::new(32, 32, pixels)
    }

    #[test]
    fn no_strength_changes_nothing_but_what_has_none() {
        for operation in Operation::DRAWN {
            if matches!(operation, Operation::AutoContrast | Operation::Equalise) {
                continue;
            }
            for is_negative in [false, true] {
                let mut picture = ramp();
                operation.apply(&mut picture, 0.0, is_negative);
                assert_eq!(picture, ramp(), "{operation:?}");
            }
        }
    }

    #[test]
    fn every_operation_but_identity_does_something() {
        for operation in Operation::DRAWN {
            let mut picture = ramp();
            operation.apply(&mut picture, 0.5, false);
            let is_changed = picture != ramp();
            // A linear ramp has no corner to sharpen.
            let is_still = matches!(operation, Operation::Identity | Operation::Sharpness);
            assert_eq!(is_changed, !is_still, "{operation:?}");
        }
    }

    #[test]
    fn levels_move_as_defined() {
        let changed = |operation: Operation, strength, is_negative, pixel| {
            let mut picture = Picture::filled(2, 2, pixel);
            operation.apply(&mut picture, strength, is_negative);
            picture.at(0, 0)
        };
        let pixel = [200, 100, 50];
        assert_eq!(
            changed(Operation::Brightness, 0.5, true, pixel),
            [110, 55, 27]
        );
        assert_eq!(
            changed(Operation::Brightness, 1.0, false, pixel),
            [255, 190, 95]
        );
        assert_eq!(
            changed(Operation::Posterise, 1.0, false, pixel),
            [192, 96, 48]
        );
        assert_eq!(
            changed(Operation::Posterise, 0.3, false, pixel),
            [200, 100, 50]
        );
        assert_eq!(
            changed(Operation::Posterise, 0.3, false, [201, 103, 51]),
            [200, 102, 50]
        );
        assert_eq!(
            changed(Operation::Solarise, 0.3, false, pixel),
            [55, 100, 50]
        );
        // Its grey is 124.
        assert_eq!(
            changed(Operation::Colour, 1.0, true, pixel),
            [131, 121, 116]
        );
        assert_eq!(
            changed(Operation::Contrast, 1.0, true, pixel),
            [131, 121, 116]
        );
    }

    #[test]
    fn stretching_and_spreading_reach_both_ends() {
        for operation in [Operation::AutoContrast, Operation::Equalise] {
            let mut picture = ramp();
            operation.apply(&mut picture, 0.0, false);
            let reds: Vec<u8> = picture.pixels().iter().step_by(3).copied().collect();
            assert_eq!(reds.iter().min(), Some(&0), "{operation:?}");
            assert!(*reds.iter().max().unwrap() >= 250, "{operation:?}");
            assert!(
                picture
                    .pixels()
                    .iter()
                    .skip(2)
                    .step_by(3)
                    .all(|&blue| blue == 90)
            );
        }
    }

    #[test]
    fn a_sharper_edge_overshoots_and_a_smoother_one_is_between() {
        let edge = || {
            let pixels = (0..8 * 8)
                .flat_map(|index| [if index % 8 < 4 { 50 } else { 200 }; 3])
                .collect();
            Picture::new(8, 8, pixels)
        };
        let mut sharp = edge();
        sharpness(&mut sharp, 1.9);
        assert!(sharp.at(3, 4)[0] < 50 && sharp.at(4, 4)[0] > 200);
        let mut smooth = edge();
        sharpness(&mut smooth, 0.1);
        assert!(smooth.at(3, 4)[0] > 50 && smooth.at(4, 4)[0] < 200);
        assert_eq!(smooth.at(3, 0), [50; 3], "the border stays");
    }
}

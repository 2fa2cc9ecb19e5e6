//! Pictures that show one class as a whole: a part of any size and shape in training, the middle in validation.

use super::operations::{self, rand_augment};
use super::{Augmentation, AutoAugment, augmix, policy};
use crate::data::colour::{self, Jitter};
use crate::data::picture::Picture;
use crate::random::{Philox, Use};

/// Width over height of the part of a picture that is shown.
const RATIO: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
/// Parts drawn before the largest in the middle is taken.
const CROP_TRIES: u32 = 10;
/// The rectangle to blank: its share of the picture, its width over its height, and draws before there is none.
const ERASED_AREA: (f64, f64) = (0.02, 0.33);
const ERASED_RATIO: (f64, f64) = (0.3, 3.3);
const ERASE_TRIES: u32 = 10;

/// Left, top, width, height in pixels.
type Part = (usize, usize, usize, usize);

/// Returns what training sees of a picture, a square of `size`, drawn for (seed, epoch, sample).
pub fn training_view(
    picture: &Picture,
    options: &Augmentation,
    size: usize,
    (seed, epoch, sample): (u64, u32, u32),
) -> Picture {
    let mut stream = Philox::new(seed, epoch, sample, Use::Crop);
    let share = (1.0 - options.scale, 1.0);
    let part = draw_part(&mut stream, (picture.width(), picture.height()), share);
    let mut view = picture.cropped(part).resized_smoothly(size, size);
    let mut stream = Philox::new(seed, epoch, sample, Use::Flip);
    let (is_upset, is_mirrored) = (stream.chance(options.flipud), stream.chance(options.fliplr));
    if is_upset {
        view.flip_vertical();
    }
    if is_mirrored {
        view.flip_horizontal();
    }
    let mut stream = Philox::new(seed, epoch, sample, Use::Colour);
    match options.auto_augment {
        AutoAugment::RandAugment => rand_augment(&mut view, &mut stream),
        AutoAugment::AutoAugment => policy::auto_augment(&mut view, &mut stream),
        AutoAugment::AugMix => augmix::augmix(&mut view, &mut stream),
        AutoAugment::None => jitter(&mut view, options, &mut stream),
    }
    let mut stream = Philox::new(seed, epoch, sample, Use::Erase);
    if stream.chance(options.erasing) {
        erase(&mut view, &mut stream);
    }
    view
}

/// Returns what validation sees: the shorter side brought to `size`, and of that the middle square.
pub fn validation_view(picture: &Picture, size: usize) -> Picture {
    let (width, height) = (picture.width(), picture.height());
    let short = width.min(height);
    let side = |side: usize| (side * size / short).max(size);
    let resized = picture.resized_smoothly(side(width), side(height));
    let start = |side: usize| ((side - size) as f64 / 2.0).round_ties_even() as usize;
    let (left, top) = (start(resized.width()), start(resized.height()));
    resized.cropped((left, top, size, size))
}

/// Draws a part of a picture: its share of the area, then its shape, then its place.
fn draw_part(stream: &mut Philox, (width, height): (usize, usize), share: (f64, f64)) -> Part {
    let area = (width * height) as f64;
    for _ in 0..CROP_TRIES {
        let target = area * stream.between(share.0, share.1);
        let ratio = stream.between(RATIO.0.ln(), RATIO.1.ln()).exp();
        let across = (target * ratio).sqrt().round_ties_even() as usize;
        let down = (target / ratio).sqrt().round_ties_even() as usize;
        if (1..=width).contains(&across) && (1..=height).contains(&down) {
            let top = stream.below((height - down + 1) as u32) as usize;
            let left = stream.below((width - across + 1) as u32) as usize;
            return (left, top, across, down);
        }
    }
    let ratio = width as f64 / height as f64;
    let across = if ratio > RATIO.1 {
        height as f64 * RATIO.1
    } else {
        width as f64
    };
    let down = if ratio < RATIO.0 {
        width as f64 / RATIO.0
    } else {
        height as f64
    };
    let across = (across.round_ties_even() as usize).clamp(1, width);
    let down = (down.round_ties_even() as usize).clamp(1, height);
    ((width - across) / 2, (height - down) / 2, across, down)
}

/// Changes brightness, contrast, saturation and hue, in an order that is drawn too.
fn jitter(picture: &mut Picture, options: &Augmentation, stream: &mut Philox) {
    let mut order = [0, 1, 2, 3];
    for place in (1..order.len()).rev() {
        order.swap(place, stream.below(place as u32 + 1) as usize);
    }
    let mut factor = |reach: f64| stream.between((1.0 - reach).max(0.0), 1.0 + reach);
    let (value, contrast) = (factor(options.hsv_v), factor(options.hsv_v));
    let saturation = factor(options.hsv_s);
    let hue = stream.between(-options.hsv_h, options.hsv_h);
    for step in order {
        match step {
            0 if options.hsv_v > 0.0 => operations::brightness(picture, value),
            1 if options.hsv_v > 0.0 => operations::contrast(picture, contrast),
            2 if options.hsv_s > 0.0 => operations::saturation(picture, saturation),
            3 if options.hsv_h > 0.0 => {
                let by = Jitter {
                    hue,
                    saturation: 0.0,
                    value: 0.0,
                };
                colour::jitter(picture, by);
            }
            _ => {}
        }
    }
}

/// Blanks a rectangle inside the picture (Zhong et al. 2017, "Random Erasing").
fn erase(picture: &mut Picture, stream: &mut Philox) {
    let (width, height) = (picture.width(), picture.height());
    for _ in 0..ERASE_TRIES {
        let target = (width * height) as f64 * stream.between(ERASED_AREA.0, ERASED_AREA.1);
        let ratio = stream
            .between(ERASED_RATIO.0.ln(), ERASED_RATIO.1.ln())
            .exp();
        let down = (target * ratio).sqrt().round_ties_even() as usize;
        let across = (target / ratio).sqrt().round_ties_even() as usize;
        if across < width && down < height {
            let top = stream.below((height - down + 1) as u32) as usize;
            let left = stream.below((width - across + 1) as u32) as usize;
            let rows = picture.pixels_mut().chunks_exact_mut(width * 3);
            for row in rows.skip(top).take(down) {
                row[left * 3..(left + across) * 3].fill(0);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn photo() -> Picture {
        let pixels = (0..90 * 60)
            .flat_map(|index| {
                [
                    (index % 90 * 2) as u8 + 30,
                    (index / 90 * 3) as u8 + 30,
                    120,
                ]
            })
            .collect();
        Picture::new(90, 60, pixels)
    }

    #[test]
    fn a_view_is_a_function_of_seed_epoch_and_sample() {
        let options = Augmentation::default();
        let view = |key| training_view(&photo(), &options, 32, key);
        assert_eq!(view((1, 2, 3)), view((1, 2, 3)));
        for other in [(2, 2, 3), (1, 3, 3), (1, 2, 4)] {
            assert_ne!(view(other), view((1, 2, 3)));
        }
    }

    #[test]
    fn every_recipe_changes_a_view_in_its_own_way() {
        let recipes = ["randaugment", "autoaugment", "augmix", "none"];
        let views = recipes.map(|name| {
            let options = Augmentation {
                auto_augment: serde_json::from_value(name.into()).unwrap(),
                hsv_v: 0.4,
                ..Augmentation::NONE
            };
            let view = |sample| training_view(&photo(), &options, 32, (1, 2, sample));
            (0..8).map(view).collect::<Vec<_>>()
        });
        for (index, views_of_one) in views.iter().enumerate() {
            assert!(!views[..index].contains(views_of_one), "{}", recipes[index]);
        }
    }

    #[test]
    fn without_freedom_the_whole_picture_is_shown() {
        let square = photo().cropped((10, 0, 60, 60));
        let view = training_view(&square, &Augmentation::NONE, 60, (0, 0, 0));
        assert_eq!(view, square);
    }

    #[test]
    fn parts_have_the_drawn_share_and_shape_and_lie_inside() {
        let mut stream = Philox::new(3, 0, 0, Use::Test);
        for size in [(90, 60), (60, 90), (500, 20), (20, 500), (1, 1)] {
            for _ in 0..100 {
                let (left, top, across, down) = draw_part(&mut stream, size, (0.5, 1.0));
                assert!(left + across <= size.0 && top + down <= size.1);
                assert!(across > 0 && down > 0);
                let ratio = across as f64 / down as f64;
                assert!(ratio > 0.7 && ratio < 1.4, "{across} × {down} of {size:?}");
            }
        }
    }

    #[test]
    fn validation_shows_the_middle_square() {
        let view = validation_view(&photo(), 30);
        assert_eq!((view.width(), view.height()), (30, 30));
        let middle = view.at(15, 15);
        assert!(
            middle[0].abs_diff(121) <= 3 && middle[1].abs_diff(121) <= 4,
            "{middle:?}"
        );
        assert_eq!(
            validation_view(&photo().cropped((0, 0, 60, 60)), 60),
            photo().cropped((0, 0, 60, 60))
        );
    }

    #[test]
    fn erasing_blanks_one_rectangle_of_the_right_share() {
        for sample in 0..50 {
            let mut picture = Picture::filled(64, 64, [9; 3]);
            erase(&mut picture, &mut Philox::new(1, 0, sample, Use::Erase));
            let blank: Vec<usize> = (0..64 * 64)
                .filter(|&index| picture.at(index % 64, index / 64) == [0; 3])
                .collect();
            let share = blank.len() as f64 / 4096.0;
            assert!((0.01..0.35).contains(&share), "{share}");
            let columns = blank.iter().map(|index| index % 64);
            let rows = blank.iter().map(|index| index / 64);
            let across = columns.clone().max().unwrap() - columns.min().unwrap() + 1;
            let down = rows.clone().max().unwrap() - rows.min().unwrap() + 1;
            assert_eq!(across * down, blank.len(), "one whole rectangle");
        }
    }

    #[test]
    fn colours_alone_keep_the_shape() {
        let options = Augmentation {
            auto_augment: AutoAugment::None,
            ..Augmentation::default()
        };
        let mut picture = photo();
        jitter(
            &mut picture,
            &options,
            &mut Philox::new(0, 0, 5, Use::Colour),
        );
        assert_ne!(picture, photo());
        let mut still = photo();
        jitter(
            &mut still,
            &Augmentation::NONE,
            &mut Philox::new(0, 0, 5, Use::Colour),
        );
        assert_eq!(still, photo());
    }
}

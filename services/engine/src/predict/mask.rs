//! The mask of an object in the picture's own pixels, from prototypes that are coarser and letterboxed.

use super::outline::Bitmap;
use crate::data::letterbox::Letterbox;
use crate::loss::{Prototypes, Window};

/// A pixel's place between two prototypes of a row or column: the first, and the share of the second.
#[derive(Debug, Clone, Copy)]
struct Between {
    first: usize,
    share: f32,
}

/// A mask cut to its box: the pixels of `window` of the picture.
#[derive(Debug, Clone)]
pub(super) struct Mask {
    pub window: Window,
    pub bitmap: Bitmap,
}

impl Mask {
    /// Computes a mask: the coefficients' sum of the prototypes, linear between these, set where it is positive
    /// (where its probability is above one half) and its middle lies in the box. `corners` are of the picture.
    pub fn new(
        prototypes: Prototypes<'_>,
        coefficients: &[f32],
        fit: &Letterbox,
        corners: [f32; 4],
    ) -> Self {
        // A pixel's middle is inside when the half more is.
        let middles = corners.map(|corner| f64::from(corner) - 0.5);
        let window = Window::new(middles, fit.source.1, fit.source.0);
        let axis = |pixels: &std::ops::Range<usize>, axis: Axis, count: usize| -> Vec<Between> {
            pixels
                .clone()
                .map(|pixel| axis.between(pixel, count))
                .collect()
        };
        let columns = axis(&window.columns, Axis::of_columns(fit), prototypes.width);
        let rows = axis(&window.rows, Axis::of_rows(fit), prototypes.height);
        let mut bitmap = Bitmap {
            width: columns.len(),
            height: rows.len(),
            pixels: Vec::new(),
        };
        let (Some((left, right)), Some((top, bottom))) = (ends(&columns), ends(&rows)) else {
            return Self { window, bitmap };
        };
        let part = Window {
            columns: left..(right + 2).min(prototypes.width),
            rows: top..(bottom + 2).min(prototypes.height),
        };
        let width = part.columns.len();
        let sums = prototypes.sums(coefficients, &part);
        bitmap.pixels.reserve(columns.len() * rows.len());
        let mut line = vec![0.0f32; width];
        for row in rows {
            let upper = &sums[(row.first - top) * width..][..width];
            // The last row has none below it, and takes nothing of it.
            let lower = sums
                .get((row.first + 1 - top) * width..)
                .filter(|rest| !rest.is_empty());
            let lower = lower.map_or(upper, |rest| &rest[..width]);
            for ((value, upper), lower) in line.iter_mut().zip(upper).zip(lower) {
                *value = upper + (lower - upper) * row.share;
            }
            bitmap.pixels.extend(columns.iter().map(|column| {
                let first = line[column.first - left];
                let second = line[(column.first + 1 - left).min(width - 1)];
                first + (second - first) * column.share > 0.0
            }));
        }
        Self { window, bitmap }
    }

    /// Returns the largest outline in pixels of the picture.
    pub fn outline(&self) -> Vec<[f32; 2]> {
        let (left, top) = (
            self.window.columns.start as f32,
            self.window.rows.start as f32,
        );
        let points = self.bitmap.largest_outline().into_iter();
        points.map(|[x, y]| [x + left, y + top]).collect()
    }
}

/// Returns the first prototypes of the first and the last pixel.
fn ends(axis: &[Between]) -> Option<(usize, usize)> {
    Some((axis.first()?.first, axis.last()?.first))
}

/// How one side of a picture lies in its frame.
#[derive(Debug, Clone, Copy)]
struct Axis {
    source: usize,
    inside: usize,
    offset: usize,
    frame: usize,
}

impl Axis {
    fn of_columns(fit: &Letterbox) -> Self {
        Self {
            source: fit.source.0,
            inside: fit.inside.0,
            offset: fit.offset.0,
            frame: fit.frame.0,
        }
    }

    fn of_rows(fit: &Letterbox) -> Self {
        Self {
            source: fit.source.1,
            inside: fit.inside.1,
            offset: fit.offset.1,
            frame: fit.frame.1,
        }
    }

    /// Returns where the middle of a pixel lies among `count` prototypes over the frame.
    fn between(self, pixel: usize, count: usize) -> Between {
        let gain = self.inside as f64 / self.source as f64;
        let in_frame = (pixel as f64 + 0.5) * gain + self.offset as f64;
        let place = in_frame * count as f64 / self.frame as f64 - 0.5;
        let place = place.clamp(0.0, (count - 1) as f64);
        Between {
            first: place as usize,
            share: place.fract() as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Stopwatch;

    /// Prototypes of stride 4 over the frame: the first is the distance left of column `edge` of the frame.
    fn prototypes(fit: &Letterbox, edge: f32) -> (usize, usize, Vec<f32>) {
        let (width, height) = (fit.frame.0 / 4, fit.frame.1 / 4);
        let values = (0..width * height).flat_map(|pixel| {
            let mut row = [0.0; 32];
            row[0] = edge - ((pixel % width) as f32 + 0.5) * 4.0;
            row
        });
        (width, height, values.collect())
    }

    fn view(values: &(usize, usize, Vec<f32>)) -> Prototypes<'_> {
        Prototypes {
            width: values.0,
            height: values.1,
            pixel_stride: 32,
            values: &values.2,
        }
    }

    fn coefficients(first: f32) -> [f32; 32] {
        let mut coefficients = [0.0; 32];
        coefficients[0] = first;
        coefficients
    }

    #[test]
    fn a_mask_of_a_letterboxed_picture_lies_where_its_object_does() {
        // Half as large, 16 rows and no columns of border.
        let fit = Letterbox::fit((640, 448), (320, 256), true);
        assert_eq!((fit.inside, fit.offset), ((320, 224), (0, 16)));
        let values = prototypes(&fit, 100.0);
        let corners = [40.4, 60.0, 300.0, 99.6];
        let mask = Mask::new(view(&values), &coefficients(1.0), &fit, corners);
        // Columns whose middle is left of 200 and from 40.4 on; rows whose middle is above 99.6.
        assert_eq!(
            (mask.window.columns.start, mask.window.rows.clone()),
            (40, 60..100)
        );
        assert_eq!(mask.bitmap.area(), 160 * 40);
        let outline = mask.outline();
        assert_eq!(outline.len(), 4);
        for corner in [[40.0, 60.0], [200.0, 60.0], [200.0, 100.0], [40.0, 100.0]] {
            assert!(outline.contains(&corner), "{outline:?}");
        }
        let other = Mask::new(view(&values), &coefficients(-1.0), &fit, corners);
        assert_eq!(other.bitmap.area(), 100 * 40);
    }

    #[test]
    fn boxes_at_the_border_or_without_area_do_no_harm() {
        let fit = Letterbox::fit((50, 40), (64, 64), true);
        let values = prototypes(&fit, 1000.0);
        for (corners, area) in [
            ([0.0, 0.0, 50.0, 40.0], 2000),
            ([49.0, 39.0, 50.0, 40.0], 1),
            ([10.0, 10.0, 10.0, 10.0], 0),
        ] {
            let mask = Mask::new(view(&values), &coefficients(1.0), &fit, corners);
            assert_eq!(mask.bitmap.area(), area, "{corners:?}");
            assert_eq!(mask.outline().is_empty(), area == 0);
        }
    }

    #[test]
    #[ignore = "a measurement"]
    fn how_long_twenty_masks_take() {
        let fit = Letterbox::tight((640, 480), 640, 32);
        let values = prototypes(&fit, 320.0);
        for side in [120.0, 240.0, 480.0] {
            let watch = Stopwatch::start();
            let mut points = 0;
            for object in 0..20 {
                let left = 8.0 * object as f32;
                let corners = [left, 0.0, left + side, side];
                let mask = Mask::new(view(&values), &coefficients(1.0), &fit, corners);
                points += mask.outline().len();
            }
            let time = watch.elapsed().as_secs_f64() * 1e3;
            println!("20 masks of {side} pixels: {time:.2} ms, {points} points");
        }
    }
}

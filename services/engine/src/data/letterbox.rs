//! Fitting a picture into a frame without changing its shape: one scale, grey borders, and the way back.

use super::picture::{PADDING, Picture};

/// Where a picture lies inside a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Letterbox {
    /// Width and height of the picture outside.
    pub source: (usize, usize),
    /// Width and height of the frame.
    pub frame: (usize, usize),
    /// Width and height of the picture inside the frame.
    pub inside: (usize, usize),
    /// Left and top border.
    pub offset: (usize, usize),
}

impl Letterbox {
    /// Fits `source` into `frame` (both width, height), centred; enlarges only when `enlarge`.
    pub fn fit(source: (usize, usize), frame: (usize, usize), enlarge: bool) -> Self {
        let ratio = (frame.1 as f64 / source.1 as f64).min(frame.0 as f64 / source.0 as f64);
        let ratio = if enlarge { ratio } else { ratio.min(1.0) };
        let side = |source: usize, frame: usize| {
            ((source as f64 * ratio).round_ties_even() as usize).clamp(1, frame)
        };
        let inside = (side(source.0, frame.0), side(source.1, frame.1));
        // A border of odd width is split with the smaller half first.
        let border = |frame: usize, inside: usize| {
            (((frame - inside) as f64 / 2.0 - 0.1).round_ties_even()).max(0.0) as usize
        };
        Self {
            source,
            frame,
            inside,
            offset: (border(frame.0, inside.0), border(frame.1, inside.1)),
        }
    }

    /// Fits `source` into the smallest frame with sides that are multiples of `stride`, the picture's long
    /// side becoming `size`.
    pub fn tight(source: (usize, usize), size: usize, stride: usize) -> Self {
        let square = Self::fit(source, (size, size), true);
        let frame = |inside: usize| inside.next_multiple_of(stride);
        Self::fit(
            source,
            (frame(square.inside.0), frame(square.inside.1)),
            true,
        )
    }

    /// Writes the framed picture into `target`, RGB rows of the frame.
    ///
    /// # Panics
    /// When `target` hasn't the frame's size.
    pub fn apply(&self, picture: &Picture, target: &mut [u8]) {
        assert_eq!(
            target.len(),
            self.frame.0 * self.frame.1 * 3,
            "invariant: the target has the frame's size"
        );
        target.fill(PADDING);
        let resized = picture.resized(self.inside.0, self.inside.1);
        let stride = self.frame.0 * 3;
        let start = self.offset.1 * stride + self.offset.0 * 3;
        for (row, line) in (0..self.inside.1).zip(target[start..].chunks_mut(stride)) {
            line[..self.inside.0 * 3].copy_from_slice(resized.row(row));
        }
    }

    /// Returns a normalised box (centre and size) of the picture as a normalised box of the frame.
    pub fn bounds_in_frame(&self, [x, y, width, height]: [f32; 4]) -> [f32; 4] {
        let place = |value: f32, inside: usize, offset: usize, frame: usize| {
            (value * inside as f32 + offset as f32) / frame as f32
        };
        let size = |value: f32, inside: usize, frame: usize| value * inside as f32 / frame as f32;
        [
            place(x, self.inside.0, self.offset.0, self.frame.0),
            place(y, self.inside.1, self.offset.1, self.frame.1),
            size(width, self.inside.0, self.frame.0),
            size(height, self.inside.1, self.frame.1),
        ]
    }

    /// Returns a box of the frame (corners, pixels) as a box of the picture, clipped to it.
    pub fn corners_in_source(&self, [left, top, right, bottom]: [f32; 4]) -> [f32; 4] {
        let [left, top] = self.clipped(self.point_in_source([left, top]));
        let [right, bottom] = self.clipped(self.point_in_source([right, bottom]));
        [left, top, right, bottom]
    }

    /// Returns a point of the frame as one of the picture, which may lie beside it.
    pub fn point_in_source(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let back = |value: f32, offset: usize, inside: usize, source: usize| {
            let gain = inside as f32 / source as f32;
            (value - offset as f32) / gain
        };
        [
            back(x, self.offset.0, self.inside.0, self.source.0),
            back(y, self.offset.1, self.inside.1, self.source.1),
        ]
    }

    /// Returns the point of the picture that is nearest.
    pub fn clipped(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        [
            x.clamp(0.0, self.source.0 as f32),
            y.clamp(0.0, self.source.1 as f32),
        ]
    }
}

/// Returns the size with which a picture is loaded: its long side becomes `size`, larger or smaller.
pub fn loaded_size((width, height): (usize, usize), size: usize) -> (usize, usize) {
    let ratio = size as f64 / width.max(height) as f64;
    if ratio == 1.0 {
        return (width, height);
    }
    let side = |side: usize| ((side as f64 * ratio).ceil() as usize).clamp(1, size);
    (side(width), side(height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_brings_the_long_side_to_the_size_both_ways() {
        assert_eq!(loaded_size((640, 480), 320), (320, 240));
        assert_eq!(loaded_size((333, 100), 320), (320, 97));
        assert_eq!(loaded_size((100, 50), 320), (320, 160));
        assert_eq!(loaded_size((320, 7), 320), (320, 7));
    }

    #[test]
    fn a_frame_is_filled_centred_with_the_smaller_border_first() {
        let fit = Letterbox::fit((320, 240), (352, 256), false);
        assert_eq!((fit.inside, fit.offset), ((320, 240), (16, 8)));
        let odd = Letterbox::fit((320, 240), (325, 245), false);
        assert_eq!(odd.offset, (2, 2));
        let larger = Letterbox::fit((320, 240), (640, 640), true);
        assert_eq!((larger.inside, larger.offset), ((640, 480), (0, 80)));
    }

    #[test]
    fn a_tight_frame_is_the_next_multiple_of_the_stride() {
        let tight = Letterbox::tight((640, 480), 320, 32);
        assert_eq!(
            (tight.frame, tight.inside, tight.offset),
            ((320, 256), (320, 240), (0, 8))
        );
    }

    #[test]
    fn boxes_go_in_and_come_back() {
        let fit = Letterbox::fit((640, 480), (320, 320), true);
        let [x, y, width, height] = fit.bounds_in_frame([0.25, 0.5, 0.5, 0.25]);
        let corners = [
            (x - width / 2.0) * 320.0,
            (y - height / 2.0) * 320.0,
            (x + width / 2.0) * 320.0,
            (y + height / 2.0) * 320.0,
        ];
        let back = fit.corners_in_source(corners);
        for (seen, wanted) in back.iter().zip([0.0, 180.0, 320.0, 300.0]) {
            assert!((seen - wanted).abs() < 1e-3, "{back:?}");
        }
        assert_eq!(
            fit.corners_in_source([-9.0, -9.0, 999.0, 999.0]),
            [0.0, 0.0, 640.0, 480.0]
        );
    }

    #[test]
    fn the_frame_holds_the_picture_and_grey() {
        let fit = Letterbox::fit((4, 2), (6, 6), false);
        let mut frame = vec![0; 6 * 6 * 3];
        fit.apply(&Picture::filled(4, 2, [1, 2, 3]), &mut frame);
        let frame = Picture::new(6, 6, frame);
        assert_eq!(frame.at(1, 2), [1, 2, 3]);
        assert_eq!(frame.at(4, 3), [1, 2, 3]);
        for (x, y) in [(0, 2), (5, 3), (2, 1), (2, 4)] {
            assert_eq!(frame.at(x, y), [PADDING; 3]);
        }
    }
}

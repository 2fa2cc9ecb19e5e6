//! The kernels of `letterbox.cu` and their parameters.

use super::letterbox::Letterbox;
use super::picture::resize_taps;
use crate::ops::cuda::{FastDiv, Kernel, Parameters, Source};

crate::ops::params! {
    /// One picture into one frame.
    pub struct LetterboxIn {
        /// Packed RGB rows.
        pub source: u64,
        /// u32, two for each column inside the frame: the left of two source pixels, the weight of the right one.
        pub columns: u64,
        /// Alike for rows.
        pub rows: u64,
        /// RGBX.
        pub frame: u64,
        /// Width of the frame.
        pub by_width: FastDiv,
        pub height: u32,
        pub left: u32,
        pub top: u32,
        pub inside_width: u32,
        pub inside_height: u32,
        pub source_width: u32,
        pub source_height: u32,
        /// Bytes of a row of the source.
        pub source_pitch: u32,
        pub unused: u32,
    }
}

impl LetterboxIn {
    /// Describes a fit of a picture whose rows follow each other; `taps` are the addresses of [`taps`].
    pub fn new(fit: &Letterbox, source: u64, taps: [u64; 2], frame: u64) -> Self {
        let number = |value: usize| value as u32;
        Self {
            source,
            columns: taps[0],
            rows: taps[1],
            frame,
            by_width: FastDiv::new(number(fit.frame.0)),
            height: number(fit.frame.1),
            left: number(fit.offset.0),
            top: number(fit.offset.1),
            inside_width: number(fit.inside.0),
            inside_height: number(fit.inside.1),
            source_width: number(fit.source.0),
            source_height: number(fit.source.1),
            source_pitch: 3 * number(fit.source.0),
            unused: 0,
        }
    }

    /// Returns the grid.
    pub fn grid(&self) -> [u32; 3] {
        [(self.by_width.divisor * self.height).div_ceil(256), 1, 1]
    }
}

/// Returns what columns and rows of a fit read.
pub fn taps(fit: &Letterbox) -> [Vec<u32>; 2] {
    [
        resize_taps(fit.source.0, fit.inside.0),
        resize_taps(fit.source.1, fit.inside.1),
    ]
}

/// The file.
pub const SOURCE: Source = Source {
    name: "letterbox",
    text: include_str!("letterbox.cu"),
    kernels: &[Kernel::plain("letterbox_in", LetterboxIn::LAYOUT, 256, 4)],
};

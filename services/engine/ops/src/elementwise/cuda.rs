//! The kernels of `maps.cu` and their parameters: copies, sums, enlargement by two, means of images.

use crate::cuda::{FastDiv, Kernel, Parameters, Source, View};

/// Threads of a block, each of which takes eight channels.
pub const THREADS: u32 = 256;

crate::params! {
    /// `output [+]= input [+ other]`.
    pub struct MapCopy {
        pub input: View,
        /// Its pointer may be 0.
        pub other: View,
        pub output: View,
        /// Channels over 8.
        pub by_pieces: FastDiv,
        /// Pixels times `by_pieces`.
        pub items: u32,
        pub accumulate: u32,
        pub unused: u32,
    }
    /// Forward from small to large, backward the other way.
    pub struct Upsample {
        pub small: View,
        pub large: View,
        pub by_pieces: FastDiv,
        /// Width of the small map.
        pub by_width: FastDiv,
        /// Pixels of the small map times `by_pieces`.
        pub items: u32,
        /// Backward: 1 adds to what is there.
        pub accumulate: u32,
    }
    /// Forward from map to mean, backward the other way.
    pub struct GlobalPool {
        pub map: View,
        /// One pixel an image.
        pub mean: View,
        pub by_pieces: FastDiv,
        /// Of an image.
        pub pixels: u32,
        /// One over it.
        pub share: f32,
        pub accumulate: u32,
    }
}

impl MapCopy {
    /// Describes a copy (`other` is `View::default()`) or a sum of `pixels` pixels.
    pub fn new(pixels: u32, [input, other]: [View; 2], output: View, accumulate: bool) -> Self {
        let by_pieces = FastDiv::new(output.channels / 8);
        Self {
            input,
            other,
            output,
            by_pieces,
            items: by_pieces.items(pixels),
            accumulate: accumulate.into(),
            unused: 0,
        }
    }

    /// Returns the grid.
    pub fn grid(&self) -> [u32; 3] {
        [self.items.div_ceil(THREADS), 1, 1]
    }
}

impl Upsample {
    /// Describes an enlargement of a map of `pixels` pixels over all images, `width` across.
    pub fn new(pixels: u32, width: u32, small: View, large: View, accumulate: bool) -> Self {
        let by_pieces = FastDiv::new(small.channels / 8);
        Self {
            small,
            large,
            by_pieces,
            by_width: FastDiv::new(width),
            items: by_pieces.items(pixels),
            accumulate: accumulate.into(),
        }
    }

    /// Returns the grid.
    pub fn grid(&self) -> [u32; 3] {
        [self.items.div_ceil(THREADS), 1, 1]
    }
}

impl GlobalPool {
    /// Describes the mean over `pixels` pixels of each image.
    pub fn new(pixels: u32, map: View, mean: View, accumulate: bool) -> Self {
        Self {
            map,
            mean,
            by_pieces: FastDiv::new(map.channels / 8),
            pixels,
            share: 1.0 / pixels as f32,
            accumulate: accumulate.into(),
        }
    }

    /// Returns the grids of forward and backward pass.
    pub fn grids(&self, images: u32) -> [[u32; 3]; 2] {
        let items = self.by_pieces.items(self.pixels);
        [
            [self.map.channels.div_ceil(64), images, 1],
            [items.div_ceil(THREADS), images, 1],
        ]
    }
}

/// The file.
pub const SOURCE: Source = Source {
    name: "maps",
    text: include_str!("maps.cu"),
    kernels: &[
        Kernel::plain("map_copy", MapCopy::LAYOUT, THREADS, 4),
        Kernel::plain("upsample_fwd", Upsample::LAYOUT, THREADS, 4),
        Kernel::plain("upsample_bwd", Upsample::LAYOUT, THREADS, 4),
        Kernel::plain("pool_fwd", GlobalPool::LAYOUT, THREADS, 4),
        Kernel::plain("pool_bwd", GlobalPool::LAYOUT, THREADS, 4),
    ],
};

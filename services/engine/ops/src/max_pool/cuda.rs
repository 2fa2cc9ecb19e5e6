//! The kernels of `sppf.cu` and their parameters.

use crate::cuda::{FastDiv, Kernel, Parameters, Source, View};

/// The most pixels of a map: two maps of eight channels lie in shared memory.
pub const PIXELS_MAX: u32 = 1600;

crate::params! {
    /// Three chained pools of 5×5. Backward the views are those of the gradients: of `outputs`, which stay as they are,
    /// and of `input`, which is written.
    pub struct Sppf {
        pub input: View,
        pub outputs: [View; 3],
        /// A byte for each pool, pixel and padded channel: where the maximum was.
        pub places: u64,
        pub by_width: FastDiv,
        pub height: u32,
        /// Of an image.
        pub pixels: u32,
        pub images: u32,
        /// Backward: 1 adds to what is there.
        pub accumulate: u32,
        pub unused: u32,
    }
}

impl Sppf {
    /// Describes the pools of `images` maps of `height` × `width`.
    pub fn new(
        [images, height, width]: [u32; 3],
        input: View,
        outputs: [View; 3],
        places: u64,
    ) -> Self {
        assert!(
            height * width <= PIXELS_MAX,
            "invariant: pooled maps have at most {PIXELS_MAX} pixels"
        );
        Self {
            input,
            outputs,
            places,
            by_width: FastDiv::new(width),
            height,
            pixels: height * width,
            images,
            accumulate: 0,
            unused: 0,
        }
    }

    /// Returns the grids of forward and backward pass.
    pub fn grids(&self) -> [[u32; 3]; 2] {
        let channels = self.input.channels;
        [
            [channels / 8, self.images, 1],
            [channels / 4, self.images, 1],
        ]
    }
}

/// The file.
pub const SOURCE: Source = Source {
    name: "sppf",
    text: include_str!("sppf.cu"),
    kernels: &[
        Kernel {
            shared_bytes: 32 * PIXELS_MAX,
            ..Kernel::plain("sppf_fwd", Sppf::LAYOUT, 256, 1)
        },
        Kernel {
            shared_bytes: 32 * PIXELS_MAX,
            ..Kernel::plain("sppf_bwd", Sppf::LAYOUT, 256, 1)
        },
    ],
};

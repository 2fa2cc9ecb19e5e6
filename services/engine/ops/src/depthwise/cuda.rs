//! The kernels of `depthwise.cu` and their parameters.

use crate::cuda::{FastDiv, Kernel, Parameters, Source, View};
use crate::norm::cuda::NormVectors;

crate::params! {
    /// A depthwise convolution of 3x3 with stride 1. With partials it makes a batch's statistics.
    pub struct DwconvFprop needs(NormVectors) {
        pub x: View,
        pub y: View,
        pub norm: NormVectors,
        /// bf16, 9 taps of `channels` each.
        pub w: u64,
        /// As `bn_stats` has them; or 0.
        pub partials: u64,
        pub counters: u64,
        /// f32; or 0.
        pub bias: u64,
        pub height: u32,
        pub width: u32,
        pub pixels: u32,
        pub pixels_per_block: u32,
        pub by_width: FastDiv,
        pub by_height: FastDiv,
        pub silu: u32,
        pub unused: u32,
    }
    /// Both gradients of it in one pass.
    pub struct DwconvBwd {
        pub x: View,
        pub dy: View,
        pub dx: View,
        pub w: u64,
        /// f32: 9 taps of `channels` for each block along x; `sum_ranges` adds them.
        pub partials: u64,
        pub height: u32,
        pub width: u32,
        pub pixels: u32,
        pub pixels_per_block: u32,
        pub by_width: FastDiv,
        pub by_height: FastDiv,
        /// 1 adds to the input's gradient.
        pub accumulate: u32,
        pub unused: u32,
    }
}

/// The file. Blocks take 64 channels along y.
pub const SOURCE: Source = Source {
    name: "depthwise",
    text: include_str!("depthwise.cu"),
    kernels: &[
        Kernel::plain("dwconv_fprop", DwconvFprop::LAYOUT, 256, 2),
        Kernel::plain("dwconv_bwd", DwconvBwd::LAYOUT, 128, 2),
    ],
};

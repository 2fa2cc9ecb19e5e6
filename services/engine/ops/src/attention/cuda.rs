//! The kernels of `attention.cu` and their parameters.

use crate::cuda::{Kernel, Parameters, Source, View};

/// Channels of a head's queries and keys, and of its values: the only ones the kernels know.
pub const KEY_CHANNELS: u32 = 32;
pub const VALUE_CHANNELS: u32 = 64;

crate::params! {
    /// Forward.
    pub struct Attention {
        /// Head by head: queries, keys, values.
        pub qkv: View,
        pub attended: View,
        /// Receives the values as an image.
        pub values: View,
        /// f32, `[image][head][pixel]`: the logarithm to the base of 2 of each row's sum; or 0.
        pub normalisers: u64,
        /// Of an image.
        pub pixels: u32,
        pub scale: f32,
    }
    /// Backward: first `attn_bwd_query`, then `attn_bwd_key`.
    pub struct AttentionBackward {
        pub qkv: View,
        pub attended: View,
        pub attended_gradient: View,
        /// The gradient of the values as an image.
        pub values_gradient: View,
        /// Overwritten.
        pub qkv_gradient: View,
        pub normalisers: u64,
        /// f32, as many as `normalisers`: handed from the first kernel to the second.
        pub means: u64,
        pub pixels: u32,
        pub scale: f32,
    }
}

/// Returns the grid of each of the kernels.
pub fn grid(images: u32, heads: u32, pixels: u32) -> [u32; 3] {
    [pixels.div_ceil(64), heads, images]
}

/// The file.
pub const SOURCE: Source = Source {
    name: "attention",
    text: include_str!("attention.cu"),
    kernels: &[
        Kernel::plain("attn_fwd", Attention::LAYOUT, 128, 4),
        Kernel::plain("attn_bwd_query", AttentionBackward::LAYOUT, 128, 2),
        Kernel::plain("attn_bwd_key", AttentionBackward::LAYOUT, 128, 2),
    ],
};

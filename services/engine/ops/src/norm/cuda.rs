//! The kernels of `norm.cu` and their parameters.

use crate::cuda::{Kernel, Parameters, Source, View};

crate::params! {
    /// What a norm keeps on the device, f32, one value per padded channel each.
    pub struct NormVectors {
        pub gamma: u64,
        pub beta: u64,
        pub running_mean: u64,
        pub running_variance: u64,
        /// Of this batch; the backward pass reads them.
        pub mean: u64,
        pub inverse_deviation: u64,
        /// `y * scale + shift` is the norm.
        pub scale: u64,
        pub shift: u64,
        pub epsilon: f32,
        /// Weight of this batch in the running statistics.
        pub momentum: f32,
    }
    /// Statistics of a tensor that no convolution has made.
    pub struct BnStats needs(NormVectors) {
        pub y: View,
        pub norm: NormVectors,
        /// f32: count, mean and squared deviations, `channels` of each for each block along x.
        pub partials: u64,
        /// One zero for each 64 channels; it is zero again afterwards.
        pub counters: u64,
        pub pixels: u32,
        pub pixels_per_block: u32,
    }
    /// `a = f(y * scale + shift) [+ residual]`.
    pub struct BnSiluApply {
        pub y: View,
        pub output: View,
        /// Its pointer may be 0.
        pub residual: View,
        pub scale: u64,
        pub shift: u64,
        pub pixels: u32,
        /// 1 for SiLU, 0 for none.
        pub silu: u32,
    }
    /// The sums over pixels of dz and of dz times the normalised y.
    pub struct BnSiluBwdReduce {
        /// The activation's gradient is the sum of the first `gradients_count`; may be one of several readers' each.
        pub gradients: [View; 3],
        /// Its pointer is 0 for a bias without a norm.
        pub y: View,
        pub scale: u64,
        pub shift: u64,
        pub mean: u64,
        pub inverse_deviation: u64,
        /// f32: two sums of `channels` for each block along x.
        pub partials: u64,
        /// One zero for each 64 channels; zero again afterwards.
        pub counters: u64,
        /// Both sums of this batch, for `bn_silu_bwd_apply`; or 0.
        pub sums: u64,
        /// Added to; or 0.
        pub beta_gradient: u64,
        pub gamma_gradient: u64,
        pub pixels: u32,
        pub pixels_per_block: u32,
        pub silu: u32,
        pub gradients_count: u32,
    }
    /// The gradient of the norm's input.
    pub struct BnSiluBwdApply {
        pub gradients: [View; 3],
        pub y: View,
        pub dy: View,
        /// Gets the activation's gradient; its pointer may be 0.
        pub shortcut: View,
        pub scale: u64,
        pub shift: u64,
        pub mean: u64,
        pub inverse_deviation: u64,
        pub sums: u64,
        pub pixels: u32,
        pub silu: u32,
        pub gradients_count: u32,
        /// 1 adds to what is there.
        pub shortcut_accumulate: u32,
    }
}

/// Channels of a block of `bn_stats`.
pub const STATS_CHANNELS: u32 = 64;

/// Included by whatever makes statistics.
pub const FINALIZE: &str = include_str!("finalize.h");

/// The file.
pub const SOURCE: Source = Source {
    name: "norm",
    text: include_str!("norm.cu"),
    kernels: &[
        Kernel::plain("bn_stats", BnStats::LAYOUT, 256, 2),
        Kernel::plain("bn_silu_apply", BnSiluApply::LAYOUT, 256, 4),
        Kernel::plain("bn_silu_bwd_reduce", BnSiluBwdReduce::LAYOUT, 256, 2),
        Kernel::plain("bn_silu_bwd_apply", BnSiluBwdApply::LAYOUT, 256, 2),
    ],
};

//! The kernel of `recipe.cu` and its parameters.

use super::Augmentation;
use crate::ops::cuda::{Kernel, Parameters, Source};

/// Words of a recipe: sample, whether it is a mosaic, its centre (x, y), three partners, nine f32 of the map from the
/// source to the picture, f32 scale, f32 changes of hue, saturation and value, flags (1 upside down, 2 mirrored, 4 red
/// and blue swapped), three unused.
pub const RECIPE_WORDS: usize = 24;

crate::ops::params! {
    /// Draws a batch.
    pub struct AugRecipe {
        /// u32: epoch, and the place of the batch's first picture in its order.
        pub cursor: u64,
        /// u32, two a sample: width and height as loaded.
        pub sizes: u64,
        pub recipes: u64,
        /// A probability as a limit for 53 random bits: see [`limit_of`].
        pub mosaic_below: u64,
        pub upset_below: u64,
        pub mirror_below: u64,
        pub swap_below: u64,
        pub seed_low: u32,
        pub seed_high: u32,
        /// Samples of the set, and which random words below it are thrown away.
        pub samples: u32,
        pub reject_under: u32,
        pub half_bits: u32,
        pub batch: u32,
        /// Side of the pictures.
        pub size: u32,
        pub perspective: f32,
        pub radians: f32,
        pub scale: f32,
        pub shear: f32,
        pub translate: f32,
        pub hue: f32,
        pub saturation: f32,
        pub value: f32,
        pub unused: u32,
    }
}

/// Returns how many of the 2^53 draws are below a probability: comparing integers decides as comparing numbers does.
pub fn limit_of(probability: f64) -> u64 {
    (probability * (1u64 << 53) as f64).ceil() as u64
}

impl AugRecipe {
    /// Describes the draws of batches of `batch` pictures of `size`; addresses are left 0.
    pub fn new(options: &Augmentation, seed: u64, samples: u32, batch: u32, size: u32) -> Self {
        let bits = u32::BITS - samples.saturating_sub(1).leading_zeros();
        Self {
            mosaic_below: limit_of(options.mosaic),
            upset_below: limit_of(options.flipud),
            mirror_below: limit_of(options.fliplr),
            swap_below: limit_of(options.bgr),
            seed_low: seed as u32,
            seed_high: (seed >> 32) as u32,
            samples,
            reject_under: samples.wrapping_neg() % samples,
            half_bits: bits.div_ceil(2).max(1),
            batch,
            size,
            perspective: options.perspective as f32,
            radians: options.degrees.to_radians() as f32,
            scale: options.scale as f32,
            shear: options.shear.to_radians() as f32,
            translate: options.translate as f32,
            hue: options.hsv_h as f32,
            saturation: options.hsv_s as f32,
            value: options.hsv_v as f32,
            ..Self::default()
        }
    }

    /// Returns the grid.
    pub fn grid(&self) -> [u32; 3] {
        [self.batch.div_ceil(64), 1, 1]
    }
}

/// The file.
pub const SOURCE: Source = Source {
    name: "recipe",
    text: include_str!("recipe.cu"),
    kernels: &[Kernel::plain("aug_recipe", AugRecipe::LAYOUT, 64, 1)],
};

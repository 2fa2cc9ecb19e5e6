//! The kernels of `conv.cu`: their parameters, tiles and grids.

use crate::cuda::{FastDiv, Kernel, Parameters, Source, Uses, View};
use crate::norm::cuda::NormVectors;

crate::params! {
    /// A convolution as a product: which pixels a row reads, and where it writes.
    pub struct ConvGeometry {
        pub x: View,
        pub y: View,
        /// bf16, a row for each padded output channel: taps by padded input channels.
        pub w: u64,
        /// Output pixels, over all images.
        pub rows: u32,
        pub in_height: u32,
        pub in_width: u32,
        pub stride: u32,
        pub taps_count: u32,
        /// Elements of a row of weights.
        pub weight_row: u32,
        /// Of the output's buffer, which differs from what `by_width` and `by_height` walk when `out_step` is 2.
        pub out_height: u32,
        pub out_width: u32,
        pub out_step: u32,
        pub out_y: u32,
        pub out_x: u32,
        pub by_width: FastDiv,
        pub by_height: FastDiv,
        /// Input channels over 8.
        pub by_pieces: FastDiv,
        pub taps: [u32; 9],
        pub unused: u32,
    }
    /// Forward. With partials it makes a batch's statistics; bias, SiLU and residual are for folded norms.
    pub struct ConvFprop needs(ConvGeometry, NormVectors) {
        pub geometry: ConvGeometry,
        pub norm: NormVectors,
        /// f32: count, mean and squared deviations, `y.channels` of each for each block along x; or 0.
        pub partials: u64,
        /// A zero for each block along y; zero again afterwards.
        pub counters: u64,
        /// f32, one a padded channel; or 0.
        pub bias: u64,
        /// Its pointer may be 0.
        pub residual: View,
        pub silu: u32,
        pub unused: u32,
    }
    /// The weights' gradient; the geometry is the forward pass's, with the output's gradient as `y`.
    pub struct ConvWgrad needs(ConvGeometry) {
        pub geometry: ConvGeometry,
        /// f32: a gradient of all weights, laid out as they are, for each block along x.
        pub partials: u64,
        /// Pixels of such a block; a multiple of 32.
        pub rows_per_range: u32,
        pub unused: u32,
    }
    /// Adds partial results in their order.
    pub struct SumRanges {
        /// f32, `ranges` times `count`.
        pub partials: u64,
        pub target: u64,
        /// A multiple of 4.
        pub count: u32,
        pub ranges: u32,
        /// 1 adds to what is there.
        pub accumulate: u32,
        pub unused: u32,
    }
    /// The input's gradient.
    pub struct ConvDgrad needs(ConvGeometry) {
        pub geometry: ConvGeometry,
        /// 1 adds to what is there.
        pub accumulate: u32,
        pub unused: u32,
    }
}

/// Elements of a row of the first convolution's weights: nine taps of four colours, padded.
pub const STEM_ROW: u32 = 48;

/// Extents of a convolution with padding of half its kernel, which is 1 or 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvSize {
    pub images: u32,
    pub height: u32,
    pub width: u32,
    pub kernel: u32,
    pub stride: u32,
}

impl ConvSize {
    /// Returns height and width of the output.
    pub fn output(&self) -> (u32, u32) {
        let along = |extent: u32| (extent - 1) / self.stride + 1;
        (along(self.height), along(self.width))
    }
}

/// Packs a tap: how far it lies from a row's pixel, and its place among the weights.
fn tap(y: i32, x: i32, weight: u32) -> u32 {
    debug_assert!(
        (-8..8).contains(&y) && (-8..8).contains(&x),
        "invariant: taps are near"
    );
    (y + 8) as u32 | ((x + 8) as u32) << 4 | weight << 8
}

impl ConvGeometry {
    /// Describes the forward pass.
    pub fn forward(size: ConvSize, x: View, w: u64, y: View) -> Self {
        let (height, width) = size.output();
        let half = (size.kernel / 2) as i32;
        let side = size.kernel as i32;
        let taps = (0..side)
            .flat_map(|r| (0..side).map(move |s| (r - half, s - half, (r * side + s) as u32)));
        let mut geometry = Self {
            x,
            y,
            w,
            rows: size.images * height * width,
            in_height: size.height,
            in_width: size.width,
            stride: size.stride,
            weight_row: size.kernel * size.kernel * x.channels,
            out_height: height,
            out_width: width,
            out_step: 1,
            by_width: FastDiv::new(width),
            by_height: FastDiv::new(height),
            by_pieces: FastDiv::new(x.channels / 8),
            ..Self::default()
        };
        geometry.set_taps(taps);
        geometry
    }

    /// Describes the first convolution: `image` is four bytes a pixel, a row of weights is 9 taps of 4, padded to 48.
    pub fn stem(size: ConvSize, image: u64, w: u64, y: View) -> Self {
        let x = View {
            pointer: image,
            pitch: 4,
            channels: 8,
        };
        Self {
            weight_row: STEM_ROW,
            ..Self::forward(size, x, w, y)
        }
    }

    /// Describes the launches of the input's gradient: one, or four for a stride of two (fewer for one pixel, and a
    /// kernel of one leaves three quarters untouched: those are the caller's to clear).
    pub fn backward(size: ConvSize, dy: View, w: u64, dx: View) -> Vec<Self> {
        let (height, width) = size.output();
        let half = (size.kernel / 2) as i32;
        let step = size.stride as i32;
        let mut phases = Vec::new();
        for (out_y, out_x) in (0..step).flat_map(|y| (0..step).map(move |x| (y, x))) {
            let count = |extent: u32, from: i32| (extent as i32 - from + step - 1) / step;
            let (rows, columns) = (count(size.height, out_y), count(size.width, out_x));
            // Taps whose output pixel is whole: (h + half - r) is a multiple of the stride.
            let along = |from: i32| {
                (0..size.kernel as i32)
                    .filter(move |r| (from + half - r).rem_euclid(step) == 0)
                    .map(move |r| (r, (from + half - r).div_euclid(step)))
            };
            let taps: Vec<_> = along(out_y)
                .flat_map(|(r, y)| along(out_x).map(move |(s, x)| (y, x, r, s)))
                .map(|(y, x, r, s)| (y, x, (r * size.kernel as i32 + s) as u32))
                .collect();
            if rows <= 0 || columns <= 0 || taps.is_empty() {
                continue;
            }
            let mut geometry = Self {
                x: dy,
                y: dx,
                w,
                rows: size.images * (rows * columns) as u32,
                in_height: height,
                in_width: width,
                stride: 1,
                weight_row: size.kernel * size.kernel * dy.channels,
                out_height: size.height,
                out_width: size.width,
                out_step: size.stride,
                out_y: out_y as u32,
                out_x: out_x as u32,
                by_width: FastDiv::new(columns as u32),
                by_height: FastDiv::new(rows as u32),
                by_pieces: FastDiv::new(dy.channels / 8),
                ..Self::default()
            };
            geometry.set_taps(taps.into_iter());
            phases.push(geometry);
        }
        phases
    }

    fn set_taps(&mut self, taps: impl Iterator<Item = (i32, i32, u32)>) {
        for (y, x, weight) in taps {
            self.taps[self.taps_count as usize] = tap(y, x, weight);
            self.taps_count += 1;
        }
    }
}

/// A kernel's share of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvTile {
    pub rows: u32,
    pub columns: u32,
    pub fprop: &'static str,
    pub dgrad: &'static str,
}

macro_rules! tile {
    ($rows:literal, $columns:literal) => {
        ConvTile {
            rows: $rows,
            columns: $columns,
            fprop: concat!("conv_fprop_", $rows, "x", $columns),
            dgrad: concat!("conv_dgrad_", $rows, "x", $columns),
        }
    };
}

/// Every tile.
pub const TILES: [ConvTile; 5] = [
    tile!(128, 16),
    tile!(128, 32),
    tile!(128, 64),
    tile!(64, 64),
    tile!(128, 128),
];

impl ConvTile {
    /// Chooses a tile until a table of measurements does: as wide as the output, low where the grid is small.
    pub fn choose(geometry: &ConvGeometry, multiprocessors: u32) -> Self {
        match geometry.y.channels {
            0..=16 => TILES[0],
            17..=32 => TILES[1],
            channels => {
                let blocks = geometry.rows.div_ceil(128) * channels.div_ceil(64);
                match (blocks < 2 * multiprocessors, channels > 64) {
                    (true, _) => TILES[3],
                    (false, false) => TILES[2],
                    (false, true) => TILES[4],
                }
            }
        }
    }

    /// Returns the grid of the forward pass: few enough blocks that their statistics are quickly joined.
    pub fn fprop_grid(&self, geometry: &ConvGeometry, multiprocessors: u32) -> [u32; 3] {
        let tiles = geometry.rows.div_ceil(self.rows);
        let columns = geometry.y.channels.div_ceil(self.columns);
        let blocks = (4 * multiprocessors).div_ceil(columns).max(1);
        [tiles.min(blocks), columns, 1]
    }

    /// Returns the grid of the gradient.
    pub fn dgrad_grid(&self, geometry: &ConvGeometry) -> [u32; 3] {
        let tiles = geometry.rows.div_ceil(self.rows);
        [tiles, geometry.y.channels.div_ceil(self.columns), 1]
    }
}

/// A kernel's share of the weights' gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightTile {
    pub input_channels: u32,
    pub name: &'static str,
}

/// Every such tile; all take 64 output channels.
pub const WEIGHT_TILES: [WeightTile; 3] = [
    WeightTile {
        input_channels: 16,
        name: "conv_wgrad_64x16",
    },
    WeightTile {
        input_channels: 32,
        name: "conv_wgrad_64x32",
    },
    WeightTile {
        input_channels: 64,
        name: "conv_wgrad_64x64",
    },
];

impl WeightTile {
    /// Chooses a tile until a table of measurements does.
    pub fn choose(geometry: &ConvGeometry) -> Self {
        match geometry.x.channels {
            0..=16 => WEIGHT_TILES[0],
            17..=32 => WEIGHT_TILES[1],
            _ => WEIGHT_TILES[2],
        }
    }

    /// Returns the grid, and the pixels of a range: enough ranges to fill the device, but of 256 pixels at least.
    pub fn grid(&self, geometry: &ConvGeometry, multiprocessors: u32) -> ([u32; 3], u32) {
        let tiles =
            geometry.y.channels.div_ceil(64) * geometry.x.channels.div_ceil(self.input_channels);
        let blocks = tiles * geometry.taps_count;
        let rows = ranges(geometry.rows, (4 * multiprocessors).div_ceil(blocks), 256);
        let grid = [geometry.rows.div_ceil(rows), tiles, geometry.taps_count];
        (grid, rows)
    }
}

/// Returns the pixels of each of about `count` ranges, a multiple of 32 and at least `least`.
pub fn ranges(rows: u32, count: u32, least: u32) -> u32 {
    rows.div_ceil(count.max(1)).next_multiple_of(32).max(least)
}

/// Included by all kernels that multiply.
pub const GEMM: &str = include_str!("gemm.h");
/// Included by those that write views.
pub const EPILOGUE: &str = include_str!("epilogue.h");

const fn shared_bytes(rows: u32, columns: u32, threads: u32) -> u32 {
    let stages = 3 * (rows + columns) * 64;
    let epilogue = rows * (columns + 8) * 2 + threads * 64;
    if stages > epilogue { stages } else { epilogue }
}

macro_rules! kernel {
    ($name:literal, $parameters:ty, $rows:literal, $columns:literal, $block:literal, $blocks:literal) => {
        Kernel {
            name: concat!($name, "_", $rows, "x", $columns),
            parameters: <$parameters>::LAYOUT,
            block: $block,
            min_blocks: $blocks,
            shared_bytes: shared_bytes($rows, $columns, $block),
            uses: Uses::MATRIX,
        }
    };
}

/// The file of the first convolution.
pub const STEM: Source = Source {
    name: "stem",
    text: include_str!("stem.cu"),
    kernels: &[stem(16), stem(32)],
};

const fn stem(columns: u32) -> Kernel {
    let name = match columns {
        16 => "stem_fprop_128x16",
        _ => "stem_fprop_128x32",
    };
    let rows = (128 + columns) * 56 * 2;
    let epilogue = 128 * (columns + 8) * 2 + 128 * 64;
    Kernel {
        name,
        parameters: ConvFprop::LAYOUT,
        block: 128,
        min_blocks: 4,
        shared_bytes: if rows > epilogue { rows } else { epilogue },
        uses: Uses {
            async_copies: false,
            ..Uses::MATRIX
        },
    }
}

macro_rules! wgrad {
    ($columns:literal) => {
        Kernel {
            name: concat!("conv_wgrad_64x", $columns),
            parameters: ConvWgrad::LAYOUT,
            block: 128,
            min_blocks: 4,
            shared_bytes: 3 * 32 * (64 + $columns) * 2,
            uses: Uses::MATRIX,
        }
    };
}

/// The file of the weights' gradients.
pub const WGRAD: Source = Source {
    name: "wgrad",
    text: include_str!("wgrad.cu"),
    kernels: &[
        wgrad!(16),
        wgrad!(32),
        wgrad!(64),
        Kernel::plain("stem_wgrad", ConvWgrad::LAYOUT, 256, 2),
        Kernel::plain("sum_ranges", SumRanges::LAYOUT, 256, 4),
    ],
};

/// The file.
pub const SOURCE: Source = Source {
    name: "conv",
    text: include_str!("conv.cu"),
    kernels: &[
        kernel!("conv_fprop", ConvFprop, 128, 16, 128, 4),
        kernel!("conv_fprop", ConvFprop, 128, 32, 128, 4),
        kernel!("conv_fprop", ConvFprop, 128, 64, 128, 3),
        kernel!("conv_fprop", ConvFprop, 64, 64, 128, 4),
        kernel!("conv_fprop", ConvFprop, 128, 128, 256, 2),
        kernel!("conv_dgrad", ConvDgrad, 128, 16, 128, 4),
        kernel!("conv_dgrad", ConvDgrad, 128, 32, 128, 4),
        kernel!("conv_dgrad", ConvDgrad, 128, 64, 128, 3),
        kernel!("conv_dgrad", ConvDgrad, 64, 64, 128, 4),
        kernel!("conv_dgrad", ConvDgrad, 128, 128, 256, 2),
    ],
};

//! The kernels of `step.cu` and `muon.cu`, and their parameters.

use crate::ops::cuda::{Kernel, Parameters, Source, Uses};

/// The floats of a row of rates, as `step_advance` hands them out: of weights, norms and biases, momentum, the share of
/// the model in its average, and AdamW's two corrections (of the mean; the root of that of the square).
pub const CONTROL_LEN: usize = 8;

crate::ops::params! {
    /// The length of a whole gradient.
    pub struct GradNorm {
        pub gradient: u64,
        /// f32 a block.
        pub partials: u64,
        pub counter: u64,
        /// f32: the length, and what the gradient is to be multiplied by.
        pub clip: u64,
        /// u32: how many steps had no number for a gradient.
        pub skipped: u64,
        pub count: u32,
        pub limit: f32,
    }
    /// One step; the grid is the pieces.
    pub struct OptStep {
        pub master: u64,
        pub gradient: u64,
        /// Momentum, or AdamW's mean.
        pub first: u64,
        /// AdamW's square; else 0.
        pub second: u64,
        pub average: u64,
        /// bf16, the weights that convolutions read; or 0.
        pub work: u64,
        /// u32, four a piece, as `Piece::words` gives them.
        pub pieces: u64,
        pub control: u64,
        pub clip: u64,
        pub weight_decay: f32,
        /// 1 for AdamW, 0 for gradient descent with Nesterov's momentum.
        pub adaptive: u32,
        pub mean_share: f32,
        pub square_keep: f32,
        pub square_share: f32,
        pub unused: u32,
    }
    /// The orthogonalised half of a step: `muon_momentum`, `muon_normalise`, five rounds of the three stages of
    /// `muon_product`, which change `x` and `y` over, `muon_apply`; then `opt_step`.
    pub struct Muon {
        pub master: u64,
        pub gradient: u64,
        pub memory: u64,
        /// f32, as long as all matrices together.
        pub x: u64,
        pub y: u64,
        /// f32, the shorter side squared for each matrix.
        pub gram: u64,
        pub square: u64,
        /// f32 a piece.
        pub partials: u64,
        /// u32: see [`MuonTables`].
        pub matrices: u64,
        pub pieces: u64,
        pub tiles: u64,
        pub control: u64,
        pub clip: u64,
        /// Of `muon_product`: 0 to 2.
        pub stage: u32,
        pub unused: u32,
    }
    /// `[output][tap][input]` to `[input][tap][output]`; the grid is the tiles.
    pub struct TurnWeights {
        pub weights: u64,
        pub turned: u64,
        /// u32, six each: offsets of source and target, padded outputs, padded inputs, taps, unused.
        pub matrices: u64,
        /// u32, four each: matrix, tap, first output, first input.
        pub tiles: u64,
    }
    /// One convolution's norm; the grid is its padded outputs.
    pub struct BnFold {
        /// f32, `row` for each output.
        pub weights: u64,
        pub gamma: u64,
        pub beta: u64,
        pub mean: u64,
        pub variance: u64,
        /// bf16, laid out alike.
        pub folded: u64,
        pub bias: u64,
        pub row: u32,
        pub epsilon: f32,
    }
}

/// What a piece of a flat vector is to the optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum PieceRole {
    Weight = 0,
    NormWeight = 1,
    Bias = 2,
    /// Running statistics and constants: they are only averaged.
    AveragedOnly = 3,
}

/// A stretch of the flat vectors that one block takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece {
    pub start: u32,
    pub count: u32,
    pub role: PieceRole,
    /// Multiplies the learning rate.
    pub scale: f32,
}

impl Piece {
    /// The most elements of a piece.
    pub const ELEMENTS_MAX: u32 = 4096;

    /// Cuts a tensor into pieces.
    pub fn cut(start: u32, count: u32, role: PieceRole, scale: f32) -> impl Iterator<Item = Self> {
        let step = Self::ELEMENTS_MAX;
        (0..count.div_ceil(step)).map(move |index| Self {
            start: start + index * step,
            count: step.min(count - index * step),
            role,
            scale,
        })
    }

    /// Returns what the kernel reads.
    pub fn words(&self) -> [u32; 4] {
        [
            self.start,
            self.count,
            self.role as u32,
            self.scale.to_bits(),
        ]
    }
}

/// What the kernels of `muon.cu` read of the matrices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MuonTables {
    /// Eight a matrix: offset in the flat vectors, rows, columns, places in `x` and `gram`, first piece, pieces, the
    /// bits of what the rate is multiplied by.
    pub matrices: Vec<u32>,
    /// Four a piece: matrix, start, count, unused.
    pub pieces: Vec<u32>,
    /// Four a tile of stages 0 and 1, and of stage 2: matrix, first row, first column, unused.
    pub square_tiles: Vec<u32>,
    pub wide_tiles: Vec<u32>,
    /// Floats of `x` and of `gram`.
    pub x_len: u32,
    pub gram_len: u32,
}

impl MuonTables {
    /// Adds a matrix.
    pub fn push(&mut self, offset: u32, [rows, columns]: [u32; 2], scale: f32) {
        let index = self.matrices.len() as u32 / 8;
        let pieces = Piece::cut(0, rows * columns, PieceRole::Weight, 1.0);
        let first = self.pieces.len() as u32 / 4;
        for piece in pieces {
            self.pieces.extend([index, piece.start, piece.count, 0]);
        }
        let count = self.pieces.len() as u32 / 4 - first;
        let (x, gram) = (self.x_len, self.gram_len);
        self.matrices.extend([
            offset,
            rows,
            columns,
            x,
            gram,
            first,
            count,
            scale.to_bits(),
        ]);
        let (short, long) = (rows.min(columns), rows.max(columns));
        for row in (0..short).step_by(64) {
            for column in (0..long).step_by(64) {
                self.wide_tiles.extend([index, row, column, 0]);
                if column < short {
                    self.square_tiles.extend([index, row, column, 0]);
                }
            }
        }
        self.x_len += rows * columns;
        self.gram_len += short * short;
    }
}

/// Returns the tiles of a matrix for `turn_weights`.
pub fn turn_tiles(matrix: u32, [outputs, taps, inputs]: [u32; 3]) -> Vec<u32> {
    let mut tiles = Vec::new();
    for tap in 0..taps {
        for output in (0..outputs).step_by(32) {
            for input in (0..inputs).step_by(32) {
                tiles.extend([matrix, tap, output, input]);
            }
        }
    }
    tiles
}

/// The file.
pub const SOURCE: Source = Source {
    name: "step",
    text: include_str!("step.cu"),
    kernels: &[
        Kernel::plain("grad_norm", GradNorm::LAYOUT, 256, 4),
        Kernel::plain("opt_step", OptStep::LAYOUT, 256, 4),
        Kernel::plain("turn_weights", TurnWeights::LAYOUT, 256, 4),
        Kernel::plain("bn_fold", BnFold::LAYOUT, 128, 4),
    ],
};

/// The orthogonalised half.
pub const MUON: Source = Source {
    name: "muon",
    text: include_str!("muon.cu"),
    kernels: &[
        Kernel::plain("muon_momentum", Muon::LAYOUT, 256, 4),
        Kernel::plain("muon_normalise", Muon::LAYOUT, 256, 4),
        Kernel {
            uses: Uses {
                tensor_cores: true,
                async_copies: false,
                matrix_loads: true,
            },
            ..Kernel::plain("muon_product", Muon::LAYOUT, 128, 3)
        },
        Kernel::plain("muon_apply", Muon::LAYOUT, 256, 4),
    ],
};

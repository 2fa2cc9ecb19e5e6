//! What a plan is made for. The graph, its launches and their buffers are the same for every device; how wide an element
//! is, and what a kernel needs beside its operands, are not.

use super::launch::{AttentionShape, BufferKind};
use super::{Mode, PlannedConvolution};
use crate::ops::attention;
use crate::ops::conv2d::Pass;
use crate::ops::conv2d::cuda::{ConvGeometry, ConvSize, ConvTile, WeightTile};
use crate::ops::cuda::View;

/// Multiprocessors of the largest GPU of the catalogue. Partial sums grow with them, a few megabytes in all, so a plan for
/// this one fits every other.
pub const MULTIPROCESSORS_MAX: u32 = 188;

/// Bytes of a pixel of the images on a GPU, which are held twice: one batch is made while the other is trained on.
const GPU_IMAGE_BYTES: u64 = 2 * 4;
/// Rates, random keys, metrics on their way to the host, flags.
const GPU_CONTROL_BYTES: u64 = 1 << 20;
/// What a driver's context and the loaded kernels take of a GPU's memory: a guess, to be replaced by a measurement.
const GPU_OVERHEAD_BYTES: u64 = 600 << 20;
/// Floats of one block's statistics of a channel: count, mean, squared deviations.
const STATISTICS: usize = 3;
/// Elements of a row of the first convolution's weights, on a GPU.
const STEM_ROW: usize = 48;
/// A split sum's blocks of the depthwise kernel, for each multiprocessor.
const DEPTHWISE_BLOCKS: usize = 4;

/// What runs a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Target {
    /// f32 throughout.
    #[default]
    Cpu,
    /// Tensors and weights in bf16; sums, norms and what the optimiser keeps in f32.
    Gpu { multiprocessors: u32 },
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    F32,
    Bf16,
}

impl Element {
    /// Returns the size.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl Target {
    /// Describes any GPU of the catalogue.
    pub fn gpu() -> Self {
        Self::Gpu {
            multiprocessors: MULTIPROCESSORS_MAX,
        }
    }

    /// Returns what a buffer of a kind holds.
    pub fn element(self, kind: BufferKind) -> Element {
        match (self, kind) {
            (
                Self::Gpu { .. },
                BufferKind::Activation
                | BufferKind::Raw
                | BufferKind::Gradient
                | BufferKind::Weights,
            ) => Element::Bf16,
            _ => Element::F32,
        }
    }

    /// Returns the bytes of a tensor's element.
    pub fn tensor_bytes(self) -> usize {
        self.element(BufferKind::Activation).bytes()
    }

    /// Returns the bytes, beside the arena, of a training batch of images and what steps are steered by.
    pub fn batch_bytes(self, pixels: u64) -> u64 {
        match self {
            Self::Cpu => 3 * pixels,
            Self::Gpu { .. } => GPU_IMAGE_BYTES * pixels + GPU_CONTROL_BYTES,
        }
    }

    /// Returns the bytes that are gone before anything is planned.
    pub fn overhead_bytes(self) -> u64 {
        match self {
            Self::Cpu => 0,
            Self::Gpu { .. } => GPU_OVERHEAD_BYTES,
        }
    }

    /// Returns whether sums are made in a workspace of double precision.
    pub fn has_sums(self) -> bool {
        self == Self::Cpu
    }

    /// Returns the floats of scratch memory of attention, backward for training. A GPU stores no logits; a number for each
    /// row is enough.
    pub fn attention_scratch_len(
        self,
        shape: &AttentionShape,
        thread_count: usize,
        mode: Mode,
    ) -> usize {
        match (self, mode) {
            (Self::Gpu { .. }, _) => attention::normalisers_len(shape),
            (Self::Cpu, Mode::Infer) => attention::scratch_len(shape, thread_count),
            (Self::Cpu, Mode::Train) => attention::backward_scratch_len(shape, thread_count),
        }
    }

    /// Returns the elements of a pass's packed weights.
    pub fn packed_len(self, planned: &PlannedConvolution, pass: Pass) -> usize {
        match (self, planned.dense_size()) {
            (Self::Cpu, _) => planned.packed_len(pass),
            (Self::Gpu { .. }, Some(size)) if size.is_image => size.output * STEM_ROW,
            (Self::Gpu { .. }, _) => planned.padded_weight_len(),
        }
    }

    /// Returns the floats of scratch memory that a pass needs.
    pub fn scratch_len(
        self,
        planned: &PlannedConvolution,
        pass: Pass,
        thread_count: usize,
    ) -> usize {
        let Self::Gpu { multiprocessors } = self else {
            return planned.scratch_len(pass, thread_count);
        };
        let Some(size) = planned.dense_size() else {
            let blocks = DEPTHWISE_BLOCKS * multiprocessors as usize;
            return match pass {
                Pass::Forward => STATISTICS * blocks * planned.output.channels,
                Pass::BackwardData => 0,
                Pass::BackwardWeights => blocks * planned.padded_weight_len(),
            };
        };
        let geometry = size.geometry();
        match pass {
            Pass::Forward => {
                let tile = ConvTile::choose(&geometry, multiprocessors);
                let [blocks, columns, _] = tile.fprop_grid(&geometry, multiprocessors);
                STATISTICS * blocks as usize * size.output + columns as usize
            }
            Pass::BackwardData => 0,
            Pass::BackwardWeights => {
                let tile = WeightTile::choose(&geometry);
                let ([ranges, _, _], _) = tile.grid(&geometry, multiprocessors);
                ranges as usize * self.packed_len(planned, pass)
            }
        }
    }
}

/// A dense convolution's extents, channels padded.
#[derive(Debug, Clone, Copy)]
pub(super) struct DenseSize {
    pub size: ConvSize,
    pub input: usize,
    pub output: usize,
    pub is_image: bool,
}

impl DenseSize {
    /// Describes its forward pass; nothing is at the pointers.
    fn geometry(&self) -> ConvGeometry {
        let view = |channels: usize| View {
            pointer: 0,
            pitch: channels as u32,
            channels: channels as u32,
        };
        let output = view(self.output);
        if self.is_image {
            ConvGeometry::stem(self.size, 0, 0, output)
        } else {
            ConvGeometry::forward(self.size, view(self.input), 0, output)
        }
    }
}

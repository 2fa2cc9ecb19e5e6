//! What a plan is made for. The graph, its launches and their buffers are the same for every device; how wide an element
//! is, and what a kernel needs beside its operands, are not.

use super::launch::{AttentionShape, BufferKind};
use super::{Mode, Operator, PlannedConvolution};
use crate::ops::attention;
use crate::ops::conv2d::Pass;
use crate::ops::conv2d::cuda::{ConvGeometry, ConvSize, ConvTile, STEM_ROW, WeightTile};
use crate::ops::cuda::View;

/// Multiprocessors of the largest GPU of the catalogue. Partial sums grow with them, a few megabytes in all, so a plan for
/// this one fits every other.
const MULTIPROCESSORS_MAX: u32 = 188;

/// Bytes of a pixel of the images on a GPU, which are held twice: one batch is made while the other is trained on.
const GPU_IMAGE_BYTES: u64 = 2 * 4;
/// Rates, random keys, metrics on their way to the host, flags.
const GPU_CONTROL_BYTES: u64 = 1 << 20;
/// What a driver's context and the loaded kernels take of a GPU's memory: a guess, to be replaced by a measurement.
const GPU_OVERHEAD_BYTES: u64 = 600 << 20;
/// Floats of one block's statistics of a channel: count, mean, squared deviations.
const STATISTICS: usize = 3;
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
        match (self, dense_size(planned)) {
            (Self::Cpu, _) => planned.packed_len(pass),
            (Self::Gpu { .. }, Some(size)) if size.is_image => size.output * STEM_ROW as usize,
            (Self::Gpu { .. }, _) => padded_weight_len(planned),
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
        let Some(size) = dense_size(planned) else {
            let blocks = DEPTHWISE_BLOCKS * multiprocessors as usize;
            return match pass {
                Pass::Forward => STATISTICS * blocks * planned.output.channels,
                Pass::BackwardData => 0,
                Pass::BackwardWeights => blocks * padded_weight_len(planned),
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

/// Returns the elements of a convolution's weights with padded channels.
fn padded_weight_len(planned: &PlannedConvolution) -> usize {
    let taps = planned.convolution.kernel * planned.convolution.kernel;
    let input = match &planned.operator {
        Operator::Dense(conv) => conv.shape().input.padded(),
        Operator::Depthwise(_) => 1,
        Operator::Transposed(conv) => conv.shape().input.padded(),
    };
    taps * planned.output_channels.padded() * input
}

/// A dense convolution's extents, channels padded.
#[derive(Debug, Clone, Copy)]
struct DenseSize {
    size: ConvSize,
    input: usize,
    output: usize,
    is_image: bool,
}

fn dense_size(planned: &PlannedConvolution) -> Option<DenseSize> {
    let Operator::Dense(conv) = &planned.operator else {
        return None;
    };
    let shape = conv.shape();
    let extent = |value: usize| value as u32;
    Some(DenseSize {
        size: ConvSize {
            images: extent(shape.batch),
            height: extent(shape.height),
            width: extent(shape.width),
            kernel: extent(shape.kernel),
            stride: extent(shape.stride),
        },
        input: shape.input.padded(),
        output: shape.output.padded(),
        is_image: shape.is_image,
    })
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

//! What a plan consists of: buffers with a place in the arena, and launches that read and write them. Nothing
//! here names a device: another one can replay the same list with its own kernels.

use super::target::Element;
pub use crate::ops::attention::AttentionShape;
use crate::ops::conv2d::Write;
pub use crate::ops::view::Extent;

/// Index into `Plan::buffers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub usize);

/// What a buffer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// Outputs of layers.
    Activation,
    /// Outputs of convolutions before their norm; kept for the backward pass.
    Raw,
    /// Gradients of activations.
    Gradient,
    /// Weights in the order the kernels read them, and padded biases.
    Weights,
    /// Vectors of a norm: mean, inverse deviation, scale, bias.
    Norm,
    /// What one launch needs for itself, or hands to the next.
    Scratch,
    /// Decoded predictions.
    Predictions,
}

/// A piece of the arena that is in use from one launch to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    pub name: String,
    pub kind: BufferKind,
    pub element: Element,
    /// Elements.
    pub length: usize,
    /// Where it starts in the arena, in floats.
    pub offset: usize,
    /// The launches of its first and last use, counted over forward and backward.
    pub first: usize,
    pub last: usize,
}

impl Buffer {
    /// Returns the floats that it takes of the arena.
    pub fn floats(&self) -> usize {
        (self.length * self.element.bytes()).div_ceil(size_of::<f32>())
    }

    /// Returns the size.
    pub fn bytes(&self) -> u64 {
        (self.length * self.element.bytes()) as u64
    }
}

/// Where a tensor lies: a range of the channels of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    pub buffer: BufferId,
    /// First float within a pixel.
    pub channel: usize,
    /// Floats of a pixel of the buffer.
    pub pixel_stride: usize,
}

/// What follows a convolution in the same launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// The batch's mean and variance of each channel, into the norm's vectors and the running statistics.
    Statistics { vectors: BufferId },
    /// A bias.
    Bias { bias: BufferId },
    /// The bias of a folded norm, the activation, another tensor.
    Folded {
        bias: BufferId,
        silu: bool,
        residual: Option<Slot>,
    },
}

/// A gradient that a launch writes on the side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    pub slot: Slot,
    pub write: Write,
}

/// One operation with its operands. `convolution` is an index into `Plan::convolutions`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kernel {
    /// A convolution; without an input it reads the images.
    Convolve {
        convolution: usize,
        input: Option<Slot>,
        output: Slot,
        packed: BufferId,
        scratch: Option<BufferId>,
        after: After,
    },
    /// Norm, activation and shortcut.
    Normalise {
        convolution: usize,
        raw: Slot,
        vectors: BufferId,
        residual: Option<Slot>,
        output: Slot,
    },
    MaxPool {
        extent: Extent,
        window: usize,
        input: Slot,
        output: Slot,
    },
    /// The mean of each image; `extent` is the input's.
    GlobalPool {
        extent: Extent,
        input: Slot,
        output: Slot,
    },
    /// `extent` is the input's.
    Upsample {
        extent: Extent,
        input: Slot,
        output: Slot,
    },
    Add {
        extent: Extent,
        left: Slot,
        right: Slot,
        output: Slot,
    },
    Copy {
        extent: Extent,
        input: Slot,
        output: Slot,
        write: Write,
    },
    Attend {
        shape: AttentionShape,
        input: Slot,
        attended: Slot,
        values: Slot,
        /// The logarithm of each softmax's sum, for the backward pass.
        normalisers: Option<BufferId>,
        scratch: BufferId,
    },
    /// Boxes, probabilities and extras of every anchor from the first branch of the head.
    Decode {
        output: BufferId,
    },
    /// The best decoded rows of each image, without suppression.
    Select {
        input: BufferId,
        output: BufferId,
        /// Per image.
        detections: usize,
    },
    /// Probabilities of classes from their logits.
    Softmax {
        extent: Extent,
        input: Slot,
        output: BufferId,
    },
    Zero {
        extent: Extent,
        output: Slot,
    },
    /// Through shortcut and activation; also sums what the norm needs. The gradient is changed in place.
    BackwardActivation {
        convolution: usize,
        raw: Slot,
        vectors: BufferId,
        gradient: Slot,
        residual: Option<Side>,
        coefficients: BufferId,
    },
    /// Through the norm, in place.
    BackwardNorm {
        convolution: usize,
        raw: Slot,
        vectors: BufferId,
        gradient: Slot,
        coefficients: BufferId,
    },
    BackwardBias {
        convolution: usize,
        gradient: Slot,
    },
    BackwardWeights {
        convolution: usize,
        input: Option<Slot>,
        gradient: Slot,
        scratch: Option<BufferId>,
    },
    BackwardData {
        convolution: usize,
        gradient: Slot,
        input_gradient: Slot,
        write: Write,
        packed: BufferId,
        scratch: Option<BufferId>,
    },
    /// Adds to the input's gradient.
    BackwardMaxPool {
        extent: Extent,
        window: usize,
        input: Slot,
        output: Slot,
        gradient: Slot,
        input_gradient: Slot,
    },
    BackwardUpsample {
        extent: Extent,
        gradient: Slot,
        input_gradient: Slot,
        write: Write,
    },
    /// `extent` is the input's.
    BackwardGlobalPool {
        extent: Extent,
        gradient: Slot,
        input_gradient: Slot,
        write: Write,
    },
    BackwardAttend {
        shape: AttentionShape,
        input: Slot,
        attended: Slot,
        normalisers: BufferId,
        attended_gradient: Slot,
        values_gradient: Slot,
        input_gradient: Slot,
        scratch: BufferId,
    },
}

impl Kernel {
    /// Returns the kind of launch, for profiles and listings.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Convolve { .. } => "convolve",
            Self::Normalise { .. } => "normalise",
            Self::MaxPool { .. } => "max-pool",
            Self::GlobalPool { .. } => "global-pool",
            Self::Upsample { .. } => "upsample",
            Self::Add { .. } => "add",
            Self::Copy { .. } => "copy",
            Self::Attend { .. } => "attend",
            Self::Decode { .. } => "decode",
            Self::Select { .. } => "select",
            Self::Softmax { .. } => "softmax",
            Self::Zero { .. } => "zero",
            Self::BackwardActivation { .. } => "backward activation",
            Self::BackwardNorm { .. } => "backward norm",
            Self::BackwardBias { .. } => "backward bias",
            Self::BackwardWeights { .. } => "backward weights",
            Self::BackwardData { .. } => "backward data",
            Self::BackwardMaxPool { .. } => "backward max-pool",
            Self::BackwardUpsample { .. } => "backward upsample",
            Self::BackwardGlobalPool { .. } => "backward global-pool",
            Self::BackwardAttend { .. } => "backward attend",
        }
    }

    /// Returns the convolution the launch belongs to.
    pub fn convolution(&self) -> Option<usize> {
        match *self {
            Self::Convolve { convolution, .. }
            | Self::Normalise { convolution, .. }
            | Self::BackwardActivation { convolution, .. }
            | Self::BackwardNorm { convolution, .. }
            | Self::BackwardBias { convolution, .. }
            | Self::BackwardWeights { convolution, .. }
            | Self::BackwardData { convolution, .. } => Some(convolution),
            _ => None,
        }
    }

    /// Returns every buffer the launch touches.
    pub fn buffers(&self) -> Vec<BufferId> {
        let slots = |slots: &[Slot]| slots.iter().map(|slot| slot.buffer).collect::<Vec<_>>();
        let with = |mut buffers: Vec<BufferId>, more: &[Option<BufferId>]| {
            buffers.extend(more.iter().flatten());
            buffers
        };
        match *self {
            Self::Convolve {
                input,
                output,
                packed,
                scratch,
                after,
                ..
            } => {
                let (vector, residual) = match after {
                    After::Statistics { vectors } => (vectors, None),
                    After::Bias { bias } => (bias, None),
                    After::Folded { bias, residual, .. } => (bias, residual),
                };
                let rest = [
                    Some(packed),
                    Some(vector),
                    scratch,
                    input.map(|slot| slot.buffer),
                    residual.map(|slot| slot.buffer),
                ];
                with(slots(&[output]), &rest)
            }
            Self::Normalise {
                raw,
                vectors,
                residual,
                output,
                ..
            } => {
                let rest = [Some(vectors), residual.map(|slot| slot.buffer)];
                with(slots(&[raw, output]), &rest)
            }
            Self::MaxPool { input, output, .. }
            | Self::GlobalPool { input, output, .. }
            | Self::Upsample { input, output, .. }
            | Self::Copy { input, output, .. } => slots(&[input, output]),
            Self::Add {
                left,
                right,
                output,
                ..
            } => slots(&[left, right, output]),
            Self::Attend {
                input,
                attended,
                values,
                normalisers,
                scratch,
                ..
            } => with(
                slots(&[input, attended, values]),
                &[normalisers, Some(scratch)],
            ),
            Self::Decode { output } => vec![output],
            Self::Select { input, output, .. } => vec![input, output],
            Self::Softmax { input, output, .. } => with(slots(&[input]), &[Some(output)]),
            Self::Zero { output, .. } => slots(&[output]),
            Self::BackwardActivation {
                raw,
                vectors,
                gradient,
                residual,
                coefficients,
                ..
            } => {
                let rest = [
                    Some(vectors),
                    Some(coefficients),
                    residual.map(|side| side.slot.buffer),
                ];
                with(slots(&[raw, gradient]), &rest)
            }
            Self::BackwardNorm {
                raw,
                vectors,
                gradient,
                coefficients,
                ..
            } => with(
                slots(&[raw, gradient]),
                &[Some(vectors), Some(coefficients)],
            ),
            Self::BackwardBias { gradient, .. } => slots(&[gradient]),
            Self::BackwardWeights {
                input,
                gradient,
                scratch,
                ..
            } => with(
                slots(&[gradient]),
                &[input.map(|slot| slot.buffer), scratch],
            ),
            Self::BackwardData {
                gradient,
                input_gradient,
                packed,
                scratch,
                ..
            } => with(slots(&[gradient, input_gradient]), &[Some(packed), scratch]),
            Self::BackwardMaxPool {
                input,
                output,
                gradient,
                input_gradient,
                ..
            } => slots(&[input, output, gradient, input_gradient]),
            Self::BackwardUpsample {
                gradient,
                input_gradient,
                ..
            }
            | Self::BackwardGlobalPool {
                gradient,
                input_gradient,
                ..
            } => slots(&[gradient, input_gradient]),
            Self::BackwardAttend {
                input,
                attended,
                normalisers,
                attended_gradient,
                values_gradient,
                input_gradient,
                scratch,
                ..
            } => {
                let views = [
                    input,
                    attended,
                    attended_gradient,
                    values_gradient,
                    input_gradient,
                ];
                with(slots(&views), &[Some(normalisers), Some(scratch)])
            }
        }
    }
}

/// One entry of the list that a device replays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// The module it belongs to.
    pub name: String,
    pub kernel: Kernel,
    /// Multiplications and additions of convolutions and products of matrices.
    pub flops: u64,
    /// Bytes of tensors read and written, each counted once.
    pub bytes: u64,
}

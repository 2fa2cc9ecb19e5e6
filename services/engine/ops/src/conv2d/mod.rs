//! Two-dimensional convolution: NHWC, one group, odd kernel `k`, stride `s`, padding `k / 2`, in three passes.
//!
//! [`Conv2d`] is made once per shape and holds every choice; its passes allocate nothing but the bias's few partial
//! sums. Weights are repacked from the canonical OIHW vector once per step ([`Conv2d::pack`]); gradients are added to
//! it in that layout. Results are the same bits for any number of threads.

mod bias;
pub mod cuda;
mod direct;
mod epilogue;
mod geometry;
mod kernels;
mod packing;
mod reference;
mod source;
mod weights;
mod winograd;

use std::cell::Cell;

use self::geometry::Gather;
use self::source::Source;
use self::weights::Cut;
use crate::parallel::Threads;
use crate::simd::Level;
use crate::view::{Channels, View};

/// The colours of an image input.
pub const IMAGE_CHANNELS: usize = 3;

/// What a convolution is applied to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub input: Channels,
    pub output: Channels,
    /// Odd.
    pub kernel: usize,
    pub stride: usize,
    /// The input is an [`Input::Bytes`] or [`Input::Floats`] of three interleaved colours, not a view.
    pub is_image: bool,
}

impl Shape {
    /// Returns the rows of the output.
    pub fn output_height(&self) -> usize {
        self.height.div_ceil(self.stride)
    }

    /// Returns the columns of the output.
    pub fn output_width(&self) -> usize {
        self.width.div_ceil(self.stride)
    }

    /// Returns the pixels of the whole input batch.
    pub fn input_pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Returns the pixels of the whole output batch.
    pub fn output_pixels(&self) -> usize {
        self.batch * self.output_height() * self.output_width()
    }

    /// Returns the elements of the canonical OIHW weights.
    pub fn weight_len(&self) -> usize {
        self.output.count() * self.input.count() * self.kernel * self.kernel
    }

    /// Returns the useful floating-point operations of one pass (each pass has the same number).
    pub fn flops(&self) -> u64 {
        2 * self.weight_len() as u64 * self.output_pixels() as u64
    }
}

/// Which way a convolution is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// `y = x * w`.
    Forward,
    /// `dx` from `dy`.
    BackwardData,
    /// `dw` from `x` and `dy`.
    BackwardWeights,
}

/// How a convolution is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Plain loops, the yardstick of the others.
    Reference,
    /// Register tiles over the input as it is.
    Direct,
    /// F(4 × 4, 3 × 3), for kernel 3 and stride 1 only: a quarter of the multiplications, 1e-6 relative error.
    Winograd,
}

/// How operands are rounded before they are multiplied; sums are always f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Not at all.
    #[default]
    F32,
    /// To bf16 in direct convolution of views; images and Winograd stay f32, which for Winograd is faster still.
    Mixed,
}

/// Choices of how it is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// The default is the fastest for the shape; `Winograd` means `Direct` for shapes that it can't do.
    pub algorithm: Option<Algorithm>,
    /// The default is the best of the machine. Mixed precision has one level of its own.
    pub level: Option<Level>,
    pub precision: Precision,
}

/// Where the input comes from.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    View(View<'a>),
    /// RGB bytes, NHWC; divided by 255 as they are read.
    Bytes(&'a [u8]),
    /// RGB floats, NHWC.
    Floats(&'a [f32]),
}

/// What happens to an output while it is still in registers, in this order.
#[derive(Debug, Default)]
pub struct Epilogue<'a> {
    /// One value per padded output channel (see [`Channels::spread`]), added.
    pub bias: Option<&'a [f32]>,
    /// Applies x·σ(x).
    pub silu: bool,
    /// A tensor of the output's shape, added after the activation.
    pub residual: Option<View<'a>>,
    /// Receives the sum of each padded output channel, then the sum of squares of each.
    pub statistics: Option<&'a mut [f64]>,
}

/// Whether a gradient replaces what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    Overwrite,
    Accumulate,
}

/// A convolution made ready for one shape.
#[derive(Debug, Clone)]
pub struct Conv2d {
    shape: Shape,
    level: Level,
    way: Way,
}

/// An algorithm with its plans.
#[derive(Debug, Clone)]
enum Way {
    Reference,
    Direct(Box<DirectPlans>),
    Winograd(Box<WinogradPlans>),
}

#[derive(Debug, Clone)]
struct DirectPlans {
    forward: Gather,
    backward_data: Gather,
    backward_weights: Cut,
}

impl DirectPlans {
    fn new(shape: &Shape, precision: Precision) -> Self {
        let is_rounded = precision == Precision::Mixed && !shape.is_image;
        Self {
            forward: Gather::new(shape, Pass::Forward, is_rounded),
            backward_data: Gather::new(shape, Pass::BackwardData, is_rounded),
            backward_weights: Cut::new(
                Gather::new(shape, Pass::BackwardWeights, false),
                is_rounded,
            ),
        }
    }
}

#[derive(Debug, Clone)]
struct WinogradPlans {
    forward: winograd::Plan,
    backward_data: winograd::Plan,
    backward_weights: winograd::Plan,
}

impl WinogradPlans {
    fn new(shape: &Shape) -> Self {
        Self {
            forward: winograd::Plan::new(shape, Pass::Forward),
            backward_data: winograd::Plan::new(shape, Pass::BackwardData),
            backward_weights: winograd::Plan::new(shape, Pass::BackwardWeights),
        }
    }
}

impl Conv2d {
    /// Makes the choices for a shape.
    pub fn new(shape: Shape, options: Options) -> Self {
        assert!(shape.kernel % 2 == 1, "invariant: kernels are odd");
        assert!(
            shape.stride > 0 && shape.batch > 0 && shape.height > 0 && shape.width > 0,
            "invariant: a convolution has pixels and a stride"
        );
        assert!(
            !shape.is_image || shape.input == Channels::new(IMAGE_CHANNELS),
            "invariant: images have three channels"
        );
        let algorithm = match options.algorithm {
            Some(Algorithm::Winograd) if !winograd::is_possible(&shape) => Algorithm::Direct,
            Some(algorithm) => algorithm,
            None if winograd::is_faster(&shape) => Algorithm::Winograd,
            None => Algorithm::Direct,
        };
        Self {
            level: options.level.unwrap_or_else(Level::best),
            way: match algorithm {
                Algorithm::Reference => Way::Reference,
                Algorithm::Direct => {
                    Way::Direct(Box::new(DirectPlans::new(&shape, options.precision)))
                }
                Algorithm::Winograd => Way::Winograd(Box::new(WinogradPlans::new(&shape))),
            },
            shape,
        }
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the algorithm that was chosen.
    pub fn algorithm(&self) -> Algorithm {
        match self.way {
            Way::Reference => Algorithm::Reference,
            Way::Direct(_) => Algorithm::Direct,
            Way::Winograd(_) => Algorithm::Winograd,
        }
    }

    /// Returns the instruction set that is used.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the floats of a pass's packed weights; `BackwardWeights` needs none.
    pub fn packed_len(&self, pass: Pass) -> usize {
        match &self.way {
            Way::Reference => reference::packed_len(&self.shape, pass),
            Way::Direct(plans) => match pass {
                Pass::Forward => plans.forward.packed_len,
                Pass::BackwardData => plans.backward_data.packed_len,
                Pass::BackwardWeights => 0,
            },
            Way::Winograd(plans) => match pass {
                Pass::Forward => plans.forward.packed_len(),
                Pass::BackwardData => plans.backward_data.packed_len(),
                Pass::BackwardWeights => 0,
            },
        }
    }

    /// Returns the floats of scratch memory that a pass needs with a number of threads.
    pub fn scratch_len(&self, pass: Pass, thread_count: usize) -> usize {
        match &self.way {
            Way::Reference => 0,
            Way::Direct(plans) => match pass {
                Pass::Forward => direct::scratch_len(&plans.forward, true, thread_count),
                Pass::BackwardData => {
                    direct::scratch_len(&plans.backward_data, false, thread_count)
                }
                Pass::BackwardWeights => plans.backward_weights.scratch_len(thread_count),
            },
            Way::Winograd(plans) => match pass {
                Pass::Forward => plans.forward.gather_scratch_len(true, thread_count),
                Pass::BackwardData => plans.backward_data.gather_scratch_len(false, thread_count),
                Pass::BackwardWeights => plans.backward_weights.weights_scratch_len(thread_count),
            },
        }
    }

    /// Packs canonical OIHW weights for a pass.
    pub fn pack(&self, threads: &Threads, pass: Pass, weights: &[f32], packed: &mut [f32]) {
        assert_eq!(weights.len(), self.shape.weight_len(), "invariant: OIHW");
        assert_eq!(packed.len(), self.packed_len(pass), "invariant: packed");
        match &self.way {
            Way::Reference => reference::pack(&self.shape, weights, packed),
            Way::Direct(plans) => {
                let geometry = match pass {
                    Pass::Forward => &plans.forward,
                    Pass::BackwardData => &plans.backward_data,
                    Pass::BackwardWeights => return,
                };
                packing::pack(&self.shape, geometry, threads, pass, weights, packed);
            }
            Way::Winograd(plans) => {
                let plan = match pass {
                    Pass::Forward => &plans.forward,
                    Pass::BackwardData => &plans.backward_data,
                    Pass::BackwardWeights => return,
                };
                winograd::pack(
                    &self.shape,
                    plan,
                    self.level,
                    threads,
                    pass,
                    weights,
                    packed,
                );
            }
        }
    }

    /// Computes `output = input * weights`, overwriting it, padding included.
    pub fn forward(
        &self,
        threads: &Threads,
        input: Input<'_>,
        packed: &[f32],
        output: View<'_>,
        epilogue: Epilogue<'_>,
        scratch: &[Cell<f32>],
    ) {
        let shape = &self.shape;
        self.check_input(input);
        self.check_scratch(Pass::Forward, threads, packed, scratch);
        let output_extent = (shape.output_pixels(), shape.output.padded());
        if let Input::View(view) = input {
            let input_extent = (shape.input_pixels(), shape.input.padded());
            assert!(
                view.is_disjoint(input_extent, &output, output_extent),
                "invariant: a convolution does not overwrite its input"
            );
        }
        if let Some(bias) = epilogue.bias {
            assert_eq!(bias.len(), shape.output.padded(), "invariant: bias");
        }
        if let Some(statistics) = &epilogue.statistics {
            assert_eq!(
                statistics.len(),
                2 * shape.output.padded(),
                "invariant: statistics"
            );
        }
        let operands = direct::Operands {
            source: Source::new(shape, input),
            packed,
            target: output,
            write: Write::Overwrite,
            epilogue,
        };
        match &self.way {
            Way::Reference => {
                reference::forward(shape, threads, input, packed, output, operands.epilogue);
            }
            Way::Direct(plans) => {
                direct::run(&plans.forward, self.level, threads, operands, scratch);
            }
            Way::Winograd(plans) => {
                winograd::run(&plans.forward, self.level, threads, operands, scratch);
            }
        }
    }

    /// Computes the gradient of the input from that of the output.
    pub fn backward_data(
        &self,
        threads: &Threads,
        output_gradient: View<'_>,
        packed: &[f32],
        input_gradient: View<'_>,
        write: Write,
        scratch: &[Cell<f32>],
    ) {
        let shape = &self.shape;
        assert!(!shape.is_image, "invariant: images have no gradient");
        self.check_scratch(Pass::BackwardData, threads, packed, scratch);
        assert!(
            output_gradient.is_disjoint(
                (shape.output_pixels(), shape.output.padded()),
                &input_gradient,
                (shape.input_pixels(), shape.input.padded()),
            ),
            "invariant: a convolution does not overwrite its output's gradient"
        );
        let pixels = shape.output_pixels();
        let operands = direct::Operands {
            source: Source::View(output_gradient.raw(pixels, shape.output.padded())),
            packed,
            target: input_gradient,
            write,
            epilogue: Epilogue::default(),
        };
        match &self.way {
            Way::Reference => {
                reference::backward_data(
                    shape,
                    threads,
                    output_gradient,
                    packed,
                    input_gradient,
                    write,
                );
            }
            Way::Direct(plans) => {
                direct::run(&plans.backward_data, self.level, threads, operands, scratch);
            }
            Way::Winograd(plans) => {
                winograd::run(&plans.backward_data, self.level, threads, operands, scratch);
            }
        }
    }

    /// Adds the gradient of the canonical OIHW weights.
    pub fn backward_weights(
        &self,
        threads: &Threads,
        input: Input<'_>,
        output_gradient: View<'_>,
        weight_gradient: &mut [f32],
        scratch: &[Cell<f32>],
    ) {
        self.check_input(input);
        self.check_scratch(Pass::BackwardWeights, threads, &[], scratch);
        assert_eq!(
            weight_gradient.len(),
            self.shape.weight_len(),
            "invariant: OIHW"
        );
        match &self.way {
            Way::Reference => {
                reference::backward_weights(
                    &self.shape,
                    threads,
                    input,
                    output_gradient,
                    weight_gradient,
                );
            }
            Way::Direct(plans) => {
                weights::run(
                    &self.shape,
                    &plans.backward_weights,
                    self.level,
                    threads,
                    Source::new(&self.shape, input),
                    output_gradient,
                    weight_gradient,
                    scratch,
                );
            }
            Way::Winograd(plans) => {
                winograd::backward_weights(
                    &self.shape,
                    &plans.backward_weights,
                    self.level,
                    threads,
                    Source::new(&self.shape, input),
                    output_gradient,
                    weight_gradient,
                    scratch,
                );
            }
        }
    }

    /// Adds the gradient of the bias, one value per real output channel: the sum of the output's gradient.
    pub fn backward_bias(
        &self,
        threads: &Threads,
        output_gradient: View<'_>,
        bias_gradient: &mut [f32],
    ) {
        assert_eq!(
            bias_gradient.len(),
            self.shape.output.count(),
            "invariant: one bias per output channel"
        );
        bias::backward(
            &self.shape,
            self.level,
            threads,
            output_gradient,
            bias_gradient,
        );
    }

    fn check_input(&self, input: Input<'_>) {
        let shape = &self.shape;
        let image_len = shape.input_pixels() * IMAGE_CHANNELS;
        match input {
            Input::View(view) => {
                assert!(
                    !shape.is_image,
                    "invariant: an image convolution reads images"
                );
                view.check(shape.input_pixels(), shape.input.padded());
            }
            Input::Bytes(bytes) => {
                assert!(
                    shape.is_image && bytes.len() == image_len,
                    "invariant: images fit"
                );
            }
            Input::Floats(floats) => {
                assert!(
                    shape.is_image && floats.len() == image_len,
                    "invariant: images fit"
                );
            }
        }
    }

    fn check_scratch(&self, pass: Pass, threads: &Threads, packed: &[f32], scratch: &[Cell<f32>]) {
        assert_eq!(packed.len(), self.packed_len(pass), "invariant: packed");
        assert!(
            scratch.len() >= self.scratch_len(pass, threads.count()),
            "invariant: scratch memory is as long as asked for"
        );
    }
}

#[cfg(test)]
mod tests;

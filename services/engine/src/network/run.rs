//! Runs launches on the CPU: looks up a launch's operands in the arena and calls its operation.
#![expect(
    unsafe_code,
    reason = "plain slices of arena buffers that the plan keeps apart"
)]

use std::cell::Cell;

use super::arena::Arena;
use super::{State, outputs};
use crate::decode::{self, Decoder};
use crate::graph::{Convolution, Graph, ValueId};
use crate::ops::conv2d::{Epilogue, Input, Pass};
use crate::ops::norm::{self, Coefficients, Learnt, Vectors};
use crate::ops::view::View;
use crate::ops::{attention, elementwise, global_pool, max_pool, upsample};
use crate::parallel::Threads;
use crate::plan::{After, BufferId, Extent, Kernel, Operator, Plan, PlannedConvolution, Slot};

/// What launches work on beside the arena.
pub(super) enum Subject<'a> {
    /// Running statistics move.
    Train(&'a mut State),
    /// Weights are folded and packed already.
    Infer,
    /// The gradient is added to.
    Backward(&'a State, &'a mut [f32]),
}

/// Everything a launch needs.
pub(super) struct Runner<'a> {
    pub plan: &'a Plan,
    pub arena: &'a Arena,
    pub threads: &'a Threads,
    pub sums: &'a mut [f64],
    pub images: Input<'a>,
    pub subject: Subject<'a>,
    /// For each convolution whether its norm keeps the running statistics; empty when none does.
    pub frozen: &'a [bool],
}

fn is_frozen(frozen: &[bool], convolution: usize) -> bool {
    frozen.get(convolution).copied().unwrap_or(false)
}

impl Runner<'_> {
    /// Runs one launch.
    pub fn run(&mut self, kernel: &Kernel) {
        let threads = self.threads;
        match *kernel {
            Kernel::Convolve { .. } => self.convolve(kernel),
            Kernel::Normalise {
                convolution,
                raw,
                vectors,
                residual,
                output,
            } => norm::apply(
                threads,
                self.norm_shape(convolution),
                self.view(raw),
                Vectors::split(self.read(vectors)),
                residual.map(|slot| self.view(slot)),
                self.view(output),
            ),
            Kernel::MaxPool {
                extent,
                window,
                input,
                output,
            } => max_pool::forward(threads, extent, window, self.view(input), self.view(output)),
            Kernel::Upsample {
                extent,
                input,
                output,
            } => upsample::forward(threads, extent, self.view(input), self.view(output)),
            Kernel::GlobalPool {
                extent,
                input,
                output,
            } => global_pool::forward(threads, extent, self.view(input), self.view(output)),
            Kernel::Add {
                extent,
                left,
                right,
                output,
            } => elementwise::add(
                threads,
                size(extent),
                [self.view(left), self.view(right)],
                self.view(output),
            ),
            Kernel::Copy {
                extent,
                input,
                output,
                write,
            } => elementwise::copy(
                threads,
                size(extent),
                self.view(input),
                self.view(output),
                write,
            ),
            Kernel::Zero { extent, output } => {
                elementwise::zero(threads, size(extent), self.view(output));
            }
            Kernel::Attend {
                ref shape,
                input,
                attended,
                values,
                normalisers,
                scratch,
            } => {
                let pass = attention::Forward {
                    input: self.view(input),
                    attended: self.view(attended),
                    values: self.view(values),
                    normalisers: normalisers.map(|id| self.cells(id)),
                    scratch: self.cells(scratch),
                };
                attention::forward(threads, shape, pass);
            }
            Kernel::Decode { output } => {
                let outputs = outputs::read(self.plan, self.arena);
                let decoder = Decoder::new(&self.plan.spec);
                decoder.anchors(threads, &outputs.branches[0], self.write(output));
            }
            Kernel::Select {
                input,
                output,
                detections,
            } => {
                let decoder = Decoder::new(&self.plan.spec);
                let batch = self.plan.shape.batch;
                let (rows, output) = (self.read(input), self.write(output));
                decoder.select(threads, batch, detections, rows, output);
            }
            Kernel::Softmax {
                extent,
                input,
                output,
            } => {
                let class_count = self.plan.spec.class_count;
                let input = self.view(input);
                decode::softmax(extent.batch, class_count, input, self.write(output));
            }
            _ => self.run_backward(kernel),
        }
    }

    fn run_backward(&mut self, kernel: &Kernel) {
        let threads = self.threads;
        match *kernel {
            Kernel::BackwardActivation { .. } => self.backward_activation(kernel),
            Kernel::BackwardNorm {
                convolution,
                raw,
                vectors,
                gradient,
                coefficients,
            } => norm::backward_norm(
                threads,
                self.norm_shape(convolution),
                self.view(raw),
                Vectors::split(self.read(vectors)),
                Coefficients::split(self.read(coefficients)),
                self.view(gradient),
            ),
            Kernel::BackwardBias { .. }
            | Kernel::BackwardWeights { .. }
            | Kernel::BackwardData { .. } => self.backward_convolution(kernel),
            Kernel::BackwardMaxPool {
                extent,
                window,
                input,
                output,
                gradient,
                input_gradient,
            } => {
                let pass = max_pool::Backward {
                    input: self.view(input),
                    output: self.view(output),
                    gradient: self.view(gradient),
                    input_gradient: self.view(input_gradient),
                };
                max_pool::backward(threads, extent, window, pass);
            }
            Kernel::BackwardUpsample {
                extent,
                gradient,
                input_gradient,
                write,
            } => upsample::backward(
                threads,
                extent,
                self.view(gradient),
                self.view(input_gradient),
                write,
            ),
            Kernel::BackwardGlobalPool {
                extent,
                gradient,
                input_gradient,
                write,
            } => global_pool::backward(
                threads,
                extent,
                self.view(gradient),
                self.view(input_gradient),
                write,
            ),
            Kernel::BackwardAttend {
                ref shape,
                input,
                attended,
                normalisers,
                attended_gradient,
                values_gradient,
                input_gradient,
                scratch,
            } => {
                let pass = attention::Backward {
                    input: self.view(input),
                    attended: self.view(attended),
                    normalisers: self.cells(normalisers),
                    attended_gradient: self.view(attended_gradient),
                    values_gradient: self.view(values_gradient),
                    input_gradient: self.view(input_gradient),
                    scratch: self.cells(scratch),
                };
                attention::backward(threads, shape, pass);
            }
            _ => unreachable!("invariant: every kernel has an arm here or in `run`"),
        }
    }

    fn convolve(&mut self, kernel: &Kernel) {
        let Kernel::Convolve {
            convolution,
            input,
            output,
            packed,
            scratch,
            after,
        } = *kernel
        else {
            unreachable!("invariant: called for convolutions");
        };
        let plan = self.plan;
        let planned = &plan.convolutions[convolution];
        let input = input.map_or(self.images, |slot| Input::View(self.view(slot)));
        if let Subject::Train(state) = &self.subject {
            let weights = parameter(&plan.graph, &state.parameters, planned.convolution.weight);
            pack(
                self.threads,
                planned,
                Pass::Forward,
                weights,
                self.write(packed),
            );
        }
        match after {
            After::Statistics { vectors } => {
                let count = 2 * planned.output.channels;
                let statistics = std::mem::take(&mut self.sums);
                let epilogue = Epilogue {
                    statistics: Some(&mut statistics[..count]),
                    ..Epilogue::default()
                };
                self.forward_pass(planned, input, packed, output, epilogue, scratch);
                self.sums = statistics;
                self.finish_statistics(convolution, vectors);
            }
            After::Bias { bias } => {
                let values = self.write(bias);
                if let (Subject::Train(state), Some(index)) =
                    (&self.subject, planned.convolution.bias)
                {
                    let learnt = parameter(&plan.graph, &state.parameters, index);
                    planned.output_channels.spread(learnt, values);
                }
                let epilogue = Epilogue {
                    bias: Some(values),
                    ..Epilogue::default()
                };
                self.forward_pass(planned, input, packed, output, epilogue, scratch);
            }
            After::Folded {
                bias,
                silu,
                residual,
            } => {
                let epilogue = Epilogue {
                    bias: Some(self.read(bias)),
                    silu,
                    residual: residual.map(|slot| self.view(slot)),
                    statistics: None,
                };
                self.forward_pass(planned, input, packed, output, epilogue, scratch);
            }
        }
    }

    fn forward_pass(
        &self,
        planned: &PlannedConvolution,
        input: Input<'_>,
        packed: BufferId,
        output: Slot,
        epilogue: Epilogue<'_>,
        scratch: Option<BufferId>,
    ) {
        let packed = self.read(packed);
        let output = self.view(output);
        let scratch = self.scratch(scratch);
        match (&planned.operator, input) {
            (Operator::Dense(conv), input) => {
                conv.forward(self.threads, input, packed, output, epilogue, scratch);
            }
            (Operator::Depthwise(conv), Input::View(input)) => {
                conv.forward(self.threads, input, packed, output, epilogue, scratch);
            }
            (Operator::Transposed(conv), Input::View(input)) => {
                let bias = epilogue
                    .bias
                    .expect("invariant: transposed convolutions have a bias");
                conv.forward(self.threads, input, packed, bias, output, scratch);
            }
            _ => unreachable!("invariant: models start with a dense convolution"),
        }
    }

    /// Turns the sums of a convolution's output into the vectors of its norm.
    fn finish_statistics(&mut self, convolution: usize, vectors: BufferId) {
        let graph = &self.plan.graph;
        let planned = &self.plan.convolutions[convolution];
        let vectors = self.write(vectors);
        let (Subject::Train(state), Some(indices)) = (&mut self.subject, planned.convolution.norm)
        else {
            unreachable!("invariant: statistics are for norms in training");
        };
        let learnt = Learnt {
            weight: parameter(graph, &state.parameters, indices.weight),
            bias: parameter(graph, &state.parameters, indices.bias),
            constants: indices.constants,
        };
        let ranges = [indices.mean, indices.variance].map(|index| graph.buffers[index].range());
        if is_frozen(self.frozen, convolution) {
            let running = ranges.map(|range| &state.buffers[range]);
            norm::keep_statistics(&planned.output_channels, learnt, running, vectors);
            return;
        }
        let running = state
            .buffers
            .get_disjoint_mut(ranges)
            .expect("invariant: tensors of the table do not overlap");
        norm::finish_statistics(
            &self.sums[..2 * planned.output.channels],
            planned.output.pixels(),
            &planned.output_channels,
            learnt,
            running,
            vectors,
        );
    }

    fn backward_activation(&mut self, kernel: &Kernel) {
        let Kernel::BackwardActivation {
            convolution,
            raw,
            vectors,
            gradient,
            residual,
            coefficients,
        } = *kernel
        else {
            unreachable!("invariant: called for activations");
        };
        let plan = self.plan;
        let planned = &plan.convolutions[convolution];
        let shape = self.norm_shape(convolution);
        let vectors = Vectors::split(self.read(vectors));
        let written = coefficients;
        let coefficients = self.write(written);
        let (raw, view) = (self.view(raw), self.view(gradient));
        let residual = residual.map(|side| (self.view(side.slot), side.write));
        let (Subject::Backward(_, gradient), Some(indices)) =
            (&mut self.subject, planned.convolution.norm)
        else {
            unreachable!("invariant: norms go backward in training");
        };
        let ranges =
            [indices.weight, indices.bias].map(|index| plan.graph.parameters[index].range());
        let [weight_gradient, bias_gradient] = gradient
            .get_disjoint_mut(ranges)
            .expect("invariant: tensors of the table do not overlap");
        let pass = norm::BackwardActivation {
            raw,
            vectors,
            gradient: view,
            residual,
            channels: &planned.output_channels,
            weight_gradient,
            bias_gradient,
            coefficients,
            sums: self.sums,
        };
        norm::backward_activation(self.threads, shape, pass);
        if is_frozen(self.frozen, convolution) {
            // Statistics that don't depend on the batch send nothing back.
            self.write(written).fill(0.0);
        }
    }

    fn backward_convolution(&mut self, kernel: &Kernel) {
        let plan = self.plan;
        match *kernel {
            Kernel::BackwardBias {
                convolution,
                gradient,
            } => {
                let planned = &plan.convolutions[convolution];
                let view = self.view(gradient);
                let (threads, bias) = (self.threads, planned.convolution.bias);
                let index = bias.expect("invariant: only biases have their gradient made");
                let target = self.gradient_of(index);
                match &planned.operator {
                    Operator::Dense(conv) => conv.backward_bias(threads, view, target),
                    Operator::Transposed(conv) => conv.backward_bias(threads, view, target),
                    Operator::Depthwise(_) => {
                        unreachable!("invariant: depthwise convolutions have norms")
                    }
                }
            }
            Kernel::BackwardWeights {
                convolution,
                input,
                gradient,
                scratch,
            } => {
                let planned = &plan.convolutions[convolution];
                let input = input.map_or(self.images, |slot| Input::View(self.view(slot)));
                let (threads, view) = (self.threads, self.view(gradient));
                let scratch = self.scratch(scratch);
                let target = self.gradient_of(planned.convolution.weight);
                match (&planned.operator, input) {
                    (Operator::Dense(conv), input) => {
                        conv.backward_weights(threads, input, view, target, scratch);
                    }
                    (Operator::Depthwise(conv), Input::View(input)) => {
                        conv.backward_weights(threads, input, view, target, scratch);
                    }
                    (Operator::Transposed(conv), Input::View(input)) => {
                        conv.backward_weights(threads, input, view, target, scratch);
                    }
                    _ => unreachable!("invariant: models start with a dense convolution"),
                }
            }
            Kernel::BackwardData {
                convolution,
                gradient,
                input_gradient,
                write,
                packed,
                scratch,
            } => {
                let planned = &plan.convolutions[convolution];
                let Subject::Backward(state, _) = &self.subject else {
                    unreachable!("invariant: gradients go backward");
                };
                let weights = parameter(&plan.graph, &state.parameters, planned.convolution.weight);
                pack(
                    self.threads,
                    planned,
                    Pass::BackwardData,
                    weights,
                    self.write(packed),
                );
                let (from, to) = (self.view(gradient), self.view(input_gradient));
                let packed = self.read(packed);
                match &planned.operator {
                    Operator::Dense(conv) => {
                        let scratch = self.scratch(scratch);
                        conv.backward_data(self.threads, from, packed, to, write, scratch);
                    }
                    Operator::Depthwise(conv) => {
                        conv.backward_data(self.threads, from, packed, to, write);
                    }
                    Operator::Transposed(conv) => {
                        let scratch = self.scratch(scratch);
                        conv.backward_data(self.threads, from, packed, to, write, scratch);
                    }
                }
            }
            _ => unreachable!("invariant: called for convolutions"),
        }
    }

    fn norm_shape(&self, convolution: usize) -> norm::Shape {
        let planned = &self.plan.convolutions[convolution];
        norm::Shape {
            pixels: planned.output.pixels(),
            channels: planned.output.channels,
            activation: planned.convolution.activation,
        }
    }

    fn gradient_of(&mut self, parameter: usize) -> &mut [f32] {
        let Subject::Backward(_, gradient) = &mut self.subject else {
            unreachable!("invariant: gradients are made backward");
        };
        &mut gradient[self.plan.graph.parameters[parameter].range()]
    }
}

impl<'a> Runner<'a> {
    fn view(&self, slot: Slot) -> View<'a> {
        View {
            cells: self.cells(slot.buffer),
            offset: slot.channel,
            pixel_stride: slot.pixel_stride,
        }
    }

    fn cells(&self, id: BufferId) -> &'a [Cell<f32>] {
        self.arena.cells(&self.plan.buffers[id.0])
    }

    fn scratch(&self, id: Option<BufferId>) -> &'a [Cell<f32>] {
        id.map_or(&[], |id| self.cells(id))
    }

    fn read(&self, id: BufferId) -> &'a [f32] {
        // SAFETY: a launch reads vectors, biases and packed weights through this, and has finished writing
        // them by then; the plan gives them memory of their own while they are in use.
        unsafe { self.arena.floats(&self.plan.buffers[id.0]) }
    }

    fn write(&self, id: BufferId) -> &'a mut [f32] {
        // SAFETY: as for `read`; a launch writes a buffer before it reads it.
        unsafe { self.arena.floats_mut(&self.plan.buffers[id.0]) }
    }
}

fn size(extent: Extent) -> (usize, usize) {
    (extent.pixels(), extent.channels)
}

/// Returns a parameter's values.
pub(super) fn parameter<'a>(graph: &Graph, parameters: &'a [f32], index: usize) -> &'a [f32] {
    &parameters[graph.parameters[index].range()]
}

/// Packs canonical weights for a pass.
pub(super) fn pack(
    threads: &Threads,
    planned: &PlannedConvolution,
    pass: Pass,
    weights: &[f32],
    packed: &mut [f32],
) {
    match &planned.operator {
        Operator::Dense(conv) => conv.pack(threads, pass, weights, packed),
        Operator::Depthwise(conv) => conv.pack(weights, packed),
        Operator::Transposed(conv) => conv.pack(threads, pass, weights, packed),
    }
}

/// Folds a convolution's norm into weights and bias, both in canonical order.
pub(super) fn fold(
    graph: &Graph,
    convolution: &Convolution,
    state: &State,
    weights: &mut [f32],
    bias: &mut [f32],
) {
    let value = |index| parameter(graph, &state.parameters, index);
    weights.copy_from_slice(value(convolution.weight));
    let Some(indices) = convolution.norm else {
        match convolution.bias {
            Some(index) => bias.copy_from_slice(value(index)),
            None => bias.fill(0.0),
        }
        return;
    };
    let learnt = Learnt {
        weight: value(indices.weight),
        bias: value(indices.bias),
        constants: indices.constants,
    };
    let statistic = |index: usize| &state.buffers[graph.buffers[index].range()];
    let (mean, variance) = (statistic(indices.mean), statistic(indices.variance));
    let row = weights.len() / convolution.output_channels;
    for (index, (weights, bias)) in weights.chunks_exact_mut(row).zip(bias).enumerate() {
        let (scale, shift) = norm::fold(learnt, mean, variance, index);
        for weight in weights {
            *weight = (f64::from(*weight) * scale) as f32;
        }
        *bias = shift;
    }
}

/// Returns a buffer to write.
#[expect(
    clippy::mut_from_ref,
    reason = "the network lends it out of its own exclusive borrow"
)]
pub(super) fn buffer<'a>(plan: &Plan, arena: &'a Arena, id: BufferId) -> &'a mut [f32] {
    // SAFETY: called once per buffer by functions that borrow the network exclusively.
    unsafe { arena.floats_mut(&plan.buffers[id.0]) }
}

/// Returns a buffer to read.
pub(super) fn values<'a>(plan: &Plan, arena: &'a Arena, id: BufferId) -> &'a [f32] {
    // SAFETY: the network writes its buffers only when it is borrowed exclusively.
    unsafe { arena.floats(&plan.buffers[id.0]) }
}

/// Returns a value of the graph as `[batch][channel][y][x]`, without padding.
pub(super) fn unpadded(plan: &Plan, arena: &Arena, id: ValueId) -> Option<Vec<f32>> {
    let slot = plan.values[id.0]?;
    let cells = arena.cells(&plan.buffers[slot.buffer.0]);
    let value = plan.graph.value(id);
    let [height, width] = value.size.of(plan.shape);
    let places: Vec<usize> = plan.channels[id.0].places().collect();
    let mut result = Vec::with_capacity(plan.shape.batch * value.channels * height * width);
    for image in 0..plan.shape.batch {
        for place in &places {
            for cell in 0..height * width {
                let pixel = image * height * width + cell;
                result.push(cells[pixel * slot.pixel_stride + slot.channel + place].get());
            }
        }
    }
    Some(result)
}

//! Runs launches on the CPU: looks up a launch's operands in the arena and calls its operation.
#![expect(
    unsafe_code,
    reason = "plain slices of arena buffers that the plan keeps apart"
)]

use std::cell::Cell;

use super::arena::Arena;
use super::weights::{pack, parameter};
use super::{State, outputs};
use crate::decode::{self, Decoder};
use crate::ops::conv2d::{Epilogue, Input, Pass};
use crate::ops::norm::{self, Learnt, Vectors};
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

impl Runner<'_> {
    /// Returns whether the norm of a convolution keeps its running statistics.
    pub(super) fn is_frozen(&self, convolution: usize) -> bool {
        self.frozen.get(convolution).copied().unwrap_or(false)
    }

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
        let is_frozen = self.is_frozen(convolution);
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
        if is_frozen {
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

    pub(super) fn norm_shape(&self, convolution: usize) -> norm::Shape {
        let planned = &self.plan.convolutions[convolution];
        norm::Shape {
            pixels: planned.output.pixels(),
            channels: planned.output.channels,
            activation: planned.convolution.activation,
        }
    }
}

impl<'a> Runner<'a> {
    pub(super) fn view(&self, slot: Slot) -> View<'a> {
        View {
            cells: self.cells(slot.buffer),
            offset: slot.channel,
            pixel_stride: slot.pixel_stride,
        }
    }

    pub(super) fn cells(&self, id: BufferId) -> &'a [Cell<f32>] {
        self.arena.cells(&self.plan.buffers[id.0])
    }

    pub(super) fn scratch(&self, id: Option<BufferId>) -> &'a [Cell<f32>] {
        id.map_or(&[], |id| self.cells(id))
    }

    pub(super) fn read(&self, id: BufferId) -> &'a [f32] {
        // SAFETY: a launch reads vectors, biases and packed weights through this, and has finished writing
        // them by then; the plan gives them memory of their own while they are in use.
        unsafe { self.arena.floats(&self.plan.buffers[id.0]) }
    }

    pub(super) fn write(&self, id: BufferId) -> &'a mut [f32] {
        // SAFETY: as for `read`; a launch writes a buffer before it reads it.
        unsafe { self.arena.floats_mut(&self.plan.buffers[id.0]) }
    }
}

fn size(extent: Extent) -> (usize, usize) {
    (extent.pixels(), extent.channels)
}

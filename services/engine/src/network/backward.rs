//! Runs the launches of the backward pass on the CPU.

use super::run::{Runner, Subject};
use super::weights::{pack, parameter};
use crate::ops::conv2d::{Input, Pass};
use crate::ops::norm::{self, Coefficients, Vectors};
use crate::ops::{attention, global_pool, max_pool, upsample};
use crate::plan::{Kernel, Operator};

impl Runner<'_> {
    pub(super) fn run_backward(&mut self, kernel: &Kernel) {
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
        if self.is_frozen(convolution) {
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

    fn gradient_of(&mut self, parameter: usize) -> &mut [f32] {
        let Subject::Backward(_, gradient) = &mut self.subject else {
            unreachable!("invariant: gradients are made backward");
        };
        &mut gradient[self.plan.graph.parameters[parameter].range()]
    }
}

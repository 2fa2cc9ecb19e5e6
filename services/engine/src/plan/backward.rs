//! Derives the backward pass node by node, last node first. A gradient has the layout of its value, so what
//! costs no copy forward costs none backward; the first launch that touches a gradient writes it, later ones
//! add to it.

use std::collections::{BTreeMap, BTreeSet};

use super::forward::Lowering;
use super::launch::{BufferId, BufferKind, Kernel, Launch, Side, Slot};
use crate::graph::{Op, ValueId};
use crate::ops::attention;
use crate::ops::conv2d::{Pass, Write};
use crate::ops::norm;
use crate::ops::view::CHANNEL_BLOCK;

/// The gradients made so far.
#[derive(Default)]
struct Gradients {
    /// By root value.
    buffers: BTreeMap<ValueId, BufferId>,
    /// The channel blocks that hold something, by root value.
    written: BTreeMap<ValueId, BTreeSet<usize>>,
}

impl Lowering {
    /// Lowers the backward pass.
    pub fn backward(&mut self) {
        let mut gradients = Gradients::default();
        for id in self.graph.outputs() {
            let slot = self.gradient_slot(&mut gradients, id);
            self.mark_written(&mut gradients, id);
            self.output_gradients.insert(id, slot);
        }
        for index in (0..self.graph.nodes.len()).rev() {
            self.backward_node(&mut gradients, index);
        }
    }

    fn backward_node(&mut self, gradients: &mut Gradients, index: usize) {
        let node = self.graph.nodes[index].clone();
        let name = node.name.as_str();
        match node.op {
            Op::Image | Op::Slice { .. } => {}
            Op::Convolution(_) => self.backward_convolution(gradients, index),
            Op::Add => {
                if self.layout.fused.values().any(|add| add.node == index) {
                    return;
                }
                let gradient = self.finished(gradients, node.outputs[0], name);
                for &input in &node.inputs {
                    self.pass_on(gradients, gradient, input, name);
                }
            }
            Op::MaxPool { window } => {
                let extent = self.extent(node.inputs[0]);
                let gradient = self.finished(gradients, node.outputs[0], name);
                let (input_gradient, write) = self.target(gradients, node.inputs[0], name);
                if write == Write::Overwrite {
                    let kernel = Kernel::Zero {
                        extent,
                        output: input_gradient,
                    };
                    self.launch_back(name, kernel, 0, extent.elements());
                }
                let kernel = Kernel::BackwardMaxPool {
                    extent,
                    window,
                    input: self.slot(node.inputs[0]),
                    output: self.slot(node.outputs[0]),
                    gradient,
                    input_gradient,
                };
                self.launch_back(name, kernel, 0, 5 * extent.elements());
            }
            Op::Upsample => {
                let extent = self.extent(node.inputs[0]);
                let gradient = self.finished(gradients, node.outputs[0], name);
                let (input_gradient, write) = self.target(gradients, node.inputs[0], name);
                let kernel = Kernel::BackwardUpsample {
                    extent,
                    gradient,
                    input_gradient,
                    write,
                };
                self.launch_back(name, kernel, 0, 5 * extent.elements());
            }
            Op::GlobalPool => {
                let extent = self.extent(node.inputs[0]);
                let gradient = self.finished(gradients, node.outputs[0], name);
                let (input_gradient, write) = self.target(gradients, node.inputs[0], name);
                let kernel = Kernel::BackwardGlobalPool {
                    extent,
                    gradient,
                    input_gradient,
                    write,
                };
                self.launch_back(name, kernel, 0, extent.elements());
            }
            Op::Concat => self.backward_concat(gradients, index),
            Op::Attention { .. } => self.backward_attention(gradients, index),
        }
    }

    /// Hands the gradient of copied parts back to where they lie.
    fn backward_concat(&mut self, gradients: &mut Gradients, index: usize) {
        let node = self.graph.nodes[index].clone();
        let whole = self.finished(gradients, node.outputs[0], &node.name);
        let mut channel = whole.channel;
        for (part, &input) in node.inputs.iter().enumerate() {
            if self.layout.copied.contains(&(index, part)) {
                self.pass_on(gradients, Slot { channel, ..whole }, input, &node.name);
            }
            channel += self.extent(input).channels;
        }
    }

    fn backward_attention(&mut self, gradients: &mut Gradients, index: usize) {
        let node = self.graph.nodes[index].clone();
        let name = node.name.as_str();
        let shape = self.attention_shape(index);
        let attended_gradient = self.finished(gradients, node.outputs[0], name);
        let values_gradient = self.finished(gradients, node.outputs[1], name);
        let (input_gradient, write) = self.target(gradients, node.inputs[0], name);
        assert_eq!(
            write,
            Write::Overwrite,
            "invariant: only attention reads its input"
        );
        let threads = self.options.thread_count;
        let length = self
            .options
            .target
            .attention_scratch_len(&shape, threads, super::Mode::Train);
        let kernel = Kernel::BackwardAttend {
            shape,
            input: self.slot(node.inputs[0]),
            attended: self.slot(node.outputs[0]),
            normalisers: self.normalisers[&index],
            attended_gradient,
            values_gradient,
            input_gradient,
            scratch: self.buffer(name, BufferKind::Scratch, length),
        };
        let elements = 2 * self.extent(node.inputs[0]).elements()
            + 3 * self.extent(node.outputs[0]).elements();
        self.launch_back(name, kernel, attention::backward_flops(&shape), elements);
    }

    fn backward_convolution(&mut self, gradients: &mut Gradients, index: usize) {
        let node = self.graph.nodes[index].clone();
        let name = node.name.as_str();
        let ran = self.ran[&index];
        let convolution = ran.convolution;
        let output = self.convolutions[convolution].output;
        let fused = self.layout.fused.get(&index).copied();
        let made = fused.map_or(node.outputs[0], |add| add.sum);
        let gradient = self.finished(gradients, made, name);

        if let Some((raw, vectors)) = ran.norm {
            let residual = fused.map(|add| {
                let (slot, write) = self.target(gradients, add.residual, name);
                Side { slot, write }
            });
            let length = norm::Coefficients::COUNT * output.channels;
            let coefficients = self.buffer(name, BufferKind::Scratch, length);
            let tensors = match residual {
                None => 3,
                Some(Side {
                    write: Write::Overwrite,
                    ..
                }) => 4,
                Some(_) => 5,
            };
            let kernel = Kernel::BackwardActivation {
                convolution,
                raw,
                vectors,
                gradient,
                residual,
                coefficients,
            };
            self.launch_back(name, kernel, 0, tensors * output.elements());
            let kernel = Kernel::BackwardNorm {
                convolution,
                raw,
                vectors,
                gradient,
                coefficients,
            };
            self.launch_back(name, kernel, 0, 3 * output.elements());
        } else {
            let kernel = Kernel::BackwardBias {
                convolution,
                gradient,
            };
            self.launch_back(name, kernel, 0, output.elements());
        }

        let threads = self.options.thread_count;
        let flops = self.convolutions[convolution].flops();
        let input = node.inputs[0];
        let is_image = matches!(self.graph.nodes[self.graph.producer(input)].op, Op::Image);
        let elements = self.extent(input).elements() + output.elements();
        let device = self.options.target;
        let planned = &self.convolutions[convolution];
        let length = device.scratch_len(planned, Pass::BackwardWeights, threads);
        let kernel = Kernel::BackwardWeights {
            convolution,
            input: (!is_image).then(|| self.slot(input)),
            gradient,
            scratch: self.scratch(name, length),
        };
        self.launch_back(name, kernel, flops, elements);
        if is_image || self.convolutions[convolution].convolution.detached {
            return;
        }
        let (input_gradient, write) = self.target(gradients, input, name);
        let planned = &self.convolutions[convolution];
        let packed_len = device.packed_len(planned, Pass::BackwardData);
        let length = device.scratch_len(planned, Pass::BackwardData, threads);
        let kernel = Kernel::BackwardData {
            convolution,
            gradient,
            input_gradient,
            write,
            packed: self.buffer(name, BufferKind::Weights, packed_len),
            scratch: self.scratch(name, length),
        };
        self.launch_back(name, kernel, flops, elements);
    }

    /// Copies or adds a gradient to another value's.
    fn pass_on(&mut self, gradients: &mut Gradients, from: Slot, to: ValueId, name: &str) {
        let extent = self.extent(to);
        let (output, write) = self.target(gradients, to, name);
        let kernel = Kernel::Copy {
            extent,
            input: from,
            output,
            write,
        };
        let tensors = if write == Write::Accumulate { 3 } else { 2 };
        self.launch_back(name, kernel, 0, tensors * extent.elements());
    }

    /// Returns a value's gradient, which nobody will add to any more.
    fn finished(&mut self, gradients: &mut Gradients, id: ValueId, name: &str) -> Slot {
        self.zero_missing(gradients, id, name);
        self.gradient_slot(gradients, id)
    }

    /// Returns where a launch puts its share of a value's gradient, and how.
    fn target(&mut self, gradients: &mut Gradients, id: ValueId, name: &str) -> (Slot, Write) {
        let blocks = self.blocks(id);
        let root = self.layout.place(id).root;
        let written = gradients.written.entry(root).or_default();
        let write = if blocks.clone().any(|block| written.contains(&block)) {
            self.zero_missing(gradients, id, name);
            Write::Accumulate
        } else {
            self.mark_written(gradients, id);
            Write::Overwrite
        };
        (self.gradient_slot(gradients, id), write)
    }

    fn gradient_slot(&mut self, gradients: &mut Gradients, id: ValueId) -> Slot {
        let root = self.layout.place(id).root;
        let buffer = match gradients.buffers.get(&root) {
            Some(&buffer) => buffer,
            None => {
                let name = self.graph.nodes[self.graph.producer(root)].name.clone();
                let length = self.extent(root).elements();
                let buffer = self.buffer(&name, BufferKind::Gradient, length);
                gradients.buffers.insert(root, buffer);
                buffer
            }
        };
        Slot {
            buffer,
            channel: self.layout.place(id).channel,
            pixel_stride: self.layout.pixel_stride(id),
        }
    }

    fn blocks(&self, id: ValueId) -> std::ops::Range<usize> {
        let place = self.layout.place(id);
        let end = place.channel + place.channels.padded();
        place.channel / CHANNEL_BLOCK..end / CHANNEL_BLOCK
    }

    fn mark_written(&mut self, gradients: &mut Gradients, id: ValueId) {
        let blocks = self.blocks(id);
        let root = self.layout.place(id).root;
        gradients.written.entry(root).or_default().extend(blocks);
    }

    /// Zeroes the channels of a gradient that no launch has written.
    fn zero_missing(&mut self, gradients: &mut Gradients, id: ValueId, name: &str) {
        let root = self.layout.place(id).root;
        let written = gradients.written.entry(root).or_default();
        let missing: Vec<usize> = self
            .blocks(id)
            .filter(|block| !written.contains(block))
            .collect();
        written.extend(&missing);
        let whole = self.gradient_slot(gradients, id);
        for run in missing.chunk_by(|a, b| a + 1 == *b) {
            let mut extent = self.extent(id);
            extent.channels = run.len() * CHANNEL_BLOCK;
            let output = Slot {
                channel: run[0] * CHANNEL_BLOCK,
                ..whole
            };
            self.launch_back(name, Kernel::Zero { extent, output }, 0, extent.elements());
        }
    }

    fn launch_back(&mut self, name: &str, kernel: Kernel, flops: u64, elements: usize) {
        self.backward.push(Launch {
            name: name.to_owned(),
            kernel,
            flops,
            bytes: (elements * self.options.target.tensor_bytes()) as u64,
        });
    }
}

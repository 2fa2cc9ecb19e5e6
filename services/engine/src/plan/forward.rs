//! Lowers the nodes of a graph to launches, and holds what both passes of the lowering share.

use std::collections::BTreeMap;

use super::launch::{
    After, AttentionShape, Buffer, BufferId, BufferKind, Extent, Kernel, Launch, Slot,
};
use super::layout::Layout;
use super::memory;
use super::outputs::{PlannedOutputs, PlannedPredictions, keep_what_predicts};
use super::{Element, Mode, Operator, Options, Plan, PlannedConvolution};
use crate::graph::{self, Activation, Form, Graph, Op, ValueId};
use crate::models::ModelSpec;
use crate::network::InputShape;
use crate::ops::conv2d::{self, Conv2d, Pass, Write};
use crate::ops::depthwise::{self, Depthwise};
use crate::ops::transposed::{self, Transposed};
use crate::ops::{attention, norm};

/// What is known of a convolution that ran forward, for its way back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ran {
    pub convolution: usize,
    /// Raw output and norm vectors, unless it has only a bias.
    pub norm: Option<(Slot, BufferId)>,
}

/// A plan in the making.
pub(super) struct Lowering {
    pub graph: Graph,
    pub shape: InputShape,
    pub options: Options,
    pub layout: Layout,
    pub convolutions: Vec<PlannedConvolution>,
    pub buffers: Vec<Buffer>,
    pub forward: Vec<Launch>,
    pub backward: Vec<Launch>,
    pub outputs: PlannedOutputs,
    pub predictions: Option<PlannedPredictions>,
    /// The gradients that the loss writes, by value.
    pub output_gradients: BTreeMap<ValueId, Slot>,
    pub sums_len: usize,
    /// By root value.
    activations: BTreeMap<ValueId, BufferId>,
    /// By node.
    pub ran: BTreeMap<usize, Ran>,
    /// By node: the logarithms of attention's sums.
    pub normalisers: BTreeMap<usize, BufferId>,
}

impl Lowering {
    pub fn new(mut graph: Graph, shape: InputShape, options: Options) -> Self {
        if options.mode == Mode::Infer {
            keep_what_predicts(&mut graph, options.branches);
        }
        let layout = Layout::new(&graph, !options.keep_everything);
        Self {
            graph,
            shape,
            options,
            layout,
            convolutions: Vec::new(),
            buffers: Vec::new(),
            forward: Vec::new(),
            backward: Vec::new(),
            outputs: PlannedOutputs::default(),
            predictions: None,
            output_gradients: BTreeMap::new(),
            sums_len: 0,
            activations: BTreeMap::new(),
            ran: BTreeMap::new(),
            normalisers: BTreeMap::new(),
        }
    }

    /// Returns a value's size, channels padded.
    pub fn extent(&self, id: ValueId) -> Extent {
        let [height, width] = self.graph.value(id).size.of(self.shape);
        Extent {
            batch: self.shape.batch,
            height,
            width,
            channels: self.layout.place(id).channels.padded(),
        }
    }

    pub fn buffer(&mut self, name: &str, kind: BufferKind, length: usize) -> BufferId {
        let element = self.options.target.element(kind);
        self.buffer_of(name, kind, element, length)
    }

    fn buffer_of(
        &mut self,
        name: &str,
        kind: BufferKind,
        element: Element,
        length: usize,
    ) -> BufferId {
        self.buffers.push(Buffer {
            name: name.to_owned(),
            kind,
            element,
            length,
            offset: 0,
            first: usize::MAX,
            last: 0,
        });
        BufferId(self.buffers.len() - 1)
    }

    /// Makes scratch memory, if any is needed.
    pub fn scratch(&mut self, name: &str, length: usize) -> Option<BufferId> {
        (length > 0).then(|| self.buffer(name, BufferKind::Scratch, length))
    }

    /// Makes a dense buffer for one tensor.
    pub fn dense(&mut self, name: &str, kind: BufferKind, extent: Extent) -> Slot {
        Slot {
            buffer: self.buffer(name, kind, extent.elements()),
            channel: 0,
            pixel_stride: extent.channels,
        }
    }

    /// Returns where a value lies, making its storage at first use.
    pub fn slot(&mut self, id: ValueId) -> Slot {
        let root = self.layout.place(id).root;
        let buffer = match self.activations.get(&root) {
            Some(&buffer) => buffer,
            None => {
                let name = self.graph.nodes[self.graph.producer(root)].name.clone();
                let length = self.extent(root).elements();
                let buffer = self.buffer(&name, BufferKind::Activation, length);
                self.activations.insert(root, buffer);
                buffer
            }
        };
        Slot {
            buffer,
            channel: self.layout.place(id).channel,
            pixel_stride: self.layout.pixel_stride(id),
        }
    }

    pub fn launch(&mut self, name: &str, kernel: Kernel, flops: u64, elements: usize) {
        self.forward.push(Launch {
            name: name.to_owned(),
            kernel,
            flops,
            bytes: (elements * self.options.target.tensor_bytes()) as u64,
        });
    }

    /// Lowers the forward pass.
    pub fn forward(&mut self, spec: &ModelSpec) {
        let needed = self.graph.needed_nodes();
        let folded: Vec<usize> = self.layout.fused.values().map(|add| add.node).collect();
        for (index, is_needed) in needed.into_iter().enumerate() {
            if is_needed && !folded.contains(&index) {
                self.forward_node(index);
            }
        }
        if self.options.mode == Mode::Infer && self.options.is_decoding {
            self.decode(spec);
        }
    }

    fn forward_node(&mut self, index: usize) {
        let node = self.graph.nodes[index].clone();
        let name = node.name.as_str();
        match node.op {
            Op::Image | Op::Slice { .. } => {}
            Op::Convolution(convolution) => self.convolution(index, convolution),
            Op::Add => {
                let extent = self.extent(node.outputs[0]);
                let kernel = Kernel::Add {
                    extent,
                    left: self.slot(node.inputs[0]),
                    right: self.slot(node.inputs[1]),
                    output: self.slot(node.outputs[0]),
                };
                self.launch(name, kernel, 0, 3 * extent.elements());
            }
            Op::MaxPool { window } => {
                let extent = self.extent(node.inputs[0]);
                let kernel = Kernel::MaxPool {
                    extent,
                    window,
                    input: self.slot(node.inputs[0]),
                    output: self.slot(node.outputs[0]),
                };
                self.launch(name, kernel, 0, 2 * extent.elements());
            }
            Op::Upsample => {
                let extent = self.extent(node.inputs[0]);
                let kernel = Kernel::Upsample {
                    extent,
                    input: self.slot(node.inputs[0]),
                    output: self.slot(node.outputs[0]),
                };
                self.launch(name, kernel, 0, 5 * extent.elements());
            }
            Op::GlobalPool => {
                let extent = self.extent(node.inputs[0]);
                let kernel = Kernel::GlobalPool {
                    extent,
                    input: self.slot(node.inputs[0]),
                    output: self.slot(node.outputs[0]),
                };
                self.launch(name, kernel, 0, extent.elements());
            }
            Op::Concat => self.concat(index),
            Op::Attention { .. } => self.attention(index),
        }
    }

    /// Copies the parts of a concatenation that lie elsewhere.
    fn concat(&mut self, index: usize) {
        let node = self.graph.nodes[index].clone();
        let whole = self.slot(node.outputs[0]);
        let mut channel = whole.channel;
        for (part, &input) in node.inputs.iter().enumerate() {
            let extent = self.extent(input);
            if self.layout.copied.contains(&(index, part)) {
                let kernel = Kernel::Copy {
                    extent,
                    input: self.slot(input),
                    output: Slot { channel, ..whole },
                    write: Write::Overwrite,
                };
                self.launch(&node.name, kernel, 0, 2 * extent.elements());
            }
            channel += extent.channels;
        }
    }

    /// Returns the shape of a node of attention.
    pub fn attention_shape(&self, index: usize) -> AttentionShape {
        let node = &self.graph.nodes[index];
        let Op::Attention {
            heads,
            key_channels,
            value_channels,
        } = node.op
        else {
            unreachable!("invariant: only asked of attention");
        };
        let extent = self.extent(node.inputs[0]);
        AttentionShape {
            batch: extent.batch,
            pixels: extent.height * extent.width,
            heads,
            key_channels,
            value_channels,
        }
    }

    fn attention(&mut self, index: usize) {
        let node = self.graph.nodes[index].clone();
        let shape = self.attention_shape(index);
        let normalisers = (self.options.mode == Mode::Train).then(|| {
            let length = attention::normalisers_len(&shape);
            let buffer = self.buffer(&node.name, BufferKind::Scratch, length);
            self.normalisers.insert(index, buffer);
            buffer
        });
        let threads = self.options.thread_count;
        let length = self
            .options
            .target
            .attention_scratch_len(&shape, threads, Mode::Infer);
        let kernel = Kernel::Attend {
            shape,
            input: self.slot(node.inputs[0]),
            attended: self.slot(node.outputs[0]),
            values: self.slot(node.outputs[1]),
            normalisers,
            scratch: self.buffer(&node.name, BufferKind::Scratch, length),
        };
        let elements =
            self.extent(node.inputs[0]).elements() + 2 * self.extent(node.outputs[0]).elements();
        self.launch(&node.name, kernel, attention::flops(&shape), elements);
    }

    fn plan_convolution(&mut self, index: usize, convolution: graph::Convolution) -> usize {
        let node = &self.graph.nodes[index];
        let (input, output) = (node.inputs[0], node.outputs[0]);
        let is_image = matches!(self.graph.nodes[self.graph.producer(input)].op, Op::Image);
        let extent = self.extent(input);
        let output_channels = self.layout.place(output).channels.clone();
        let Extent {
            batch,
            height,
            width,
            ..
        } = extent;
        let options = conv2d::Options {
            algorithm: self.options.algorithm,
            level: None,
            precision: self.options.precision,
        };
        let operator = match convolution.form {
            Form::Dense => {
                let shape = conv2d::Shape {
                    batch,
                    height,
                    width,
                    input: self.layout.place(input).channels.clone(),
                    output: output_channels.clone(),
                    kernel: convolution.kernel,
                    stride: convolution.stride,
                    is_image,
                };
                Operator::Dense(Conv2d::new(shape, options))
            }
            Form::Depthwise => {
                let shape = depthwise::Shape {
                    batch,
                    height,
                    width,
                    channels: output_channels.clone(),
                    kernel: convolution.kernel,
                };
                Operator::Depthwise(Depthwise::new(shape, None))
            }
            Form::Transposed => {
                let shape = transposed::Shape {
                    batch,
                    height,
                    width,
                    input: self.layout.place(input).channels.clone(),
                    output: output_channels.clone(),
                };
                Operator::Transposed(Transposed::new(shape, options))
            }
        };
        self.convolutions.push(PlannedConvolution {
            name: node.name.clone(),
            convolution,
            operator,
            output_channels,
            output: self.extent(output),
            folded: None,
        });
        self.convolutions.len() - 1
    }

    fn convolution(&mut self, index: usize, convolution: graph::Convolution) {
        let node = self.graph.nodes[index].clone();
        let name = node.name.as_str();
        let fused = self.layout.fused.get(&index).copied();
        let planned = self.plan_convolution(index, convolution);
        let is_image = matches!(
            self.graph.nodes[self.graph.producer(node.inputs[0])].op,
            Op::Image
        );
        let input = (!is_image).then(|| self.slot(node.inputs[0]));
        let target = self.slot(fused.map_or(node.outputs[0], |add| add.sum));
        let residual = fused.map(|add| self.slot(add.residual));
        let output = self.convolutions[planned].output;

        let target_device = self.options.target;
        let packed_len = target_device.packed_len(&self.convolutions[planned], Pass::Forward);
        let packed = self.buffer(name, BufferKind::Weights, packed_len);
        let scratch_len = target_device.scratch_len(
            &self.convolutions[planned],
            Pass::Forward,
            self.options.thread_count,
        );
        let scratch = self.scratch(name, scratch_len);
        let is_training = self.options.mode == Mode::Train;

        let (after, raw) = match convolution.norm {
            Some(_) if is_training => {
                let raw = self.dense(name, BufferKind::Raw, output);
                let vectors = self.buffer(
                    name,
                    BufferKind::Norm,
                    norm::Vectors::COUNT * output.channels,
                );
                (After::Statistics { vectors }, Some((raw, vectors)))
            }
            norm => {
                let bias = self.buffer_of(name, BufferKind::Weights, Element::F32, output.channels);
                let after = if is_training {
                    After::Bias { bias }
                } else {
                    self.convolutions[planned].folded = Some([packed, bias]);
                    After::Folded {
                        bias,
                        silu: norm.is_some() && convolution.activation == Activation::Silu,
                        residual,
                    }
                };
                (after, None)
            }
        };
        let ran = Ran {
            convolution: planned,
            norm: raw,
        };
        self.ran.insert(index, ran);
        if self.options.target.has_sums() {
            let sums = norm::sums_len(output.pixels(), output.channels);
            self.sums_len = self.sums_len.max(sums);
        }

        let input_elements = self.extent(node.inputs[0]).pixels() * convolution.input_channels;
        let flops = self.convolutions[planned].flops();
        let kernel = Kernel::Convolve {
            convolution: planned,
            input,
            output: raw.map_or(target, |(raw, _)| raw),
            packed,
            scratch,
            after,
        };
        self.launch(name, kernel, flops, input_elements + output.elements());
        if let Some((raw, vectors)) = raw {
            let tensors = if residual.is_some() { 3 } else { 2 };
            let kernel = Kernel::Normalise {
                convolution: planned,
                raw,
                vectors,
                residual,
                output: target,
            };
            self.launch(name, kernel, 0, tensors * output.elements());
        }
    }

    /// Places all buffers.
    pub fn finish(mut self, spec: &ModelSpec) -> Plan {
        self.plan_outputs();
        memory::set_lifetimes(&mut self.buffers, &self.forward, &self.backward);
        let end = self.forward.len() + self.backward.len();
        let keep: Vec<BufferId> = self.kept_buffers();
        for id in keep {
            self.buffers[id.0].first = 0;
            self.buffers[id.0].last = end;
        }
        self.keep_outputs();
        let arena_len = memory::assign_offsets(&mut self.buffers);
        let stored = |id: usize| {
            let place = self.layout.place(ValueId(id));
            self.activations.get(&place.root).map(|&buffer| Slot {
                buffer,
                channel: place.channel,
                pixel_stride: self.layout.pixel_stride(ValueId(id)),
            })
        };
        let count = self.graph.values.len();
        let values = (0..count).map(stored).collect();
        let channels = (0..count).map(|id| self.layout.place(ValueId(id)).channels.clone());
        Plan {
            spec: spec.clone(),
            shape: self.shape,
            options: self.options,
            graph: self.graph,
            convolutions: self.convolutions,
            buffers: self.buffers,
            forward: self.forward,
            backward: self.backward,
            outputs: self.outputs,
            predictions: self.predictions,
            values,
            channels: channels.collect(),
            arena_len,
            sums_len: self.sums_len,
        }
    }

    /// Returns the buffers that live through the whole plan.
    fn kept_buffers(&self) -> Vec<BufferId> {
        if self.options.keep_everything {
            return (0..self.buffers.len()).map(BufferId).collect();
        }
        let folded = self.convolutions.iter().filter_map(|c| c.folded);
        folded.flatten().collect()
    }

    /// The loss reads the heads and writes their gradients between the passes; predictions are decoded last.
    fn keep_outputs(&mut self) {
        let loss = self.forward.len();
        for output in self.outputs.iter() {
            for slot in [Some(output.value), output.gradient].into_iter().flatten() {
                let buffer = &mut self.buffers[slot.buffer.0];
                buffer.first = buffer.first.min(loss);
                buffer.last = buffer.last.max(loss);
            }
        }
    }
}

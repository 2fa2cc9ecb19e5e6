//! The building blocks of the YOLO families, each expanded into graph nodes. A block first declares its
//! tensors in the order of the reference's state dict, then wires its nodes in the order they run.

use crate::graph::{Activation, Convolution, Graph, Head, Norm, ValueId};
use crate::network::Role;

/// Distance bins per side of a box.
pub(super) const BINS: usize = 16;
/// Pixels of the input per cell of the head's levels.
pub(super) const STRIDES: [usize; 3] = [8, 16, 32];

/// What distinguishes one convolution block from another.
#[derive(Debug, Clone, Copy)]
struct Shape {
    input: usize,
    output: usize,
    kernel: usize,
    stride: usize,
    depthwise: bool,
    activation: Activation,
}

impl Shape {
    fn new(input: usize, output: usize, kernel: usize) -> Self {
        Self {
            input,
            output,
            kernel,
            stride: 1,
            depthwise: false,
            activation: Activation::Silu,
        }
    }

    fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    fn depthwise(self) -> Self {
        Self {
            depthwise: true,
            ..self
        }
    }

    fn linear(self) -> Self {
        Self {
            activation: Activation::Identity,
            ..self
        }
    }
}

/// A convolution block whose tensors are declared.
struct Conv {
    name: String,
    convolution: Convolution,
}

impl Conv {
    /// Declares convolution and norm.
    fn declare(graph: &mut Graph, name: String, shape: Shape) -> Self {
        let weight_name = format!("{name}.conv.weight");
        let weight = declare_weight(graph, weight_name, shape);
        let channels = vec![shape.output];
        let norm = Norm {
            weight: graph.parameter(
                format!("{name}.bn.weight"),
                channels.clone(),
                Role::NormWeight,
            ),
            bias: graph.parameter(format!("{name}.bn.bias"), channels.clone(), Role::Bias),
            mean: graph.buffer(format!("{name}.bn.running_mean"), channels.clone()),
            variance: graph.buffer(format!("{name}.bn.running_var"), channels),
        };
        let convolution = convolution(shape, weight, None, Some(norm));
        Self { name, convolution }
    }

    /// Declares a convolution with a bias and nothing after it.
    fn declare_plain(graph: &mut Graph, name: String, shape: Shape) -> Self {
        let shape = shape.linear();
        let weight = declare_weight(graph, format!("{name}.weight"), shape);
        let bias = graph.parameter(format!("{name}.bias"), vec![shape.output], Role::Bias);
        let convolution = convolution(shape, weight, Some(bias), None);
        Self { name, convolution }
    }

    fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        graph.convolution(&self.name, self.convolution, input)
    }
}

fn declare_weight(graph: &mut Graph, name: String, shape: Shape) -> usize {
    let inputs = if shape.depthwise { 1 } else { shape.input };
    let dimensions = vec![shape.output, inputs, shape.kernel, shape.kernel];
    graph.parameter(name, dimensions, Role::Weight)
}

fn convolution(
    shape: Shape,
    weight: usize,
    bias: Option<usize>,
    norm: Option<Norm>,
) -> Convolution {
    Convolution {
        input_channels: shape.input,
        output_channels: shape.output,
        kernel: shape.kernel,
        stride: shape.stride,
        depthwise: shape.depthwise,
        weight,
        bias,
        norm,
        activation: shape.activation,
    }
}

/// Two convolutions in a row and a shortcut round them.
struct Bottleneck {
    name: String,
    cv1: Conv,
    cv2: Conv,
}

impl Bottleneck {
    fn declare(graph: &mut Graph, name: String, channels: usize, hidden: usize) -> Self {
        let cv1 = Conv::declare(
            graph,
            format!("{name}.cv1"),
            Shape::new(channels, hidden, 3),
        );
        let cv2 = Conv::declare(
            graph,
            format!("{name}.cv2"),
            Shape::new(hidden, channels, 3),
        );
        Self { name, cv1, cv2 }
    }

    fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        let hidden = self.cv1.wire(graph, input);
        let output = self.cv2.wire(graph, hidden);
        graph.add(&self.name, input, output)
    }
}

/// Two branches, one through bottlenecks, joined again.
struct C3k {
    name: String,
    cv1: Conv,
    cv2: Conv,
    cv3: Conv,
    inner: Vec<Bottleneck>,
}

impl C3k {
    const REPEATS: usize = 2;

    fn declare(graph: &mut Graph, name: String, channels: usize) -> Self {
        let hidden = channels / 2;
        let narrow = Shape::new(channels, hidden, 1);
        let cv1 = Conv::declare(graph, format!("{name}.cv1"), narrow);
        let cv2 = Conv::declare(graph, format!("{name}.cv2"), narrow);
        let cv3 = Conv::declare(
            graph,
            format!("{name}.cv3"),
            Shape::new(2 * hidden, channels, 1),
        );
        let inner = (0..Self::REPEATS)
            .map(|i| Bottleneck::declare(graph, format!("{name}.m.{i}"), hidden, hidden))
            .collect();
        Self {
            name,
            cv1,
            cv2,
            cv3,
            inner,
        }
    }

    fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        let mut left = self.cv1.wire(graph, input);
        for bottleneck in &self.inner {
            left = bottleneck.wire(graph, left);
        }
        let right = self.cv2.wire(graph, input);
        let both = graph.concat(&self.name, &[left, right]);
        self.cv3.wire(graph, both)
    }
}

/// What a C3k2 repeats.
enum Inner {
    Plain(Bottleneck),
    C3k(C3k),
}

/// The arguments of a C3k2 block.
#[derive(Debug, Clone, Copy)]
pub(super) struct C3k2 {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) hidden: usize,
    pub(super) repeats: usize,
    pub(super) c3k: bool,
}

/// Adds a C3k2: the input in two halves, each inner block feeding the next, everything joined.
pub(super) fn c3k2(graph: &mut Graph, name: &str, arguments: C3k2, input: ValueId) -> ValueId {
    let C3k2 {
        hidden, repeats, ..
    } = arguments;
    let cv1 = Conv::declare(
        graph,
        format!("{name}.cv1"),
        Shape::new(arguments.input, 2 * hidden, 1),
    );
    let cv2 = Conv::declare(
        graph,
        format!("{name}.cv2"),
        Shape::new((2 + repeats) * hidden, arguments.output, 1),
    );
    let inner: Vec<_> = (0..repeats)
        .map(|i| {
            let name = format!("{name}.m.{i}");
            if arguments.c3k {
                Inner::C3k(C3k::declare(graph, name, hidden))
            } else {
                Inner::Plain(Bottleneck::declare(graph, name, hidden, hidden / 2))
            }
        })
        .collect();

    let both = cv1.wire(graph, input);
    let mut parts = graph.halves(name, both).to_vec();
    for block in &inner {
        let last = parts[parts.len() - 1];
        parts.push(match block {
            Inner::Plain(bottleneck) => bottleneck.wire(graph, last),
            Inner::C3k(c3k) => c3k.wire(graph, last),
        });
    }
    let joined = graph.concat(name, &parts);
    cv2.wire(graph, joined)
}

/// Adds a convolution block.
pub(super) fn conv(
    graph: &mut Graph,
    name: &str,
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
    input: ValueId,
) -> ValueId {
    let shape = Shape::new(channels[0], channels[1], kernel).stride(stride);
    Conv::declare(graph, name.to_owned(), shape).wire(graph, input)
}

/// Adds spatial pyramid pooling: three max-pools in a row, all of them joined.
pub(super) fn sppf(
    graph: &mut Graph,
    name: &str,
    channels: [usize; 2],
    window: usize,
    input: ValueId,
) -> ValueId {
    const POOLS: usize = 3;
    let hidden = channels[0] / 2;
    let cv1 = Conv::declare(
        graph,
        format!("{name}.cv1"),
        Shape::new(channels[0], hidden, 1),
    );
    let cv2 = Conv::declare(
        graph,
        format!("{name}.cv2"),
        Shape::new((POOLS + 1) * hidden, channels[1], 1),
    );
    let mut parts = vec![cv1.wire(graph, input)];
    for i in 0..POOLS {
        let pooled = graph.max_pool(&format!("{name}.m.{i}"), window, parts[i]);
        parts.push(pooled);
    }
    let joined = graph.concat(name, &parts);
    cv2.wire(graph, joined)
}

/// Self-attention and a two-layer perceptron, each with a shortcut.
struct PsaBlock {
    name: String,
    heads: usize,
    key_channels: usize,
    value_channels: usize,
    qkv: Conv,
    proj: Conv,
    pe: Conv,
    ffn: [Conv; 2],
}

impl PsaBlock {
    fn declare(graph: &mut Graph, name: String, channels: usize) -> Self {
        let heads = (channels / 64).max(1);
        let value_channels = channels / heads;
        let key_channels = value_channels / 2;
        let mixed = channels + 2 * key_channels * heads;
        let mut declare =
            |leaf: &str, shape: Shape| Conv::declare(graph, format!("{name}.{leaf}"), shape);
        let qkv = declare("attn.qkv", Shape::new(channels, mixed, 1).linear());
        let proj = declare("attn.proj", Shape::new(channels, channels, 1).linear());
        let pe = declare(
            "attn.pe",
            Shape::new(channels, channels, 3).depthwise().linear(),
        );
        let ffn = [
            declare("ffn.0", Shape::new(channels, 2 * channels, 1)),
            declare("ffn.1", Shape::new(2 * channels, channels, 1).linear()),
        ];
        Self {
            name,
            heads,
            key_channels,
            value_channels,
            qkv,
            proj,
            pe,
            ffn,
        }
    }

    fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        let attention = format!("{}.attn", self.name);
        let qkv = self.qkv.wire(graph, input);
        let [attended, values] = graph.attention(
            &attention,
            qkv,
            self.heads,
            self.key_channels,
            self.value_channels,
        );
        let positions = self.pe.wire(graph, values);
        let attended = graph.add(&attention, attended, positions);
        let attended = self.proj.wire(graph, attended);
        let middle = graph.add(&self.name, input, attended);
        let wide = self.ffn[0].wire(graph, middle);
        let narrow = self.ffn[1].wire(graph, wide);
        graph.add(&self.name, middle, narrow)
    }
}

/// Adds a C2PSA: half of the channels go through attention blocks.
pub(super) fn c2psa(
    graph: &mut Graph,
    name: &str,
    channels: usize,
    repeats: usize,
    input: ValueId,
) -> ValueId {
    let hidden = channels / 2;
    let cv1 = Conv::declare(
        graph,
        format!("{name}.cv1"),
        Shape::new(channels, 2 * hidden, 1),
    );
    let cv2 = Conv::declare(
        graph,
        format!("{name}.cv2"),
        Shape::new(2 * hidden, channels, 1),
    );
    let inner: Vec<_> = (0..repeats)
        .map(|i| PsaBlock::declare(graph, format!("{name}.m.{i}"), hidden))
        .collect();

    let both = cv1.wire(graph, input);
    let [kept, mut attended] = graph.halves(name, both);
    for block in &inner {
        attended = block.wire(graph, attended);
    }
    let joined = graph.concat(name, &[kept, attended]);
    cv2.wire(graph, joined)
}

/// Adds a detection head over three levels: a box branch and a class branch each.
pub(super) fn detect(graph: &mut Graph, name: &str, class_count: usize, inputs: [ValueId; 3]) {
    let channels = inputs.map(|id| graph.value(id).channels);
    let box_hidden = (channels[0] / 4).max(4 * BINS);
    let class_hidden = channels[0].max(class_count.min(100));

    let boxes = [0, 1, 2].map(|level| {
        let name = format!("{name}.cv2.{level}");
        let shapes = [
            Shape::new(channels[level], box_hidden, 3),
            Shape::new(box_hidden, box_hidden, 3),
        ];
        let mut branch: Vec<_> = shapes
            .into_iter()
            .enumerate()
            .map(|(i, shape)| Conv::declare(graph, format!("{name}.{i}"), shape))
            .collect();
        let last = Shape::new(box_hidden, 4 * BINS, 1);
        branch.push(Conv::declare_plain(graph, format!("{name}.2"), last));
        branch
    });
    let scores = [0, 1, 2].map(|level| {
        let name = format!("{name}.cv3.{level}");
        let input = channels[level];
        let shapes = [
            ("0.0", Shape::new(input, input, 3).depthwise()),
            ("0.1", Shape::new(input, class_hidden, 1)),
            ("1.0", Shape::new(class_hidden, class_hidden, 3).depthwise()),
            ("1.1", Shape::new(class_hidden, class_hidden, 1)),
        ];
        let mut branch: Vec<_> = shapes
            .into_iter()
            .map(|(leaf, shape)| Conv::declare(graph, format!("{name}.{leaf}"), shape))
            .collect();
        let last = Shape::new(class_hidden, class_count, 1);
        branch.push(Conv::declare_plain(graph, format!("{name}.2"), last));
        branch
    });
    graph.parameter(
        format!("{name}.dfl.conv.weight"),
        vec![1, BINS, 1, 1],
        Role::Frozen,
    );

    let mut levels = Vec::with_capacity(3);
    for level in 0..3 {
        let mut run = |branch: &[Conv]| branch.iter().fold(inputs[level], |x, c| c.wire(graph, x));
        let head = Head {
            stride: STRIDES[level],
            boxes: run(&boxes[level]),
            scores: run(&scores[level]),
            extra: None,
            sigma: None,
        };
        levels.push(head);
    }
    graph.branches.push(levels);
}

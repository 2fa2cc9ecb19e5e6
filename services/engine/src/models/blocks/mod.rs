//! The building blocks of the YOLO families, each expanded into graph nodes. A block first declares its
//! tensors in the order of the reference's state dict, then wires its nodes in the order they run.

mod attention;
mod csp;

pub(super) use attention::c2psa;
pub(super) use csp::{Csp, Inner, csp};

use crate::graph::{Activation, Convolution, Form, Graph, Norm, ValueId};
use crate::network::Role;

/// What distinguishes one convolution from another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    input: usize,
    output: usize,
    kernel: usize,
    stride: usize,
    form: Form,
    activation: Activation,
}

impl Shape {
    /// A dense convolution with activation.
    pub(super) fn new(input: usize, output: usize, kernel: usize) -> Self {
        Self {
            input,
            output,
            kernel,
            stride: 1,
            form: Form::Dense,
            activation: Activation::Silu,
        }
    }

    pub(super) fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    /// One channel at a time.
    pub(super) fn depthwise(channels: usize, kernel: usize) -> Self {
        Self {
            form: Form::Depthwise,
            ..Self::new(channels, channels, kernel)
        }
    }

    /// Twice the side, no pixel of the output under two of the input.
    pub(super) fn transposed(channels: usize) -> Self {
        Self {
            form: Form::Transposed,
            stride: 2,
            ..Self::new(channels, channels, 2)
        }
    }

    /// Without activation.
    pub(super) fn linear(self) -> Self {
        Self {
            activation: Activation::Identity,
            ..self
        }
    }

    /// Returns the shape of the weights.
    fn weight(&self) -> Vec<usize> {
        let channels = match self.form {
            Form::Dense => [self.output, self.input],
            Form::Depthwise => [self.output, 1],
            Form::Transposed => [self.input, self.output],
        };
        [channels, [self.kernel; 2]].concat()
    }

    fn convolution(self, weight: usize, bias: Option<usize>, norm: Option<Norm>) -> Convolution {
        Convolution {
            input_channels: self.input,
            output_channels: self.output,
            kernel: self.kernel,
            stride: self.stride,
            form: self.form,
            detached: false,
            weight,
            bias,
            norm,
            activation: self.activation,
        }
    }
}

/// A convolution block whose tensors are declared.
#[derive(Debug, Clone)]
pub(super) struct Conv {
    name: String,
    convolution: Convolution,
}

impl Conv {
    /// Declares convolution and norm.
    pub(super) fn declare(graph: &mut Graph, name: String, shape: Shape) -> Self {
        let weight = format!("{name}.conv.weight");
        let weight = graph.parameter(weight, shape.weight(), Role::Weight);
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
            constants: graph.norm_constants,
        };
        let convolution = shape.convolution(weight, None, Some(norm));
        Self { name, convolution }
    }

    /// Declares a convolution with a bias and nothing after it.
    pub(super) fn declare_plain(graph: &mut Graph, name: String, shape: Shape) -> Self {
        Self::declare_biased(graph, name, shape, shape.weight())
    }

    /// Declares a linear layer, which is a convolution of single pixels.
    pub(super) fn declare_linear(
        graph: &mut Graph,
        name: String,
        inputs: usize,
        outputs: usize,
    ) -> Self {
        let shape = Shape::new(inputs, outputs, 1);
        Self::declare_biased(graph, name, shape, vec![outputs, inputs])
    }

    fn declare_biased(
        graph: &mut Graph,
        name: String,
        shape: Shape,
        weight_shape: Vec<usize>,
    ) -> Self {
        let weight = graph.parameter(format!("{name}.weight"), weight_shape, Role::Weight);
        let bias = graph.parameter(format!("{name}.bias"), vec![shape.output], Role::Bias);
        let convolution = shape.linear().convolution(weight, Some(bias), None);
        Self { name, convolution }
    }

    /// Lets no gradient through to its input.
    pub(super) fn detach(&mut self) {
        self.convolution.detached = true;
    }

    pub(super) fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        graph.convolution(&self.name, self.convolution, input)
    }
}

/// Wires convolutions one after another.
pub(super) fn chain(graph: &mut Graph, convolutions: &[Conv], input: ValueId) -> ValueId {
    convolutions
        .iter()
        .fold(input, |value, conv| conv.wire(graph, value))
}

/// Adds a convolution block.
pub(super) fn conv(graph: &mut Graph, name: &str, shape: Shape, input: ValueId) -> ValueId {
    Conv::declare(graph, name.to_owned(), shape).wire(graph, input)
}

/// Adds spatial pyramid pooling: three max-pools in a row, all of them joined. `shortcut` adds the input and
/// leaves the first convolution without activation, as YOLO26 has it.
pub(super) fn sppf(
    graph: &mut Graph,
    name: &str,
    channels: [usize; 2],
    shortcut: bool,
    input: ValueId,
) -> ValueId {
    const POOLS: usize = 3;
    const WINDOW: usize = 5;
    let hidden = channels[0] / 2;
    let first = Shape::new(channels[0], hidden, 1);
    let first = if shortcut { first.linear() } else { first };
    let cv1 = Conv::declare(graph, format!("{name}.cv1"), first);
    let last = Shape::new((POOLS + 1) * hidden, channels[1], 1);
    let cv2 = Conv::declare(graph, format!("{name}.cv2"), last);

    let mut parts = vec![cv1.wire(graph, input)];
    for i in 0..POOLS {
        let pooled = graph.max_pool(&format!("{name}.m.{i}"), WINDOW, parts[i]);
        parts.push(pooled);
    }
    let joined = graph.concat(name, &parts);
    let output = cv2.wire(graph, joined);
    if shortcut && channels[0] == channels[1] {
        graph.add(name, input, output)
    } else {
        output
    }
}

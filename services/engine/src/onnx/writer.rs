//! Walks a model's graph and emits ONNX nodes for each of its nodes.

use super::builder::Builder;
use super::proto::Attribute;
use crate::graph::{Activation, Convolution, Form, Graph, Node, Op, ValueId};
use crate::network::{InputShape, State};

/// A file in the making.
pub struct Writer<'a> {
    pub graph: &'a Graph,
    pub state: &'a State,
    pub shape: InputShape,
    pub builder: Builder,
    /// The ONNX name of each value of the graph.
    pub names: Vec<String>,
}

impl Writer<'_> {
    /// Emits a node of the model; those it reads from come before it.
    pub fn node(&mut self, node: &Node) {
        let inputs: Vec<String> = node
            .inputs
            .iter()
            .map(|id| self.names[id.0].clone())
            .collect();
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let name = &node.name[..];
        let outputs = match node.op {
            Op::Image => vec!["images".to_owned()],
            Op::Convolution(convolution) => vec![self.convolution(name, &convolution, inputs[0])],
            Op::Add => vec![self.builder.node(name, "Add", &inputs, Vec::new())],
            Op::MaxPool { window } => vec![self.max_pool(name, window as i64, inputs[0])],
            Op::Upsample => vec![self.upsample(name, inputs[0])],
            Op::GlobalPool => {
                vec![
                    self.builder
                        .node(name, "GlobalAveragePool", &inputs, Vec::new()),
                ]
            }
            Op::Concat => vec![self.builder.concat(name, &inputs, 1)],
            Op::Slice { offset } => {
                let length = self.graph.value(node.outputs[0]).channels;
                vec![self.slice(name, inputs[0], offset as i64, (offset + length) as i64)]
            }
            Op::Attention {
                heads,
                key_channels,
                value_channels,
            } => {
                let sides = self.sides(node.inputs[0]);
                let channels = [heads, key_channels, value_channels].map(|count| count as i64);
                self.attention(name, inputs[0], channels, sides).to_vec()
            }
        };
        for (id, output) in node.outputs.iter().zip(outputs) {
            self.names[id.0] = output;
        }
    }

    /// Returns height and width of a value.
    pub fn sides(&self, id: ValueId) -> [i64; 2] {
        let [height, width] = self.graph.value(id).size.of(self.shape);
        [height as i64, width as i64]
    }

    fn convolution(&mut self, name: &str, convolution: &Convolution, input: &str) -> String {
        let (weights, bias) = folded(self.graph, self.state, convolution);
        // Under the reference's names, so that an exported model can be a base model.
        let weight = &self.graph.parameters[convolution.weight];
        let bias_name = weight.name.replace(".weight", ".bias");
        let builder = &mut self.builder;
        let weights = builder.floats(&weight.name, &weight.shape, &weights);
        let bias = builder.floats(&bias_name, &[bias.len()], &bias);
        if let [_, _] = weight.shape[..] {
            let pixel = builder.node(name, "Flatten", &[input], Vec::new());
            let inputs = [&pixel[..], &weights, &bias];
            return builder.node(name, "Gemm", &inputs, vec![Attribute::int("transB", 1)]);
        }
        let kernel = convolution.kernel as i64;
        let (op, groups, padding) = match convolution.form {
            Form::Dense => ("Conv", 1, kernel / 2),
            Form::Depthwise => ("Conv", convolution.input_channels as i64, kernel / 2),
            Form::Transposed => ("ConvTranspose", 1, 0),
        };
        let attributes = vec![
            Attribute::ints("dilations", [1, 1]),
            Attribute::int("group", groups),
            Attribute::ints("kernel_shape", [kernel; 2]),
            Attribute::ints("pads", [padding; 4]),
            Attribute::ints("strides", [convolution.stride as i64; 2]),
        ];
        let output = builder.node(name, op, &[input, &weights, &bias], attributes);
        match convolution.activation {
            Activation::Identity => output,
            Activation::Silu => {
                let gate = builder.node(name, "Sigmoid", &[&output], Vec::new());
                builder.node(name, "Mul", &[&output, &gate], Vec::new())
            }
        }
    }

    fn max_pool(&mut self, name: &str, window: i64, input: &str) -> String {
        let attributes = vec![
            Attribute::int("ceil_mode", 0),
            Attribute::ints("kernel_shape", [window; 2]),
            Attribute::ints("pads", [window / 2; 4]),
            Attribute::ints("strides", [1, 1]),
        ];
        self.builder.node(name, "MaxPool", &[input], attributes)
    }

    fn upsample(&mut self, name: &str, input: &str) -> String {
        let scales = self
            .builder
            .floats(&format!("{name}.scales"), &[4], &[1.0, 1.0, 2.0, 2.0]);
        let attributes = vec![
            Attribute::text("coordinate_transformation_mode", "asymmetric"),
            Attribute::text("mode", "nearest"),
            Attribute::text("nearest_mode", "floor"),
        ];
        self.builder
            .node(name, "Resize", &[input, "", &scales], attributes)
    }

    fn slice(&mut self, name: &str, input: &str, start: i64, end: i64) -> String {
        let (start, end) = (self.builder.whole(&[start]), self.builder.whole(&[end]));
        let axis = self.builder.whole(&[1]);
        self.builder
            .node(name, "Slice", &[input, &start, &end, &axis], Vec::new())
    }

    fn attention(
        &mut self,
        name: &str,
        input: &str,
        [heads, keys, values]: [i64; 3],
        [height, width]: [i64; 2],
    ) -> [String; 2] {
        let builder = &mut self.builder;
        let split = builder.reshape(name, input, &[0, heads, 2 * keys + values, height * width]);
        let parts = builder.split(name, &split, 2, &[keys, keys, values]);
        let scale = (keys as f32).powf(-0.5);
        let scale = builder.floats(&format!("{name}.scale"), &[], &[scale]);
        let queries = builder.node(name, "Mul", &[&parts[0], &scale], Vec::new());
        let queries = builder.transpose(name, &queries, [0, 1, 3, 2]);
        let scores = builder.node(name, "MatMul", &[&queries, &parts[1]], Vec::new());
        let shares = builder.node(
            name,
            "Softmax",
            &[&scores],
            vec![Attribute::int("axis", -1)],
        );
        let shares = builder.transpose(name, &shares, [0, 1, 3, 2]);
        let attended = builder.node(name, "MatMul", &[&parts[2], &shares], Vec::new());
        let image = [0, heads * values, height, width];
        [
            builder.reshape(name, &attended, &image),
            builder.reshape(name, &parts[2], &image),
        ]
    }
}

/// Returns weight and bias of a convolution with its norm folded in.
fn folded(graph: &Graph, state: &State, convolution: &Convolution) -> (Vec<f32>, Vec<f32>) {
    let parameter = |index: usize| &state.parameters[graph.parameters[index].range()];
    let buffer = |index: usize| &state.buffers[graph.buffers[index].range()];
    let weight = parameter(convolution.weight);
    let Some(norm) = convolution.norm else {
        let bias = convolution.bias.map_or_else(
            || vec![0.0; convolution.output_channels],
            |bias| parameter(bias).to_vec(),
        );
        return (weight.to_vec(), bias);
    };
    let (gamma, beta) = (parameter(norm.weight), parameter(norm.bias));
    let (mean, variance) = (buffer(norm.mean), buffer(norm.variance));
    let per_channel = weight.len() / convolution.output_channels;
    let mut weights = Vec::with_capacity(weight.len());
    let mut biases = Vec::with_capacity(convolution.output_channels);
    for (channel, kernel) in weight.chunks_exact(per_channel).enumerate() {
        let scale = f64::from(gamma[channel])
            / (f64::from(variance[channel]) + norm.constants.epsilon()).sqrt();
        weights.extend(
            kernel
                .iter()
                .map(|&value| (f64::from(value) * scale) as f32),
        );
        biases.push((f64::from(beta[channel]) - f64::from(mean[channel]) * scale) as f32);
    }
    (weights, biases)
}

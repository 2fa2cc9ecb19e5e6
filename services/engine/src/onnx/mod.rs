//! Writes a trained model as an ONNX file that other runtimes load.
//!
//! For callers: `export(&ModelSpec, &State, &ExportOptions) -> Result<Vec<u8>>`. `State` is what a checkpoint's
//! `inference_state` returns; the bytes are a whole `.onnx` file (opset 18): input `images` (1, 3, height, width) float RGB 0 to 1,
//! output `output0` (1, 4 + classes, anchors) with centre x, centre y, width, height in input pixels and σ scores.
//! Norms are folded into the convolutions. The file's metadata carries class names, stride, task and image size.

mod builder;
pub(crate) mod proto;
pub(crate) mod python;
#[cfg(test)]
pub(crate) mod tests;

use prost::Message;

use builder::Builder;
use proto::dimension::Value as Side;
use proto::{Attribute, Entry, ValueInfo};

use crate::graph::{Activation, Convolution, Form, Graph, Node, Op, ValueId};
use crate::models::{self, ModelSpec, Task};
use crate::network::{InputShape, State};
use crate::{Error, Result};

/// The operator set of the file.
pub const OPSET: i64 = 18;
/// Understood by every ONNX Runtime since 1.14.
const IR_VERSION: i64 = 8;
/// Added to the variance before its root, as in training.
const NORM_EPSILON: f64 = 1e-3;

/// What to put into the file beside the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportOptions {
    pub height: usize,
    pub width: usize,
    /// Leave the number of pictures open; otherwise it is one.
    pub dynamic_batch: bool,
    /// In the order of the class numbers.
    pub class_names: Vec<String>,
    /// Free text: what the model was trained on.
    pub description: String,
    /// When, in RFC 3339; the engine has no calendar of its own.
    pub date: String,
}

/// Returns the model as the bytes of an `.onnx` file.
pub fn export(spec: &ModelSpec, state: &State, options: &ExportOptions) -> Result<Vec<u8>> {
    let shape = InputShape {
        batch: 1,
        height: options.height,
        width: options.width,
    };
    shape.check()?;
    if options.class_names.len() != spec.class_count {
        return Err(Error::Argument {
            argument: "class_names",
            rule: format!(
                "the model has {} classes and {} names were given",
                spec.class_count,
                options.class_names.len()
            ),
        });
    }
    check_exported(spec)?;
    let graph = models::graph(spec);
    check_state(&graph, state)?;
    let mut writer = Writer {
        graph: &graph,
        state,
        shape,
        builder: Builder::default(),
        names: vec![String::new(); graph.values.len()],
    };
    for node in &graph.nodes {
        writer.node(node);
    }
    let anchors = writer.detect_head(spec.class_count);
    let Builder {
        nodes, constants, ..
    } = writer.builder;
    let batch = || match options.dynamic_batch {
        true => Side::Name("batch".into()),
        false => Side::Number(1),
    };
    let number = |side: usize| Side::Number(side as i64);
    let input = [
        batch(),
        number(3),
        number(shape.height),
        number(shape.width),
    ];
    let output = [batch(), number(4 + spec.class_count), number(anchors)];
    let model = proto::Model {
        ir_version: IR_VERSION,
        producer_name: "fovea".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: Some(proto::Graph {
            node: nodes,
            name: spec.name(),
            initializer: constants,
            input: vec![ValueInfo::float("images", input)],
            output: vec![ValueInfo::float("output0", output)],
        }),
        opset_import: vec![proto::OperatorSet {
            domain: String::new(),
            version: OPSET,
        }],
        metadata_props: metadata(spec, options),
    };
    Ok(model.encode_to_vec())
}

fn check_exported(spec: &ModelSpec) -> Result<()> {
    if spec.task == Task::Detect && !spec.family.is_end_to_end() {
        return Ok(());
    }
    Err(Error::Argument {
        argument: "model",
        rule: format!("{} has no ONNX form in this version", spec.name()),
    })
}

fn check_state(graph: &Graph, state: &State) -> Result<()> {
    let wanted = [
        graph
            .parameters
            .last()
            .map_or(0, |tensor| tensor.range().end),
        graph.buffers.last().map_or(0, |tensor| tensor.range().end),
    ];
    let given = [state.parameters.len(), state.buffers.len()];
    if wanted == given {
        return Ok(());
    }
    Err(Error::Argument {
        argument: "state",
        rule: format!(
            "the model has {} parameters and {} statistics, the weights {} and {}",
            wanted[0], wanted[1], given[0], given[1]
        ),
    })
}

/// The keys and value formats that tools for this kind of file read.
fn metadata(spec: &ModelSpec, options: &ExportOptions) -> Vec<Entry> {
    let task = spec.task.name();
    let size = format!("[{}, {}]", options.height, options.width);
    let arguments = format!(
        "{{'batch': 1, 'half': False, 'dynamic': {}, 'simplify': True, 'opset': {OPSET}, 'nms': False}}",
        if options.dynamic_batch {
            "True"
        } else {
            "False"
        }
    );
    [
        ("description", options.description.clone()),
        ("author", "Fovea".into()),
        ("date", options.date.clone()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("license", "Apache-2.0".into()),
        ("docs", "https://onnxruntime.ai".into()),
        ("stride", InputShape::SIDE_STEP.to_string()),
        ("task", task.into()),
        ("batch", "1".into()),
        ("imgsz", size),
        ("names", python::names(&options.class_names)),
        ("args", arguments),
        ("channels", "3".into()),
        ("end2end", "False".into()),
    ]
    .into_iter()
    .map(|(key, value)| Entry {
        key: key.into(),
        value,
    })
    .collect()
}

/// Walks a model's graph and emits ONNX nodes for each of its nodes.
struct Writer<'a> {
    graph: &'a Graph,
    state: &'a State,
    shape: InputShape,
    builder: Builder,
    /// The ONNX name of each value of the graph.
    names: Vec<String>,
}

impl Writer<'_> {
    fn node(&mut self, node: &Node) {
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
    fn sides(&self, id: ValueId) -> [i64; 2] {
        let [height, width] = self.graph.value(id).size.of(self.shape);
        [height as i64, width as i64]
    }

    fn convolution(&mut self, name: &str, convolution: &Convolution, input: &str) -> String {
        let (weights, bias) = folded(self.graph, self.state, convolution);
        // Under the reference's names, so that an exported model can be a base model.
        let weight = &self.graph.parameters[convolution.weight];
        let bias_name = weight.name.replace(".weight", ".bias");
        let weights = self.builder.floats(&weight.name, &weight.shape, &weights);
        let bias = self.builder.floats(&bias_name, &[bias.len()], &bias);
        let kernel = convolution.kernel as i64;
        let groups = match convolution.form {
            Form::Dense => 1,
            Form::Depthwise => convolution.input_channels,
            Form::Transposed => unreachable!("invariant: `export` refuses models with masks"),
        };
        let attributes = vec![
            Attribute::ints("dilations", [1, 1]),
            Attribute::int("group", groups as i64),
            Attribute::ints("kernel_shape", [kernel; 2]),
            Attribute::ints("pads", [kernel / 2; 4]),
            Attribute::ints("strides", [convolution.stride as i64; 2]),
        ];
        let output = self
            .builder
            .node(name, "Conv", &[input, &weights, &bias], attributes);
        match convolution.activation {
            Activation::Identity => output,
            Activation::Silu => {
                let gate = self.builder.node(name, "Sigmoid", &[&output], Vec::new());
                self.builder
                    .node(name, "Mul", &[&output, &gate], Vec::new())
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

    /// Emits decoding of the boxes and the output; returns the number of anchors.
    fn detect_head(&mut self, class_count: usize) -> usize {
        const NAME: &str = "head";
        let heads = &self.graph.branches[0];
        let (mut boxes, mut scores) = (Vec::new(), Vec::new());
        let (mut centres_x, mut centres_y, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        let bins = self.graph.value(heads[0].boxes).channels / 4;
        for head in heads {
            let [height, width] = self.sides(head.boxes);
            let cells = height * width;
            let flat = |channels: usize| [0, channels as i64, cells];
            let (raw_boxes, raw_scores) = (&self.names[head.boxes.0], &self.names[head.scores.0]);
            boxes.push(self.builder.reshape(NAME, raw_boxes, &flat(4 * bins)));
            scores.push(self.builder.reshape(NAME, raw_scores, &flat(class_count)));
            for cell in 0..cells {
                centres_x.push((cell % width) as f32 + 0.5);
                centres_y.push((cell / width) as f32 + 0.5);
                strides.push(head.stride as f32);
            }
        }
        let anchors = strides.len();
        let builder = &mut self.builder;
        let boxes: Vec<&str> = boxes.iter().map(String::as_str).collect();
        let boxes = builder.concat(NAME, &boxes, 2);
        let scores: Vec<&str> = scores.iter().map(String::as_str).collect();
        let scores = builder.concat(NAME, &scores, 2);

        // The distance of a side is the mean of its bins' numbers, weighed by their softmax.
        let boxes = builder.reshape(NAME, &boxes, &[0, 4, bins as i64, anchors as i64]);
        let boxes = builder.transpose(NAME, &boxes, [0, 2, 1, 3]);
        let boxes = builder.node(NAME, "Softmax", &[&boxes], vec![Attribute::int("axis", 1)]);
        let numbers: Vec<f32> = (0..bins).map(|bin| bin as f32).collect();
        let numbers = builder.floats("head.bins", &[1, bins, 1, 1], &numbers);
        let attributes = vec![Attribute::ints("kernel_shape", [1, 1])];
        let distances = builder.node(NAME, "Conv", &[&boxes, &numbers], attributes);
        let distances = builder.reshape(NAME, &distances, &[0, 4, anchors as i64]);

        let parts = builder.split(NAME, &distances, 1, &[2, 2]);
        centres_x.append(&mut centres_y);
        let centres = builder.floats("head.centres", &[1, 2, anchors], &centres_x);
        let strides = builder.floats("head.strides", &[1, 1, anchors], &strides);
        let low = builder.node(NAME, "Sub", &[&centres, &parts[0]], Vec::new());
        let high = builder.node(NAME, "Add", &[&centres, &parts[1]], Vec::new());
        let sum = builder.node(NAME, "Add", &[&low, &high], Vec::new());
        let half = builder.floats("head.half", &[], &[0.5]);
        let middle = builder.node(NAME, "Mul", &[&sum, &half], Vec::new());
        let size = builder.node(NAME, "Sub", &[&high, &low], Vec::new());
        let boxes = builder.concat(NAME, &[&middle, &size], 1);
        let boxes = builder.node(NAME, "Mul", &[&boxes, &strides], Vec::new());
        let scores = builder.node(NAME, "Sigmoid", &[&scores], Vec::new());
        builder.concat(NAME, &[&boxes, &scores], 1);
        builder.rename_last("output0");
        anchors
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
        let scale =
            f64::from(gamma[channel]) / (f64::from(variance[channel]) + NORM_EPSILON).sqrt();
        weights.extend(
            kernel
                .iter()
                .map(|&value| (f64::from(value) * scale) as f32),
        );
        biases.push((f64::from(beta[channel]) - f64::from(mean[channel]) * scale) as f32);
    }
    (weights, biases)
}

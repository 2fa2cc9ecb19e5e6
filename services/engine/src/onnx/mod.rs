//! Writes a trained model as an ONNX file that other runtimes load.
//!
//! For callers: `export(&ModelSpec, &State, &ExportOptions) -> Result<Vec<u8>>`. `State` is what a checkpoint's
//! `inference_state` returns; the bytes are a whole `.onnx` file (opset 18): input `images` (1, 3, height, width) float
//! RGB 0 to 1, and
//!
//! * `output0` (1, 4 + classes + extras, anchors): centre x, centre y, width, height in input pixels, σ scores, then mask
//!   coefficients, keypoints or the angle; masks have `output1` (1, 32, height / 4, width / 4), their prototypes;
//! * of a one-to-one branch `output0` (1, detections, 6 + extras): corners (turned boxes: centre and size), score, class,
//!   extras, the surest first;
//! * of a classifier `output0` (1, classes), probabilities.
//!
//! Norms are folded into the convolutions, whose tensors keep the reference's names. The file's metadata carries class
//! names, stride, task and image size.

mod builder;
mod head;
pub(crate) mod proto;
pub(crate) mod python;
#[cfg(test)]
pub(crate) mod tests;
mod writer;

use prost::Message;

use builder::Builder;
use proto::dimension::Value as Side;
use proto::{Entry, ValueInfo};
use writer::Writer;

use crate::graph::Graph;
use crate::models::{self, Family, ModelSpec, Task};
use crate::network::{InputShape, State};
use crate::plan::{self, Branches};
use crate::{Error, Result};

/// The operator set of the file.
pub const OPSET: i64 = 18;
/// Understood by every ONNX Runtime since 1.14.
const IR_VERSION: i64 = 8;

/// What to put into the file beside the weights.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportOptions {
    pub height: usize,
    pub width: usize,
    /// Leave the number of pictures open; otherwise it is one.
    pub dynamic_batch: bool,
    /// Which branch of an end-to-end head to write; others have but one.
    pub branches: Branches,
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
    let mut graph = models::graph(spec);
    check_state(&graph, state)?;
    plan::keep_what_predicts(&mut graph, options.branches);
    let mut writer = Writer {
        graph: &graph,
        state,
        shape,
        builder: Builder::default(),
        names: vec![String::new(); graph.values.len()],
    };
    for (node, is_needed) in graph.nodes.iter().zip(graph.needed_nodes()) {
        if is_needed {
            writer.node(node);
        }
    }
    let outputs = writer.outputs(spec, is_end_to_end(spec, options));
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
    let output = |(index, sides): (usize, &Vec<usize>)| {
        let sides = std::iter::once(batch()).chain(sides.iter().map(|&side| number(side)));
        ValueInfo::float(&format!("output{index}"), sides)
    };
    let model = proto::Model {
        ir_version: IR_VERSION,
        producer_name: "fovea".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        graph: Some(proto::Graph {
            node: nodes,
            name: spec.name(),
            initializer: constants,
            input: vec![ValueInfo::float("images", input)],
            output: outputs.iter().enumerate().map(output).collect(),
        }),
        opset_import: vec![proto::OperatorSet {
            domain: String::new(),
            version: OPSET,
        }],
        metadata_props: metadata(spec, options),
    };
    Ok(model.encode_to_vec())
}

/// Returns whether the file's output needs no suppression.
fn is_end_to_end(spec: &ModelSpec, options: &ExportOptions) -> bool {
    let has_branches = spec.family.is_end_to_end() && spec.task != Task::Classify;
    has_branches && options.branches == Branches::OneToOne
}

/// Returns the reference's name of a head.
fn head_name(spec: &ModelSpec) -> &'static str {
    match (spec.task, spec.family) {
        (Task::Detect, _) => "Detect",
        (Task::Classify, _) => "Classify",
        (Task::Segment, Family::Yolo26) => "Segment26",
        (Task::Segment, _) => "Segment",
        (Task::Pose, Family::Yolo26) => "Pose26",
        (Task::Pose, _) => "Pose",
        (Task::Obb, Family::Yolo26) => "OBB26",
        (Task::Obb, _) => "OBB",
    }
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
    let truth = |is_so| if is_so { "True" } else { "False" };
    let arguments = format!(
        "{{'batch': 1, 'half': False, 'dynamic': {}, 'simplify': True, 'opset': {OPSET}, 'nms': {}}}",
        truth(options.dynamic_batch),
        // No word means that suppression is left to the caller.
        if is_end_to_end(spec, options) {
            "False"
        } else {
            "None"
        }
    );
    let end_to_end = truth(is_end_to_end(spec, options));
    let keypoints = spec
        .keypoints
        .map(|shape| ("kpt_shape", format!("[{}, {}]", shape.count, shape.dims)));
    [
        ("description", options.description.clone()),
        ("author", "Fovea".into()),
        ("date", options.date.clone()),
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("license", "Apache-2.0".into()),
        ("docs", "https://onnxruntime.ai".into()),
        ("stride", InputShape::SIDE_STEP.to_string()),
        ("task", task.into()),
        ("head", head_name(spec).into()),
        ("batch", "1".into()),
        ("imgsz", size),
        ("names", python::names(&options.class_names)),
        ("args", arguments),
        ("channels", "3".into()),
        ("end2end", end_to_end.into()),
    ]
    .into_iter()
    .chain(keypoints)
    .map(|(key, value)| Entry {
        key: key.into(),
        value,
    })
    .collect()
}

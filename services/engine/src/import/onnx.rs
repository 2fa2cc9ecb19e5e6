//! Weights out of an `.onnx` file: its initialisers, which exporters name after the reference's tensors.

use prost::Message as _;

use super::numbers::Format;
use super::{ELEMENTS_MAX, TENSORS_MAX, Tensor, Weights, element_count};
use crate::onnx::proto::{self, EXTERNAL};
use crate::onnx::python;

/// Reads a file, or says what is wrong and where.
pub fn read(bytes: &[u8]) -> Result<Weights, String> {
    let model =
        proto::Model::decode(bytes).map_err(|error| format!("not an ONNX file: {error}"))?;
    let graph = model.graph.ok_or("not an ONNX file: it holds no graph")?;
    if graph.initializer.len() > TENSORS_MAX {
        return Err(format!(
            "it holds {} tensors, {TENSORS_MAX} are read at most",
            graph.initializer.len()
        ));
    }
    let mut weights = Weights {
        classes: model
            .metadata_props
            .iter()
            .find(|entry| entry.key == "names")
            .and_then(|entry| python::read_names(&entry.value)),
        ..Weights::default()
    };
    let mut elements = 0;
    for tensor in &graph.initializer {
        let placed = |rule: String| format!("initialiser {}: {rule}", tensor.name);
        match values(tensor) {
            Err(rule) => return Err(placed(rule)),
            Ok(None) => weights.notes.push(placed(format!(
                "numbers of kind {} are not read",
                tensor.data_type
            ))),
            Ok(Some(read)) => {
                elements += read.values.len();
                if elements > ELEMENTS_MAX {
                    return Err(format!("it holds more than {ELEMENTS_MAX} elements"));
                }
                weights.tensors.insert(tensor.name.clone(), read);
            }
        }
    }
    name_shared_biases(&graph, &mut weights);
    Ok(weights)
}

/// Gives each convolution a bias of its own name: exporters keep one copy of equal tensors.
fn name_shared_biases(graph: &proto::Graph, weights: &mut Weights) {
    for node in graph.node.iter().filter(|node| node.op_type == "Conv") {
        let [_, weight, bias, ..] = &node.input[..] else {
            continue;
        };
        let Some(block) = weight.strip_suffix(".weight") else {
            continue;
        };
        let name = format!("{block}.bias");
        if let Some(shared) = weights.tensors.get(bias).cloned() {
            weights.tensors.entry(name).or_insert(shared);
        }
    }
}

/// Returns shape and values of a tensor, nothing where its kind of number is none of a weight's.
fn values(tensor: &proto::Tensor) -> Result<Option<Tensor>, String> {
    if tensor.data_location == EXTERNAL {
        return Err("it lies in another file; export the model as one file".into());
    }
    let format = match tensor.data_type {
        proto::FLOAT => Format::F32,
        proto::DOUBLE => Format::F64,
        proto::FLOAT16 => Format::F16,
        proto::BFLOAT16 => Format::Bf16,
        proto::INT64 => Format::I64,
        proto::INT32 => Format::I32,
        _ => return Ok(None),
    };
    let shape: Option<Vec<usize>> = tensor
        .dims
        .iter()
        .map(|&side| usize::try_from(side).ok())
        .collect();
    let shape = shape.ok_or("it has a negative side")?;
    let count = element_count(&shape)
        .filter(|&count| count <= ELEMENTS_MAX)
        .ok_or_else(|| format!("it has more than {ELEMENTS_MAX} elements"))?;
    let values: Vec<f32> = if !tensor.raw_data.is_empty() {
        if tensor.raw_data.len() != count.saturating_mul(format.bytes()) {
            return Err(format!(
                "{} bytes are not those of {shape:?}",
                tensor.raw_data.len()
            ));
        }
        format.read(&tensor.raw_data)
    } else {
        match format {
            Format::F32 => tensor.float_data.clone(),
            Format::F64 => tensor
                .double_data
                .iter()
                .map(|&value| value as f32)
                .collect(),
            Format::I64 => tensor
                .int64_data
                .iter()
                .map(|&value| value as f32)
                .collect(),
            Format::I32 => tensor
                .int32_data
                .iter()
                .map(|&value| value as f32)
                .collect(),
            // Halves stand one in each 32-bit number.
            Format::F16 | Format::Bf16 => {
                let halves = tensor.int32_data.iter().map(|&value| value as u16);
                format.read(&halves.flat_map(u16::to_le_bytes).collect::<Vec<u8>>())
            }
        }
    };
    if values.len() != count {
        return Err(format!(
            "{} values are not those of {shape:?}",
            values.len()
        ));
    }
    Ok(Some(Tensor { shape, values }))
}

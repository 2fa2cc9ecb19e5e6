//! Weights out of a `.safetensors` file with the reference's tensor names, and out of our own checkpoints, which are
//! such files with a header.

use std::collections::BTreeMap;

use safetensors::{Dtype, SafeTensors};

use super::numbers::Format;
use super::{ELEMENTS_MAX, TENSORS_MAX, Tensor, Weights};
use crate::checkpoint::{self, Checkpoint};
use crate::onnx::python;
use crate::{Error, Result};

/// The metadata key under which class names are looked for, as JSON or as a Python dictionary.
const NAMES: &str = "names";

/// Reads a file; `place` is what errors call it.
pub fn read(bytes: &[u8], place: &str) -> Result<Weights> {
    if checkpoint::is_checkpoint(bytes) {
        return Ok(Weights::of(&Checkpoint::from_bytes(bytes, place)?));
    }
    plain(bytes).map_err(|rule| Error::Weights {
        place: place.to_owned(),
        rule,
    })
}

fn plain(bytes: &[u8]) -> Result<Weights, String> {
    let invalid = |error: safetensors::SafeTensorError| format!("not a safetensors file: {error}");
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    let file = SafeTensors::deserialize(bytes).map_err(invalid)?;
    if file.len() > TENSORS_MAX {
        return Err(format!(
            "it holds {} tensors, {TENSORS_MAX} are read at most",
            file.len()
        ));
    }
    let mut tensors = BTreeMap::new();
    let mut notes = Vec::new();
    let mut elements = 0;
    for (name, view) in file.iter() {
        let format = match view.dtype() {
            Dtype::F32 => Format::F32,
            Dtype::F64 => Format::F64,
            Dtype::F16 => Format::F16,
            Dtype::BF16 => Format::Bf16,
            Dtype::I64 => Format::I64,
            Dtype::I32 => Format::I32,
            other => {
                notes.push(format!(
                    "tensor {name}: numbers of kind {other:?} are not read"
                ));
                continue;
            }
        };
        // The crate has checked that the bytes are those of the shape.
        elements += view.data().len() / format.bytes();
        if elements > ELEMENTS_MAX {
            return Err(format!("it holds more than {ELEMENTS_MAX} elements"));
        }
        let tensor = Tensor {
            shape: view.shape().to_vec(),
            values: format.read(view.data()),
        };
        tensors.insert(name.to_owned(), tensor);
    }
    notes.sort();
    let texts = metadata.metadata().as_ref();
    let classes = texts.and_then(|texts| texts.get(NAMES)).and_then(|text| {
        serde_json::from_str(text)
            .ok()
            .or_else(|| python::read_names(text))
    });
    Ok(Weights {
        tensors,
        classes,
        notes,
    })
}

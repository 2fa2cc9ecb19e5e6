//! Weights from elsewhere as a base model: PyTorch's `.pt`, `.safetensors`, `.onnx`, and our own checkpoints.
//!
//! For callers: [`into_state`] gives a model fresh weights and takes over what a file has for it; [`read`] and
//! [`load`] are its two halves, [`fitted`] makes a model to train as wide as the weights it begins with, and
//! [`model_name`] tells which model a file is of. Tensors go by the reference's names (`model.0.conv.weight`). Whatever fits by name and
//! shape is taken over; the head's rows follow the names of their classes; the report says what was not.
//!
//! **Invariant**: nothing in a file is ever run, and no size that a file claims is believed before it is there.

mod load;
mod numbers;
mod onnx;
mod pickle;
mod safetensors_file;
mod torch;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _};
use std::path::Path;

pub use load::{LoadReport, Skipped, fitted, into_state, load};

use crate::checkpoint::{Checkpoint, files};
use crate::models::{self, ModelSpec};
use crate::{Error, Result};

/// The most tensors of a file.
pub const TENSORS_MAX: usize = 1 << 16;
/// The most elements of all tensors together: four times those of the largest model.
pub const ELEMENTS_MAX: usize = 1 << 28;
/// The longest file that is read whole.
pub const FILE_BYTES_MAX: u64 = 4 << 30;

/// A tensor by its side lengths, in C order.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// What a file of weights holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Weights {
    pub tensors: BTreeMap<String, Tensor>,
    /// The classes in the order of their numbers, where the file names them.
    pub classes: Option<Vec<String>>,
    /// What was passed by or changed on the way in.
    pub notes: Vec<String>,
}

impl Weights {
    /// Returns the weights that a checkpoint predicts with.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let tables = models::tables(&checkpoint.header.model);
        let state = checkpoint.inference_state();
        let lists = [
            (&tables.parameters, &state.parameters),
            (&tables.buffers, &state.buffers),
        ];
        let tensors = lists.into_iter().flat_map(|(infos, values)| {
            infos.iter().map(|info| {
                let tensor = Tensor {
                    shape: info.shape.clone(),
                    values: values[info.range()].to_vec(),
                };
                (info.name.clone(), tensor)
            })
        });
        Self {
            tensors: tensors.collect(),
            classes: Some(checkpoint.header.classes.clone()),
            notes: Vec::new(),
        }
    }
}

/// Reads a file of weights; its first bytes tell the format.
pub fn read(path: &Path) -> Result<Weights> {
    let place = path.display().to_string();
    let refuse = |rule: String| Error::Weights {
        place: place.clone(),
        rule,
    };
    let mut file = File::open(path).map_err(Error::io(&place))?;
    let mut start = Vec::new();
    file.by_ref()
        .take(16)
        .read_to_end(&mut start)
        .map_err(Error::io(&place))?;
    file.rewind().map_err(Error::io(&place))?;
    if start.starts_with(b"PK\x03\x04") {
        return torch::read(BufReader::new(file)).map_err(refuse);
    }
    // A safetensors file begins with a length, whose first byte may be a pickle's.
    let is_safetensors = start.get(8) == Some(&b'{');
    if start.first() == Some(&0x80) && !is_safetensors {
        return Err(refuse(
            "a bare pickle, as PyTorch wrote before version 1.6: save it anew with a later one"
                .into(),
        ));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(Error::io(&place))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refuse(format!("it is longer than {FILE_BYTES_MAX} bytes")));
    }
    if is_safetensors {
        return safetensors_file::read(&bytes, &place);
    }
    let extension = path.extension().unwrap_or_default();
    if extension.eq_ignore_ascii_case("onnx") {
        return onnx::read(&bytes).map_err(refuse);
    }
    Err(refuse(
        "not a file of weights: .fovea, .pt, .safetensors and .onnx are read".into(),
    ))
}

/// Returns the name of the model whose weights a file holds: our own files say it, others by their own names
/// (`yolo11n.pt`).
pub fn model_name(path: &Path) -> Result<String> {
    if let Ok(checkpoint) = files::read(path) {
        return Ok(checkpoint.header.model.name());
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    match ModelSpec::parse(&stem, 1) {
        Ok(spec) => Ok(spec.name()),
        Err(_) => Err(Error::Weights {
            place: path.display().to_string(),
            rule: format!(
                "'{stem}' is no model's name: say which one with model=NAME pretrained=FILE"
            ),
        }),
    }
}

/// Returns the number of elements of a shape, if it is one at all.
fn element_count(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &side| product.checked_mul(side))
}

#[cfg(test)]
mod tests;

//! The model catalogue: which models exist, how they are named, and the parameters they have.

mod blocks;
mod family;
mod heads;
mod initialise;
mod spec;
mod yolo11;
mod yolo26;
mod yolo8;

pub use initialise::initialise;
pub use spec::{Family, KeypointShape, MASK_CHANNELS, ModelSpec, Scale, Task};

use crate::graph::Graph;
use crate::network::TensorInfo;

/// The named tensors of a model, in the order of the reference's state dict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tables {
    pub parameters: Vec<TensorInfo>,
    /// Running means and variances.
    pub buffers: Vec<TensorInfo>,
}

impl Tables {
    /// Returns the length of the flat parameter vector.
    pub fn parameter_count(&self) -> usize {
        self.parameters.last().map_or(0, |t| t.range().end)
    }

    /// Returns the length of the flat vector of running statistics.
    pub fn buffer_count(&self) -> usize {
        self.buffers.last().map_or(0, |t| t.range().end)
    }
}

/// Returns the graph of a model.
pub fn graph(spec: &ModelSpec) -> Graph {
    family::graph(spec)
}

/// Returns the names, shapes and roles of a model's tensors.
pub fn tables(spec: &ModelSpec) -> Tables {
    let Graph {
        parameters,
        buffers,
        ..
    } = graph(spec);
    Tables {
        parameters,
        buffers,
    }
}

#[cfg(test)]
mod tests;

//! The model catalogue: which models exist, how they are named, and the parameters they have.

mod blocks;
mod initialise;
mod spec;
mod yolo11;

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
    match (spec.family, spec.task) {
        (Family::Yolo11, Task::Detect) => yolo11::graph(spec),
        _ => unreachable!("invariant: `parse` names only models that are built"),
    }
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
mod tests {
    use super::*;
    use crate::network::Role;

    fn spec(name: &str, class_count: usize) -> ModelSpec {
        ModelSpec::parse(name, class_count).unwrap()
    }

    #[test]
    fn parameter_counts_are_the_published_ones() {
        let published = [2_624_080, 9_458_752, 20_114_688, 25_372_160, 56_966_176];
        for (name, count) in ModelSpec::names().zip(published) {
            assert_eq!(tables(&spec(&name, 80)).parameter_count(), count, "{name}");
        }
    }

    #[test]
    fn names_are_unique_and_offsets_leave_no_gap() {
        for name in ModelSpec::names() {
            let tables = tables(&spec(&name, 3));
            for tensors in [&tables.parameters, &tables.buffers] {
                let mut names: Vec<_> = tensors.iter().map(|t| &t.name).collect();
                names.sort();
                names.dedup();
                assert_eq!(names.len(), tensors.len());
                let ends = std::iter::once(0).chain(tensors.iter().map(|t| t.range().end));
                assert!(tensors.iter().zip(ends).all(|(t, end)| t.offset == end));
            }
        }
    }

    #[test]
    fn every_bias_and_norm_has_its_role() {
        for tensor in tables(&spec("yolo11n", 80)).parameters {
            let expected = match tensor.name.as_str() {
                name if name.contains("dfl") => Role::Frozen,
                name if name.ends_with("bias") => Role::Bias,
                name if name.contains(".bn.") => Role::NormWeight,
                _ => Role::Weight,
            };
            assert_eq!(tensor.role, expected, "{}", tensor.name);
        }
    }

    #[test]
    fn fresh_weights_are_bounded_and_follow_the_seed() {
        let spec = spec("yolo11n", 80);
        let tables = tables(&spec);
        let [one, same, other] = [1, 1, 2].map(|seed| initialise(&spec, seed));
        assert_eq!(one, same);
        assert_ne!(one.parameters, other.parameters);
        let named = |name: &str| {
            let tensor = tables.parameters.iter().find(|t| t.name == name).unwrap();
            &one.parameters[tensor.range()]
        };
        let first = named("model.0.conv.weight");
        let bound = 1.0 / 27f32.sqrt();
        assert!(first.iter().all(|w| w.abs() <= bound));
        assert!(first.iter().any(|w| w.abs() > 0.9 * bound));
        let class_biases = [0, 1, 2].map(|i| named(&format!("model.23.cv3.{i}.2.bias"))[0]);
        for (bias, expected) in class_biases.into_iter().zip([-11.5366, -10.1503, -8.7640]) {
            assert!((bias - expected).abs() < 1e-4);
        }
        assert_eq!(named("model.23.cv2.0.2.bias"), [2.0; 64]);
        assert_eq!(named("model.23.dfl.conv.weight")[15], 15.0);
        assert_eq!(named("model.0.bn.weight"), [1.0; 16]);
        assert!(one.buffers.contains(&1.0));
    }
}

//! Fresh parameters: what a model is before its first step.

use super::blocks::{BINS, STRIDES};
use super::{ModelSpec, graph};
use crate::graph::{Graph, Op};
use crate::network::{Role, State};
use crate::random::{Philox, Use};

/// The image side for which the class bias expects `OBJECTS_PER_IMAGE` objects.
const BIAS_IMAGE_SIDE: f64 = 640.0;
const OBJECTS_PER_IMAGE: f64 = 5.0;
/// Cancels in the softmax over bins; kept because the published weights have it.
const BOX_BIAS: f32 = 2.0;

/// Returns fresh parameters; the same seed gives the same bits on every machine.
///
/// Weights and biases of convolutions are uniform in ±1/√(inputs of one output), norms are the identity, and
/// the head's biases make every cell expect few objects.
pub fn initialise(spec: &ModelSpec, seed: u64) -> State {
    let graph = graph(spec);
    let mut state = State {
        parameters: vec![0.0; graph.parameters.last().map_or(0, |t| t.range().end)],
        buffers: vec![0.0; graph.buffers.last().map_or(0, |t| t.range().end)],
    };
    for node in &graph.nodes {
        let Op::Convolution(convolution) = node.op else {
            continue;
        };
        let weight = &graph.parameters[convolution.weight];
        let inputs = weight.element_count() / weight.shape[0];
        let bound = 1.0 / (inputs as f64).sqrt();
        for tensor in [Some(convolution.weight), convolution.bias]
            .into_iter()
            .flatten()
        {
            let values = &mut state.parameters[graph.parameters[tensor].range()];
            fill_uniform(values, bound, seed, tensor);
        }
        if let Some(norm) = convolution.norm {
            state.parameters[graph.parameters[norm.weight].range()].fill(1.0);
            state.buffers[graph.buffers[norm.variance].range()].fill(1.0);
        }
    }
    for tensor in graph.parameters.iter().filter(|t| t.role == Role::Frozen) {
        let values = &mut state.parameters[tensor.range()];
        debug_assert_eq!(values.len(), BINS, "the only constant is the bins' numbers");
        values
            .iter_mut()
            .enumerate()
            .for_each(|(i, v)| *v = i as f32);
    }
    initialise_head(&graph, spec.class_count, &mut state.parameters);
    state
}

fn fill_uniform(values: &mut [f32], bound: f64, seed: u64, tensor: usize) {
    let sample = u32::try_from(tensor).expect("invariant: a model has few tensors");
    let mut random = Philox::new(seed, 0, sample, Use::Initialise);
    for value in values {
        *value = (bound * (2.0 * f64::from(random.uniform_f32()) - 1.0)) as f32;
    }
}

fn initialise_head(graph: &Graph, class_count: usize, parameters: &mut [f32]) {
    let bias_of = |value| match graph.nodes[graph.producer(value)].op {
        Op::Convolution(convolution) => convolution.bias,
        _ => None,
    };
    for (head, stride) in graph
        .branches
        .iter()
        .flat_map(|levels| levels.iter().zip(STRIDES))
    {
        if let Some(bias) = bias_of(head.boxes) {
            parameters[graph.parameters[bias].range()].fill(BOX_BIAS);
        }
        if let Some(bias) = bias_of(head.scores) {
            let cells = (BIAS_IMAGE_SIDE / stride as f64).powi(2);
            let expected = OBJECTS_PER_IMAGE / class_count as f64 / cells;
            parameters[graph.parameters[bias].range()].fill(expected.ln() as f32);
        }
    }
}

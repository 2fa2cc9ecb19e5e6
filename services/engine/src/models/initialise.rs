//! Fresh parameters: what a model is before its first step.

use super::heads::ONE_TO_ONE;
use super::{ModelSpec, graph};
use crate::graph::{Graph, Op};
use crate::network::{Role, State};
use crate::random::{Philox, Use};

/// The image side for which the class bias expects `OBJECTS_PER_IMAGE` objects.
const BIAS_IMAGE_SIDE: f64 = 640.0;
const OBJECTS_PER_IMAGE: f64 = 5.0;
/// Cancels in a softmax over bins, where it is kept because the published weights have it; without bins, cells
/// start with boxes of four cells' side.
const BOX_BIAS: f32 = 2.0;
/// Makes the keypoints' normalising flow begin close to the identity.
const FLOW_GAIN: f64 = 0.01;

/// Returns fresh parameters; the same seed gives the same bits on every machine.
///
/// Weights and biases are uniform in ±1/√(inputs of one output), norms are the identity, the head's biases make
/// every cell expect few objects, and the one-to-one branch begins as a copy of the one-to-many branch.
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
        let bound = uniform_bound(&graph, convolution.weight);
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
        // The only constants are the numbers of the distance bins.
        for (bin, value) in values.iter_mut().enumerate() {
            *value = bin as f32;
        }
    }
    initialise_flow(&graph, seed, &mut state.parameters);
    initialise_head(&graph, spec.class_count, &mut state.parameters);
    copy_twins(&graph, &mut state.parameters);
    state
}

/// Returns 1/√(elements of the weights behind one index of their first dimension).
fn uniform_bound(graph: &Graph, weight: usize) -> f64 {
    let weight = &graph.parameters[weight];
    let inputs = weight.element_count() / weight.shape[0];
    1.0 / (inputs as f64).sqrt()
}

fn fill_uniform(values: &mut [f32], bound: f64, seed: u64, tensor: usize) {
    let sample = u32::try_from(tensor).expect("invariant: a model has few tensors");
    let mut random = Philox::new(seed, 0, sample, Use::Initialise);
    for value in values {
        *value = (bound * (2.0 * f64::from(random.uniform_f32()) - 1.0)) as f32;
    }
}

/// Fills what no node reads: the linear layers of the flow, by Glorot and Bengio's rule with a small gain.
fn initialise_flow(graph: &Graph, seed: u64, parameters: &mut [f32]) {
    let flow = |&(_, name): &(usize, &str)| name.contains(".flow_model.");
    let names = graph.parameters.iter().map(|t| t.name.as_str()).enumerate();
    for (index, name) in names.filter(flow) {
        let tensor = &graph.parameters[index];
        let bound = match tensor.role {
            Role::Bias => {
                debug_assert!(name.ends_with(".bias"), "a bias follows its weight");
                uniform_bound(graph, index - 1)
            }
            _ => {
                let sides: usize = tensor.shape.iter().sum();
                FLOW_GAIN * (6.0 / sides as f64).sqrt()
            }
        };
        fill_uniform(&mut parameters[tensor.range()], bound, seed, index);
    }
}

fn initialise_head(graph: &Graph, class_count: usize, parameters: &mut [f32]) {
    let bias_of = |value| match graph.nodes[graph.producer(value)].op {
        Op::Convolution(convolution) => convolution.bias,
        _ => None,
    };
    for head in graph.branches.iter().flatten() {
        if let Some(bias) = bias_of(head.boxes) {
            parameters[graph.parameters[bias].range()].fill(BOX_BIAS);
        }
        if let Some(bias) = bias_of(head.scores) {
            let cells = (BIAS_IMAGE_SIDE / head.stride as f64).powi(2);
            let expected = OBJECTS_PER_IMAGE / class_count as f64 / cells;
            parameters[graph.parameters[bias].range()].fill(expected.ln() as f32);
        }
    }
}

/// Copies each tensor of the one-to-many branch to its twin of the one-to-one branch.
fn copy_twins(graph: &Graph, parameters: &mut [f32]) {
    for twin in &graph.parameters {
        if !twin.name.contains(ONE_TO_ONE) {
            continue;
        }
        let name = twin.name.replace(ONE_TO_ONE, "");
        let mut originals = graph.parameters.iter();
        let original = originals.find(|tensor| tensor.name == name);
        let original = original.expect("invariant: both branches have the same tensors");
        parameters.copy_within(original.range(), twin.range().start);
    }
}

//! Canonical weights made ready for kernels: norms folded in, packed in the order they are read.

use super::State;
use crate::graph::{Convolution, Graph};
use crate::ops::conv2d::Pass;
use crate::ops::norm::{self, Learnt};
use crate::parallel::Threads;
use crate::plan::{Operator, PlannedConvolution};

/// Returns a parameter's values.
pub(super) fn parameter<'a>(graph: &Graph, parameters: &'a [f32], index: usize) -> &'a [f32] {
    &parameters[graph.parameters[index].range()]
}

/// Packs canonical weights for a pass.
pub(super) fn pack(
    threads: &Threads,
    planned: &PlannedConvolution,
    pass: Pass,
    weights: &[f32],
    packed: &mut [f32],
) {
    match &planned.operator {
        Operator::Dense(conv) => conv.pack(threads, pass, weights, packed),
        Operator::Depthwise(conv) => conv.pack(weights, packed),
        Operator::Transposed(conv) => conv.pack(threads, pass, weights, packed),
    }
}

/// Folds a convolution's norm into weights and bias, both in canonical order.
pub(super) fn fold(
    graph: &Graph,
    convolution: &Convolution,
    state: &State,
    weights: &mut [f32],
    bias: &mut [f32],
) {
    let value = |index| parameter(graph, &state.parameters, index);
    weights.copy_from_slice(value(convolution.weight));
    let Some(indices) = convolution.norm else {
        match convolution.bias {
            Some(index) => bias.copy_from_slice(value(index)),
            None => bias.fill(0.0),
        }
        return;
    };
    let learnt = Learnt {
        weight: value(indices.weight),
        bias: value(indices.bias),
        constants: indices.constants,
    };
    let statistic = |index: usize| &state.buffers[graph.buffers[index].range()];
    let (mean, variance) = (statistic(indices.mean), statistic(indices.variance));
    let row = weights.len() / convolution.output_channels;
    for (index, (weights, bias)) in weights.chunks_exact_mut(row).zip(bias).enumerate() {
        let (scale, shift) = norm::fold(learnt, mean, variance, index);
        for weight in weights {
            *weight = (f64::from(*weight) * scale) as f32;
        }
        *bias = shift;
    }
}

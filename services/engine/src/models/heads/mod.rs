//! Heads: what turns the features of a family into the raw outputs of a task.

mod branch;
mod masks;

use self::branch::Branch;
use self::masks::Masks;
use super::blocks::{self, Conv, Shape};
use super::family::Rules;
use super::{Family, ModelSpec, Task};
use crate::graph::{Graph, ValueId};
use crate::network::Role;

/// Pixels of the input per cell of a dense head's levels.
pub(super) const STRIDES: [usize; 3] = [8, 16, 32];
/// How the names of the one-to-one branch begin; the one-to-many branch has the plain names.
pub(super) const ONE_TO_ONE: &str = "one2one_";
/// Channels of a classifier before its linear layer.
const CLASSIFY_CHANNELS: usize = 1280;

/// Adds the head of a classifier: a convolution, the mean of all pixels, a linear layer.
pub(super) fn classify(graph: &mut Graph, name: &str, class_count: usize, input: ValueId) {
    let shape = Shape::new(graph.value(input).channels, CLASSIFY_CHANNELS, 1);
    let features = blocks::conv(graph, &format!("{name}.conv"), shape, input);
    let pooled = graph.global_pool(&format!("{name}.pool"), features);
    let linear = format!("{name}.linear");
    let linear = Conv::declare_linear(graph, linear, CLASSIFY_CHANNELS, class_count);
    graph.logits = Some(linear.wire(graph, pooled));
}

/// Adds a head over three levels: boxes, scores, and what else the task wants of each cell.
pub(super) fn dense(
    graph: &mut Graph,
    name: &str,
    spec: &ModelSpec,
    rules: &Rules,
    inputs: [ValueId; 3],
) {
    let prefixes: &[&str] = match spec.family.is_end_to_end() {
        true => &["", ONE_TO_ONE],
        false => &[""],
    };
    let channels = inputs.map(|id| graph.value(id).channels);
    let mut branches: Vec<_> = prefixes
        .iter()
        .map(|prefix| Branch::declare(graph, format!("{name}.{prefix}"), spec, channels))
        .collect();
    if spec.family.bins() > 1 {
        let bins = vec![1, spec.family.bins(), 1, 1];
        graph.parameter(format!("{name}.dfl.conv.weight"), bins, Role::Frozen);
    }
    let masks = (spec.task == Task::Segment)
        .then(|| Masks::declare(graph, &format!("{name}.proto"), spec, rules, channels));
    for branch in &mut branches {
        branch.declare_extra(graph, spec, channels);
    }
    if spec.task == Task::Pose && spec.family == Family::Yolo26 {
        declare_flow(graph, &format!("{name}.flow_model"));
        for branch in &mut branches {
            branch.declare_keypoints(graph, spec, channels);
        }
    }

    for (branch, prefix) in branches.iter_mut().zip(prefixes) {
        if *prefix == ONE_TO_ONE {
            branch.detach();
        }
        let levels = (0..inputs.len()).map(|level| branch.wire(graph, level, inputs[level]));
        let levels = levels.collect();
        graph.branches.push(levels);
    }
    if let Some(masks) = masks {
        masks.wire(graph, inputs);
    }
}

/// Declares the normalising flow of keypoint errors (Rezende & Mohamed 2015; RealNVP, Dinh et al. 2017), which
/// the loss evaluates: it has no node.
fn declare_flow(graph: &mut Graph, name: &str) {
    const COUPLINGS: usize = 6;
    const WIDTHS: [usize; 4] = [2, 64, 64, 2];
    for net in ["s", "t"] {
        for coupling in 0..COUPLINGS {
            for (layer, sides) in WIDTHS.windows(2).enumerate() {
                // Activations stand between the layers and count.
                let name = format!("{name}.{net}.{coupling}.{}", 2 * layer);
                let shape = vec![sides[1], sides[0]];
                graph.parameter(format!("{name}.weight"), shape, Role::Weight);
                graph.parameter(format!("{name}.bias"), vec![sides[1]], Role::Bias);
            }
        }
    }
}

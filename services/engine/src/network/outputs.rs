//! Lends out pieces of the arena: what the head put out, where its gradients go, single values.
#![expect(
    unsafe_code,
    reason = "plain slices of arena buffers that the plan keeps apart"
)]

use super::arena::Arena;
use super::heads::{HeadLevel, HeadLevelGradient, Map, MapGradient, OutputGradients, Outputs};
use crate::graph::ValueId;
use crate::plan::{BufferId, Plan, PlannedHead, PlannedMap, PlannedOutput, Slot};

/// Returns the outputs of the last forward pass.
pub(super) fn read<'a>(plan: &Plan, arena: &'a Arena) -> Outputs<'a> {
    let values = |output: PlannedOutput| {
        check_alone(output.value);
        // SAFETY: outputs are written by the forward pass only, which needs the network exclusively or, for the
        // decoding at its end, has written them all.
        unsafe { arena.floats(&plan.buffers[output.value.buffer.0]) }
    };
    let values_or_none = |output: Option<PlannedOutput>| output.map_or(&[][..], values);
    let stride_or_zero =
        |output: Option<PlannedOutput>| output.map_or(0, |output| output.value.pixel_stride);
    let level = |head: &PlannedHead| HeadLevel {
        stride: head.stride,
        height: head.height,
        width: head.width,
        boxes: values(head.boxes),
        box_stride: head.boxes.value.pixel_stride,
        scores: values(head.scores),
        score_stride: head.scores.value.pixel_stride,
        extra: values_or_none(head.extra),
        extra_stride: stride_or_zero(head.extra),
        sigma: values_or_none(head.sigma),
        sigma_stride: stride_or_zero(head.sigma),
    };
    let map = |map: PlannedMap| Map {
        height: map.height,
        width: map.width,
        channels: map.channels,
        pixel_stride: map.output.value.pixel_stride,
        values: values(map.output),
    };
    let outputs = &plan.outputs;
    let branches = outputs.branches.iter();
    Outputs {
        branches: branches
            .map(|levels| levels.iter().map(level).collect())
            .collect(),
        prototypes: outputs.prototypes.map(map),
        semantic: outputs.semantic.map(map),
        logits: outputs.logits.map(map),
    }
}

/// Returns where the gradients of the outputs are written. The caller holds the network exclusively.
pub(super) fn gradients<'a>(plan: &Plan, arena: &'a Arena) -> OutputGradients<'a> {
    let values = |output: PlannedOutput| {
        let slot = output
            .gradient
            .expect("a network for training has gradients");
        check_alone(slot);
        // SAFETY: every output has a buffer of its own for its gradient, and the caller holds the network.
        unsafe { arena.floats_mut(&plan.buffers[slot.buffer.0]) }
    };
    let level = |head: &PlannedHead| HeadLevelGradient {
        boxes: values(head.boxes),
        scores: values(head.scores),
        extra: head.extra.map_or(&mut [][..], values),
        sigma: head.sigma.map_or(&mut [][..], values),
    };
    let map = |map: PlannedMap| MapGradient {
        values: values(map.output),
    };
    let outputs = &plan.outputs;
    let branches = outputs.branches.iter();
    OutputGradients {
        branches: branches
            .map(|levels| levels.iter().map(level).collect())
            .collect(),
        prototypes: outputs.prototypes.map(map),
        semantic: outputs.semantic.map(map),
        logits: outputs.logits.map(map),
    }
}

fn check_alone(slot: Slot) {
    assert_eq!(
        slot.channel, 0,
        "invariant: outputs of the head have their own buffers"
    );
}

/// Returns a buffer to write.
#[expect(
    clippy::mut_from_ref,
    reason = "the network lends it out of its own exclusive borrow"
)]
pub(super) fn buffer<'a>(plan: &Plan, arena: &'a Arena, id: BufferId) -> &'a mut [f32] {
    // SAFETY: called once per buffer by functions that borrow the network exclusively.
    unsafe { arena.floats_mut(&plan.buffers[id.0]) }
}

/// Returns a buffer to read.
pub(super) fn values<'a>(plan: &Plan, arena: &'a Arena, id: BufferId) -> &'a [f32] {
    // SAFETY: the network writes its buffers only when it is borrowed exclusively.
    unsafe { arena.floats(&plan.buffers[id.0]) }
}

/// Returns a value of the graph as `[batch][channel][y][x]`, without padding.
pub(super) fn unpadded(plan: &Plan, arena: &Arena, id: ValueId) -> Option<Vec<f32>> {
    let slot = plan.values[id.0]?;
    let cells = arena.cells(&plan.buffers[slot.buffer.0]);
    let value = plan.graph.value(id);
    let [height, width] = value.size.of(plan.shape);
    let places: Vec<usize> = plan.channels[id.0].places().collect();
    let mut result = Vec::with_capacity(plan.shape.batch * value.channels * height * width);
    for image in 0..plan.shape.batch {
        for place in &places {
            for cell in 0..height * width {
                let pixel = image * height * width + cell;
                result.push(cells[pixel * slot.pixel_stride + slot.channel + place].get());
            }
        }
    }
    Some(result)
}

//! Gives every buffer its place in the arena: two buffers share memory when they are never in use together.

use super::launch::{Buffer, Launch};

/// Every buffer starts at a multiple of this many floats: four cache lines, what a GPU's own allocator promises.
const ALIGNMENT: usize = 64;

/// Sets the first and last use of every buffer from the launches; the loss runs between `forward` and
/// `backward` and counts as one launch.
pub(super) fn set_lifetimes(buffers: &mut [Buffer], forward: &[Launch], backward: &[Launch]) {
    let after_loss = forward.len() + 1;
    let times = (0..forward.len()).chain(after_loss..);
    for (launch, time) in forward.iter().chain(backward).zip(times) {
        for id in launch.kernel.buffers() {
            let buffer = &mut buffers[id.0];
            buffer.first = buffer.first.min(time);
            buffer.last = buffer.last.max(time);
        }
    }
}

/// Sets every buffer's offset, the biggest first and each as low as it fits. Returns the arena's length.
pub(super) fn assign_offsets(buffers: &mut [Buffer]) -> usize {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(buffers[i].floats()), i));
    let mut placed: Vec<usize> = Vec::with_capacity(order.len());
    let mut arena = 0;
    for index in order {
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .map(|&other| &buffers[other])
            .filter(|other| is_together(other, &buffers[index]))
            .map(|other| (other.offset, other.offset + other.floats()))
            .collect();
        taken.sort_unstable();
        let mut offset: usize = 0;
        for (start, end) in taken {
            if offset + buffers[index].floats() <= start {
                break;
            }
            offset = offset.max(end.next_multiple_of(ALIGNMENT));
        }
        buffers[index].offset = offset;
        arena = arena.max(offset + buffers[index].floats());
        placed.push(index);
    }
    arena.next_multiple_of(ALIGNMENT)
}

/// Returns whether two buffers are in use at the same time.
pub(super) fn is_together(a: &Buffer, b: &Buffer) -> bool {
    a.first <= b.last && b.first <= a.last
}

//! The flat parameter vector cut into stretches that are treated alike, and into tasks for the threads.

use std::ops::Range;

use crate::network::{Role, TensorInfo};
use crate::parallel::Threads;

/// Elements of one task: small enough to balance the threads, large enough not to notice the hand-over.
const TASK_ELEMENTS: usize = 1 << 15;

/// A stretch of one tensor.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    /// Within the task.
    range: Range<usize>,
    pub role: Role,
    /// Multiplies the learning rate.
    pub scale: f32,
}

/// Neighbouring pieces that one thread takes together.
#[derive(Debug, Clone)]
struct Task {
    range: Range<usize>,
    pieces: Vec<Piece>,
}

/// How the elements of a flat vector are shared out.
#[derive(Debug, Clone)]
pub(super) struct Pieces {
    tasks: Vec<Task>,
    /// Length of the flat vector.
    pub element_count: usize,
}

impl Pieces {
    /// Shares out the trained tensors; `tensors` must be in the order of their offsets, and `scale` is what a
    /// tensor's learning rate is multiplied by.
    pub fn new(tensors: &[TensorInfo], scale: impl Fn(&TensorInfo) -> f32) -> Self {
        let mut tasks: Vec<Task> = Vec::new();
        for tensor in tensors.iter().filter(|tensor| tensor.role != Role::Frozen) {
            let mut start = tensor.offset;
            let end = tensor.range().end;
            while start < end {
                let open = tasks
                    .last_mut()
                    .filter(|task| task.range.end == start && task.range.len() < TASK_ELEMENTS);
                let task = match open {
                    Some(task) => task,
                    None => {
                        tasks.push(Task {
                            range: start..start,
                            pieces: Vec::new(),
                        });
                        tasks.last_mut().expect("invariant: just pushed")
                    }
                };
                let stop = end.min(task.range.start + TASK_ELEMENTS);
                task.pieces.push(Piece {
                    range: start - task.range.start..stop - task.range.start,
                    role: tensor.role,
                    scale: scale(tensor),
                });
                task.range.end = stop;
                start = stop;
            }
        }
        Self {
            tasks,
            element_count: tensors.iter().map(|t| t.range().end).max().unwrap_or(0),
        }
    }

    /// Calls `work` for each piece with its stretch of each of the vectors, on all threads.
    pub fn run<const N: usize>(
        &self,
        vectors: [&mut [f32]; N],
        threads: &Threads,
        work: impl Fn(&Piece, [&mut [f32]; N]) + Sync,
    ) {
        let mut rest = vectors;
        let mut at = 0;
        let shares = self.tasks.iter().map(|task| {
            let share = rest.each_mut().map(|vector| {
                let mut from_here = std::mem::take(vector);
                let share =
                    from_here
                        .split_off_mut(task.range.start - at..)
                        .and_then(|mut tail| {
                            let share = tail.split_off_mut(..task.range.len());
                            *vector = tail;
                            share
                        });
                share.expect("invariant: the vector has every tensor's elements")
            });
            at = task.range.end;
            (task, share)
        });
        threads.run_each(shares, |_, (task, mut share)| {
            for piece in &task.pieces {
                let range = piece.range.clone();
                work(
                    piece,
                    share.each_mut().map(|vector| &mut vector[range.clone()]),
                );
            }
        });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Lays tensors of the given roles and sizes one after the other.
    pub fn tensors(list: &[(Role, usize)]) -> Vec<TensorInfo> {
        let mut offset = 0;
        let mut tensors = Vec::new();
        for (index, &(role, count)) in list.iter().enumerate() {
            tensors.push(TensorInfo {
                name: format!("model.{index}"),
                shape: vec![count],
                offset,
                role,
            });
            offset += count;
        }
        tensors
    }

    #[test]
    fn every_trained_element_is_visited_once_with_its_role() {
        let list = [
            (Role::Weight, 3 * TASK_ELEMENTS + 5),
            (Role::NormWeight, 7),
            (Role::Frozen, 16),
            (Role::Bias, 1),
            (Role::Weight, TASK_ELEMENTS),
            (Role::Frozen, 2),
        ];
        let tensors = tensors(&list);
        let pieces = Pieces::new(&tensors, |_| 1.0);
        let mut seen = vec![0.0; pieces.element_count];
        let mut role = seen.clone();
        pieces.run(
            [&mut seen, &mut role],
            &Threads::new(3).unwrap(),
            |piece, [seen, role]| {
                seen.iter_mut().for_each(|n| *n += 1.0);
                role.fill(piece.role as u8 as f32);
            },
        );
        for tensor in &tensors {
            let visits = f32::from(u8::from(tensor.role != Role::Frozen));
            assert!(seen[tensor.range()].iter().all(|&n| n == visits));
            if visits > 0.0 {
                let expected = tensor.role as u8 as f32;
                assert!(role[tensor.range()].iter().all(|&r| r == expected));
            }
        }
    }
}

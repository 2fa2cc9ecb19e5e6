//! Checkpoints: which one is best, and which ones are kept.

use kit::id::{self, Id};
use kit::time::Timestamp;

/// How many of the newest checkpoints of a run are kept, beside the best.
pub const KEPT_NEWEST: usize = 3;

/// A state of a training that can be gone on with.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Its id.
    pub id: Id<id::Checkpoint>,
    /// The run.
    pub run_id: Id<id::Run>,
    /// The fence of the attempt that wrote it.
    pub fence: i64,
    /// Finished epochs.
    pub epoch: i32,
    /// Optimiser steps.
    pub step: i64,
    /// BLAKE3 of its bytes, hex.
    pub digest: String,
    /// Its length.
    pub size_bytes: i64,
    /// Whether it was the best of the run when it was recorded.
    pub is_best: bool,
    /// When it was recorded.
    pub created_at: Timestamp,
}

/// Returns the checkpoints that are no longer needed: all but the newest three and the best, which
/// is the newest that was recorded as such.
pub fn retired(checkpoints: &[Checkpoint]) -> Vec<&Checkpoint> {
    let mut newest_first: Vec<_> = checkpoints.iter().collect();
    newest_first.sort_by_key(|checkpoint| {
        std::cmp::Reverse((checkpoint.fence, checkpoint.step, checkpoint.id))
    });
    let best = newest_first.iter().find(|checkpoint| checkpoint.is_best);
    let best = best.map(|checkpoint| checkpoint.id);
    let older = newest_first.into_iter().skip(KEPT_NEWEST);
    older
        .filter(|checkpoint| Some(checkpoint.id) != best)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(step: i64, is_best: bool) -> Checkpoint {
        Checkpoint {
            id: Id::new(Timestamp::from_micros(step)),
            run_id: Id::from_bytes([0; 16]),
            fence: 1,
            epoch: 0,
            step,
            digest: String::new(),
            size_bytes: 1,
            is_best,
            created_at: Timestamp::EPOCH,
        }
    }

    fn steps_retired(checkpoints: &[Checkpoint]) -> Vec<i64> {
        let mut steps: Vec<_> = retired(checkpoints).iter().map(|one| one.step).collect();
        steps.sort_unstable();
        steps
    }

    #[test]
    fn the_newest_three_and_the_newest_best_are_kept() {
        let all: Vec<_> = (1..=6).map(|step| checkpoint(step, step <= 2)).collect();
        assert_eq!(steps_retired(&all), [1, 3]);
        assert_eq!(steps_retired(&all[..3]), [0_i64; 0]);
        let all: Vec<_> = (1..=6).map(|step| checkpoint(step, step == 5)).collect();
        assert_eq!(steps_retired(&all), [1, 2, 3]);
    }

    #[test]
    fn without_a_best_only_the_newest_are_kept() {
        let all: Vec<_> = (1..=5).map(|step| checkpoint(step, false)).collect();
        assert_eq!(steps_retired(&all), [1, 2]);
    }

    #[test]
    fn a_later_attempt_counts_as_newer_whatever_its_steps() {
        let mut all: Vec<_> = (1..=6).map(|step| checkpoint(step * 10, false)).collect();
        for (step, one) in (0..).zip(&mut all[3..]) {
            (one.fence, one.step) = (2, 25 + step);
        }
        assert_eq!(steps_retired(&all), [10, 20, 30]);
    }
}

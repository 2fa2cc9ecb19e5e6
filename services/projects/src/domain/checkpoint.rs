//! Checkpoints: which one is best, and which ones are kept.

use kit::id::{self, Id};
use kit::time::Timestamp;

use super::run::Metrics;

/// How many of the newest checkpoints of a run are kept, beside the best.
pub const KEPT_NEWEST: usize = 3;

/// The metric by which checkpoints are compared; a suffix such as `(B)` names the head.
const FITNESS_METRIC: &str = "metrics/mAP50-95(";

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
    /// How good it is; unknown until it was validated.
    pub fitness: Option<f64>,
    /// When it was recorded.
    pub created_at: Timestamp,
}

/// Returns how good a model with these metrics is: mAP50-95, summed over its heads.
pub fn fitness(metrics: &Metrics) -> Option<f64> {
    let of_heads = metrics
        .iter()
        .filter(|(name, value)| name.starts_with(FITNESS_METRIC) && value.is_finite())
        .map(|(_, value)| *value);
    of_heads.reduce(|sum, value| sum + value)
}

/// Returns the checkpoints that are no longer needed: all but the newest three and the best. Of
/// equally good ones the newest counts as best.
pub fn retired(checkpoints: &[Checkpoint]) -> Vec<&Checkpoint> {
    let mut newest_first: Vec<_> = checkpoints.iter().collect();
    newest_first.sort_by_key(|checkpoint| {
        std::cmp::Reverse((checkpoint.fence, checkpoint.step, checkpoint.id))
    });
    let best = newest_first
        .iter()
        .filter_map(|checkpoint| checkpoint.fitness.map(|fitness| (fitness, checkpoint.id)))
        .reduce(|best, other| if other.0 > best.0 { other } else { best })
        .map(|(_, id)| id);
    let older = newest_first.into_iter().skip(KEPT_NEWEST);
    older.filter(|checkpoint| Some(checkpoint.id) != best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(step: i64, fitness: Option<f64>) -> Checkpoint {
        Checkpoint {
            id: Id::new(Timestamp::from_micros(step)),
            run_id: Id::from_bytes([0; 16]),
            fence: 1,
            epoch: 0,
            step,
            digest: String::new(),
            size_bytes: 1,
            fitness,
            created_at: Timestamp::EPOCH,
        }
    }

    fn steps_retired(checkpoints: &[Checkpoint]) -> Vec<i64> {
        let mut steps: Vec<_> = retired(checkpoints).iter().map(|one| one.step).collect();
        steps.sort_unstable();
        steps
    }

    #[test]
    fn the_newest_three_and_the_best_are_kept() {
        let scores = [0.1, 0.9, 0.3, 0.2, 0.4, 0.5];
        let all: Vec<_> =
            (1..).zip(scores).map(|(step, score)| checkpoint(step, Some(score))).collect();
        assert_eq!(steps_retired(&all), [1, 3]);
        assert_eq!(steps_retired(&all[..3]), [0_i64; 0]);
    }

    #[test]
    fn without_a_score_only_the_newest_are_kept_and_of_equals_the_newer() {
        let all: Vec<_> = (1..=5).map(|step| checkpoint(step, None)).collect();
        assert_eq!(steps_retired(&all), [1, 2]);
        let all: Vec<_> = (1..=6).map(|step| checkpoint(step, Some(f64::from(step < 4)))).collect();
        assert_eq!(steps_retired(&all), [1, 2]);
    }

    #[test]
    fn a_later_attempt_counts_as_newer_whatever_its_steps() {
        let mut all: Vec<_> = (1..=6).map(|step| checkpoint(step * 10, None)).collect();
        for (step, one) in (0..).zip(&mut all[3..]) {
            (one.fence, one.step) = (2, 25 + step);
        }
        assert_eq!(steps_retired(&all), [10, 20, 30]);
    }

    #[test]
    fn fitness_is_map_over_all_thresholds() {
        let metrics = |pairs: &[(&str, f64)]| -> Metrics {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
        };
        assert_eq!(fitness(&metrics(&[("metrics/mAP50-95(B)", 0.4), ("x", 1.0)])), Some(0.4));
        assert_eq!(fitness(&metrics(&[("metrics/mAP50(B)", 0.4)])), None);
        assert_eq!(fitness(&metrics(&[("metrics/mAP50-95(B)", f64::NAN)])), None);
    }
}

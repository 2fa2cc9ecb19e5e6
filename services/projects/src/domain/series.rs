//! One metric over a run that may have had several attempts.
//!
//! An attempt that went on from a checkpoint at step *s* supersedes what earlier attempts measured
//! after *s*; one that started anew supersedes all of it. Where two points still have one step,
//! the higher fence wins, then the later one.

use kit::time::Timestamp;

use super::run::Metrics;

/// Values of some metrics at one step, as they arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Its place in the order of arrival.
    pub position: i64,
    /// The attempt that measured it.
    pub fence: i64,
    /// When it was measured.
    pub at: Timestamp,
    /// Where it was measured.
    pub epoch: i32,
    /// Where it was measured.
    pub step: i64,
    /// What was measured.
    pub values: Metrics,
}

/// One line of a run's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Counts up within the run: the cursor of those who page.
    pub sequence: i64,
    /// Its place in the order of arrival.
    pub position: i64,
    /// When it was written.
    pub at: Timestamp,
    /// `info`, `warn` or `error`.
    pub level: String,
    /// What it says.
    pub message: String,
}

/// One measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where it was measured.
    pub step: i64,
    /// The attempt that measured it.
    pub fence: i64,
    /// Its place in the order of arrival.
    pub position: i64,
    /// The value.
    pub value: f64,
}

/// Knows which points a later attempt has superseded.
#[derive(Debug, Clone)]
pub struct Superseded {
    /// The fence of each attempt and the last step that the ones before it may show, falling.
    attempts: Vec<(i64, i64)>,
}

impl Superseded {
    /// Takes the fence of each attempt and the step of the checkpoint it went on from.
    pub fn by(attempts: impl IntoIterator<Item = (i64, Option<i64>)>) -> Self {
        let mut attempts: Vec<_> = attempts
            .into_iter()
            .map(|(fence, start_step)| (fence, start_step.unwrap_or(i64::MIN)))
            .collect();
        attempts.sort_unstable_by_key(|(fence, _)| std::cmp::Reverse(*fence));
        Self { attempts }
    }

    /// Tells whether a point of this attempt at this step still counts.
    pub fn keeps(&self, fence: i64, step: i64) -> bool {
        let newer = self.attempts.iter().take_while(|(other, _)| *other > fence);
        newer.into_iter().all(|(_, start_step)| step <= *start_step)
    }
}

/// Returns the values that count, by rising step.
pub fn merge(mut points: Vec<Point>, superseded: &Superseded) -> Vec<(i64, f64)> {
    points.retain(|point| superseded.keeps(point.fence, point.step));
    points.sort_unstable_by_key(|point| (point.step, point.fence, point.position));
    let mut values: Vec<(i64, f64)> = Vec::with_capacity(points.len());
    for point in points {
        match values.last_mut() {
            Some(last) if last.0 == point.step => last.1 = point.value,
            _ => values.push((point.step, point.value)),
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(fence: i64, steps: std::ops::RangeInclusive<i64>) -> Vec<Point> {
        steps
            .map(|step| Point {
                step,
                fence,
                position: step,
                value: (fence * 100 + step) as f64,
            })
            .collect()
    }

    #[test]
    fn an_attempt_supersedes_what_lies_after_its_checkpoint() {
        let superseded = Superseded::by([(1, None), (3, Some(4))]);
        let all = [points(1, 1..=8), points(3, 5..=6)].concat();
        let values = merge(all, &superseded);
        let expected = [101.0, 102.0, 103.0, 104.0, 305.0, 306.0];
        assert_eq!(
            values.iter().map(|(_, value)| *value).collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn an_attempt_from_the_start_supersedes_everything() {
        let superseded = Superseded::by([(2, None), (1, None)]);
        assert_eq!(merge(points(1, 0..=5), &superseded), []);
    }

    #[test]
    fn a_third_attempt_may_go_back_behind_the_second() {
        let superseded = Superseded::by([(1, None), (2, Some(6)), (3, Some(3))]);
        let all = [points(1, 1..=8), points(2, 7..=9), points(3, 4..=4)].concat();
        let values = merge(all, &superseded);
        assert_eq!(values, [(1, 101.0), (2, 102.0), (3, 103.0), (4, 304.0)]);
    }

    #[test]
    fn of_one_step_the_later_value_counts() {
        let mut all = points(1, 1..=1);
        all.push(Point {
            position: 9,
            value: 7.0,
            ..all[0]
        });
        assert_eq!(merge(all, &Superseded::by([(1, None)])), [(1, 7.0)]);
    }
}

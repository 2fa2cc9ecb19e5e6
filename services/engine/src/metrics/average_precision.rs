//! Precision and recall of one class as the confidence falls, and the area under their curve.

/// Points of the recall axis: 0, 0.01, … 1.
pub(super) const RECALL_POINTS: usize = 101;
/// Points of the confidence axis from 0 to 1.
pub(super) const CONFIDENCE_POINTS: usize = 1000;

/// How a class's curve becomes one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The area under the envelope by the trapezoid rule, a straight line between detections.
    #[default]
    Trapezoid,
    /// As COCO's own tool: the mean over the recall axis of the envelope at the next detection, and of each class at
    /// most [`COCO_DETECTIONS_MAX`] detections an image.
    Coco,
}

/// The most detections of one class in one image that COCO's tool counts.
pub(super) const COCO_DETECTIONS_MAX: usize = 100;

/// Precision and recall after each detection of one class, by descending score.
pub(super) struct Progress {
    precision: Vec<f64>,
    recall: Vec<f64>,
}

impl Progress {
    /// Counts up the hits of a class that has `label_count` labels.
    pub fn new(hits: impl Iterator<Item = bool>, label_count: usize) -> Self {
        let (mut right, mut all) = (0.0, 0.0);
        let (mut precision, mut recall) = (Vec::new(), Vec::new());
        for is_hit in hits {
            all += 1.0;
            right += f64::from(u8::from(is_hit));
            precision.push(right / all);
            recall.push(right / (label_count as f64 + 1e-16));
        }
        Self { precision, recall }
    }

    /// Returns the best precision at or beyond each point of the recall axis.
    pub fn envelope(&self) -> Vec<f64> {
        let Some(&last) = self.recall.last() else {
            return vec![0.0; RECALL_POINTS];
        };
        let mut recall = Vec::with_capacity(self.recall.len() + 3);
        recall.push(0.0);
        recall.extend_from_slice(&self.recall);
        recall.extend([last, 1.0]);
        let mut precision = Vec::with_capacity(recall.len());
        precision.push(1.0);
        precision.extend_from_slice(&self.precision);
        precision.extend([0.0, 0.0]);
        let mut best = 0.0f64;
        for precision in precision.iter_mut().rev() {
            best = best.max(*precision);
            *precision = best;
        }
        (0..RECALL_POINTS)
            .map(|point| interpolate(point as f64 / 100.0, &recall, &precision))
            .collect()
    }

    /// Returns the average precision.
    pub fn average_precision(&self, interpolation: Interpolation) -> f64 {
        match interpolation {
            Interpolation::Trapezoid => area_under(&self.envelope()),
            Interpolation::Coco => self.mean_of_steps(),
        }
    }

    /// Returns the mean over the recall axis of the best precision from the first detection of that recall on.
    fn mean_of_steps(&self) -> f64 {
        let mut envelope = self.precision.clone();
        let mut best = 0.0f64;
        for precision in envelope.iter_mut().rev() {
            best = best.max(*precision);
            *precision = best;
        }
        let step = 1.0 / (RECALL_POINTS - 1) as f64;
        let at = |point: usize| {
            let recall = point as f64 * step;
            let first = self.recall.partition_point(|&reached| reached < recall);
            envelope.get(first).copied().unwrap_or(0.0)
        };
        (0..RECALL_POINTS).map(at).sum::<f64>() / RECALL_POINTS as f64
    }

    /// Returns precision and recall of the detections above each point of the confidence axis; `scores` fall.
    pub fn by_confidence(&self, scores: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let Some(&first) = scores.first() else {
            return (vec![0.0; CONFIDENCE_POINTS], vec![0.0; CONFIDENCE_POINTS]);
        };
        let falling: Vec<f64> = scores.iter().map(|&score| -f64::from(score)).collect();
        let curve = |values: &[f64], above_all: f64| {
            (0..CONFIDENCE_POINTS)
                .map(|point| {
                    let confidence = point as f64 / (CONFIDENCE_POINTS - 1) as f64;
                    if confidence > f64::from(first) {
                        above_all
                    } else {
                        interpolate(-confidence, &falling, values)
                    }
                })
                .collect()
        };
        (curve(&self.precision, 1.0), curve(&self.recall, 0.0))
    }
}

/// Returns the area under an envelope by the trapezoid rule.
pub(super) fn area_under(envelope: &[f64]) -> f64 {
    let step = 1.0 / (envelope.len() - 1) as f64;
    let pairs = envelope.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    pairs.sum::<f64>() * step
}

/// Returns the value at `x` on the lines between the points; `xs` ascend, and of equal ones the last counts.
fn interpolate(x: f64, xs: &[f64], ys: &[f64]) -> f64 {
    let after = xs.partition_point(|&known| known <= x);
    match after.checked_sub(1) {
        None => ys[0],
        Some(before) if after == xs.len() => ys[before],
        Some(before) => {
            let slope = (ys[after] - ys[before]) / (xs[after] - xs[before]);
            ys[before] + slope * (x - xs[before])
        }
    }
}

/// Returns the values averaged over a window of `width` points, the ends repeated beyond the edges.
pub(super) fn smooth(values: &[f64], width: usize) -> Vec<f64> {
    let half = (width / 2) as isize;
    let last = values.len() as isize - 1;
    let at = |index: isize| values[index.clamp(0, last) as usize];
    (0..=last)
        .map(|centre| (centre - half..=centre + half).map(at).sum::<f64>() / width as f64)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolation_takes_the_last_of_equal_places_and_stays_level_outside() {
        let (xs, ys) = ([0.0, 1.0, 1.0, 3.0], [0.0, 5.0, 7.0, 9.0]);
        for (x, y) in [(-1.0, 0.0), (0.5, 2.5), (1.0, 7.0), (2.0, 8.0), (4.0, 9.0)] {
            assert_eq!(interpolate(x, &xs, &ys), y);
        }
    }

    #[test]
    fn a_perfect_class_has_an_area_of_nearly_one() {
        // The curve falls to zero only after the last label was found, at the very end of the recall axis.
        let progress = Progress::new([true; 4].into_iter(), 4);
        assert!((area_under(&progress.envelope()) - 0.995).abs() < 1e-12);
        let missed = Progress::new([false; 4].into_iter(), 4);
        assert!(area_under(&missed.envelope()) < 0.01);
        assert_eq!(
            area_under(&Progress::new([].into_iter(), 4).envelope()),
            0.0
        );
    }

    #[test]
    fn coco_takes_the_precision_of_the_next_detection() {
        let progress = Progress::new([true, false, true, true].into_iter(), 4);
        // Recalls ¼, ¼, ½, ¾ at precisions 1, ½, ⅔, ¾; the envelope is 1, ¾, ¾, ¾.
        let expected = (26.0 + 50.0 * 0.75) / 101.0;
        assert!((progress.average_precision(Interpolation::Coco) - expected).abs() < 1e-12);
        let perfect = Progress::new([true; 4].into_iter(), 4);
        assert_eq!(perfect.average_precision(Interpolation::Coco), 1.0);
        let none = Progress::new([].into_iter(), 4);
        assert_eq!(none.average_precision(Interpolation::Coco), 0.0);
    }

    #[test]
    fn smoothing_keeps_a_constant() {
        let smoothed = smooth(&[2.0; 7], 5);
        assert!(smoothed.iter().all(|value| (value - 2.0).abs() < 1e-12));
        assert_eq!(smooth(&[0.0, 3.0, 0.0], 3), [1.0, 1.0, 1.0]);
    }
}

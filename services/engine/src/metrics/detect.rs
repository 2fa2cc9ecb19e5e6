//! The metrics of a detection model over a data set.

use super::average_precision::{CONFIDENCE_POINTS, Progress, area_under, smooth};
use super::{ConfusionMatrix, Detection, IOU_THRESHOLDS, Label, match_detections};

/// The window that evens out F1 before its peak is looked for: a tenth of the confidence axis.
const SMOOTHING_WIDTH: usize = CONFIDENCE_POINTS / 10 + 1;

/// Gathers detections and labels image by image.
#[derive(Debug, Clone)]
pub struct DetectMetrics {
    /// Score and hits of every detection, by class.
    found: Vec<Vec<(f32, u16)>>,
    label_counts: Vec<usize>,
    /// Images that show each class.
    image_counts: Vec<usize>,
    confusion: ConfusionMatrix,
}

/// How well a model detects. A class without labels appears nowhere in it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DetectReport {
    /// Means over the classes, at the confidence where F1 peaks.
    pub precision: f64,
    pub recall: f64,
    /// Mean average precision at an overlap of 0.5.
    pub map50: f64,
    /// Mean average precision over the overlaps 0.5 to 0.95.
    pub map50_95: f64,
    /// The confidence where F1 peaks.
    pub best_confidence: f64,
    pub classes: Vec<ClassReport>,
    pub curves: Curves,
    pub confusion: ConfusionMatrix,
}

/// How well one class is detected.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ClassReport {
    pub class: u32,
    pub image_count: usize,
    pub label_count: usize,
    /// At the confidence where the mean F1 peaks.
    pub precision: f64,
    pub recall: f64,
    pub f1: f64,
    /// Average precision at each of the overlaps.
    pub average_precision: [f64; IOU_THRESHOLDS.len()],
}

impl ClassReport {
    /// Returns the average precision at an overlap of 0.5.
    pub fn ap50(&self) -> f64 {
        self.average_precision[0]
    }

    /// Returns the mean over the overlaps 0.5 to 0.95.
    pub fn ap50_95(&self) -> f64 {
        mean(self.average_precision.iter().copied())
    }
}

/// What plots are drawn from, all at an overlap of 0.5.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Curves {
    /// Means over the classes at confidences evenly spaced from 0 to 1.
    pub precision: Vec<f64>,
    pub recall: Vec<f64>,
    pub f1: Vec<f64>,
    pub classes: Vec<ClassCurves>,
}

/// The curves of one class.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ClassCurves {
    pub class: u32,
    /// At confidences evenly spaced from 0 to 1.
    pub precision: Vec<f64>,
    pub recall: Vec<f64>,
    pub f1: Vec<f64>,
    /// The best precision at each recall 0, 0.01, … 1.
    pub precision_by_recall: Vec<f64>,
}

impl DetectReport {
    /// Returns the number that decides which epoch was best.
    pub fn fitness(&self) -> f64 {
        self.map50_95
    }
}

impl DetectMetrics {
    /// Starts with no image.
    pub fn new(class_count: usize) -> Self {
        Self {
            found: vec![Vec::new(); class_count],
            label_counts: vec![0; class_count],
            image_counts: vec![0; class_count],
            confusion: ConfusionMatrix::new(class_count),
        }
    }

    /// Adds one image; its detections must be sorted by descending score, as `nms` returns them.
    ///
    /// # Panics
    ///
    /// When a class is not below the class count.
    pub fn add(&mut self, detections: &[Detection], labels: &[Label]) {
        debug_assert!(detections.is_sorted_by(|a, b| a.score >= b.score));
        let hits = match_detections(detections, labels);
        for (detection, hits) in detections.iter().zip(hits) {
            self.found[detection.class as usize].push((detection.score, hits));
        }
        let mut classes: Vec<_> = labels.iter().map(|label| label.class as usize).collect();
        for &class in &classes {
            self.label_counts[class] += 1;
        }
        classes.sort_unstable();
        classes.dedup();
        for class in classes {
            self.image_counts[class] += 1;
        }
        self.confusion.add(detections, labels);
    }

    /// Works out the metrics of all images so far.
    pub fn report(&self) -> DetectReport {
        let seen = (0..self.label_counts.len()).filter(|&class| self.label_counts[class] > 0);
        let (mut classes, curves): (Vec<_>, Vec<_>) =
            seen.map(|class| self.class_report(class)).unzip();
        let average = |curve: fn(&ClassCurves) -> &[f64]| -> Vec<f64> {
            (0..CONFIDENCE_POINTS)
                .map(|point| mean(curves.iter().map(|class| curve(class)[point])))
                .collect()
        };
        let curves = Curves {
            precision: average(|class| &class.precision),
            recall: average(|class| &class.recall),
            f1: average(|class| &class.f1),
            classes: curves,
        };
        let peak = first_peak(&smooth(&curves.f1, SMOOTHING_WIDTH));
        for (report, curves) in classes.iter_mut().zip(&curves.classes) {
            report.precision = curves.precision[peak];
            report.recall = curves.recall[peak];
            report.f1 = curves.f1[peak];
        }
        DetectReport {
            precision: curves.precision[peak],
            recall: curves.recall[peak],
            map50: mean(classes.iter().map(ClassReport::ap50)),
            map50_95: mean(classes.iter().map(ClassReport::ap50_95)),
            best_confidence: peak as f64 / (CONFIDENCE_POINTS - 1) as f64,
            classes,
            curves,
            confusion: self.confusion.clone(),
        }
    }

    /// Works out one class; where F1 peaks is not known yet.
    fn class_report(&self, class: usize) -> (ClassReport, ClassCurves) {
        let mut found = self.found[class].clone();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        let label_count = self.label_counts[class];
        let progress = |bit: usize| {
            let hits = found.iter().map(|(_, hits)| hits >> bit & 1 == 1);
            Progress::new(hits, label_count)
        };
        let at_half = progress(0);
        let envelope = at_half.envelope();
        let scores: Vec<f32> = found.iter().map(|(score, _)| *score).collect();
        let (precision, recall) = at_half.by_confidence(&scores);
        let pairs = precision.iter().zip(&recall);
        let f1 = pairs.map(|(p, r)| 2.0 * p * r / (p + r + 1e-16)).collect();
        let report = ClassReport {
            class: class as u32,
            image_count: self.image_counts[class],
            label_count,
            precision: 0.0,
            recall: 0.0,
            f1: 0.0,
            average_precision: std::array::from_fn(|bit| match bit {
                0 => area_under(&envelope),
                _ => area_under(&progress(bit).envelope()),
            }),
        };
        let curves = ClassCurves {
            class: class as u32,
            precision,
            recall,
            f1,
            precision_by_recall: envelope,
        };
        (report, curves)
    }
}

/// Returns the mean, zero of nothing.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// Returns where the first largest value stands.
fn first_peak(values: &[f64]) -> usize {
    let mut peak = 0;
    for (index, &value) in values.iter().enumerate() {
        if value > values[peak] {
            peak = index;
        }
    }
    peak
}

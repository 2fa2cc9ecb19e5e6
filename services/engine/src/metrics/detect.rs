//! How well objects are found over a data set: boxes, and in the same way masks, poses and turned boxes, which differ
//! only in what an overlap is.

use super::average_precision::{
    COCO_DETECTIONS_MAX, CONFIDENCE_POINTS, Interpolation, Progress, smooth,
};
use super::matching::{SIZES, Scored, Truth, Verdict, is_in_range, judge};
use super::{ConfusionMatrix, Detection, IOU_THRESHOLDS, Label, iou};

/// The window that evens out F1 before its peak is looked for: a tenth of the confidence axis.
const SMOOTHING_WIDTH: usize = CONFIDENCE_POINTS / 10 + 1;

/// Gathers detections and labels image by image.
#[derive(Debug, Clone)]
pub struct DetectMetrics {
    interpolation: Interpolation,
    /// Score and verdict of every detection, by class.
    found: Vec<Vec<(f32, Verdict)>>,
    /// Labels of each class, of all sizes and of each range.
    label_counts: Vec<[usize; SIZES]>,
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
    /// By the sizes of labels: small, medium and large.
    #[serde(default)]
    pub sizes: [SizeReport; SIZES - 1],
    pub classes: Vec<ClassReport>,
    pub curves: Curves,
    pub confusion: ConfusionMatrix,
}

/// How well objects of one range of sizes are found; bounds and rules are COCO's (32² and 96² pixels).
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct SizeReport {
    pub label_count: usize,
    /// Means over the classes that have labels of this size; zero where none has.
    pub map50: f64,
    pub map50_95: f64,
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
            interpolation: Interpolation::default(),
            found: vec![Vec::new(); class_count],
            label_counts: vec![[0; SIZES]; class_count],
            image_counts: vec![0; class_count],
            confusion: ConfusionMatrix::new(class_count),
        }
    }

    /// Says how curves become numbers.
    pub fn with_interpolation(self, interpolation: Interpolation) -> Self {
        Self {
            interpolation,
            ..self
        }
    }

    /// Adds one image of upright boxes; its detections must be sorted by descending score, as `nms` returns them.
    ///
    /// # Panics
    ///
    /// When a class is not below the class count.
    pub fn add(&mut self, detections: &[Detection], labels: &[Label]) {
        let found: Vec<_> = detections.iter().map(Detection::scored).collect();
        let truths: Vec<_> = labels.iter().map(Label::truth).collect();
        let overlap = |label: usize, detection: usize| {
            iou(&labels[label].bounds, &detections[detection].bounds)
        };
        self.add_by(&found, &truths, overlap);
        self.confuse_by(&found, &truths, overlap);
    }

    /// Adds one image; its detections must be sorted by descending score, and `overlap(label, detection)` says how
    /// well two of one class meet.
    ///
    /// # Panics
    ///
    /// When a class is not below the class count.
    pub fn add_by(
        &mut self,
        detections: &[Scored],
        labels: &[Truth],
        overlap: impl Fn(usize, usize) -> f64,
    ) {
        debug_assert!(detections.is_sorted_by(|a, b| a.score >= b.score));
        let mut counts = vec![0usize; self.found.len()];
        let verdicts = judge(detections, labels, overlap);
        for (detection, verdict) in detections.iter().zip(verdicts) {
            let class = detection.class as usize;
            counts[class] += 1;
            let is_beyond = counts[class] > COCO_DETECTIONS_MAX;
            if self.interpolation != Interpolation::Coco || !is_beyond {
                self.found[class].push((detection.score, verdict));
            }
        }
        let mut classes: Vec<_> = labels.iter().map(|label| label.class as usize).collect();
        for label in labels {
            for (size, count) in self.label_counts[label.class as usize]
                .iter_mut()
                .enumerate()
            {
                *count += usize::from(is_in_range(size, label.area));
            }
        }
        classes.sort_unstable();
        classes.dedup();
        for class in classes {
            self.image_counts[class] += 1;
        }
    }

    /// Counts the detections of one image in the confusion matrix; `overlap(label, detection)` is asked about all.
    pub fn confuse_by(
        &mut self,
        detections: &[Scored],
        labels: &[Truth],
        overlap: impl Fn(usize, usize) -> f64,
    ) {
        self.confusion.add(detections, labels, overlap);
    }

    /// Works out the metrics of all images so far.
    pub fn report(&self) -> DetectReport {
        let seen = (0..self.found.len()).filter(|&class| self.label_counts[class][0] > 0);
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
            sizes: std::array::from_fn(|range| self.size_report(range + 1)),
            classes,
            curves,
            confusion: self.confusion.clone(),
        }
    }

    /// Works out one range of sizes.
    fn size_report(&self, size: usize) -> SizeReport {
        let classes = 0..self.found.len();
        let seen: Vec<_> = classes
            .filter(|&class| self.label_counts[class][size] > 0)
            .collect();
        let precisions = |bit: usize| {
            mean(seen.iter().map(|&class| {
                let found = self.sorted(class);
                self.progress(&found, class, size, bit)
                    .average_precision(self.interpolation)
            }))
        };
        SizeReport {
            label_count: self.label_counts.iter().map(|counts| counts[size]).sum(),
            map50: precisions(0),
            map50_95: mean((0..IOU_THRESHOLDS.len()).map(precisions)),
        }
    }

    /// Returns a class's detections by descending score; of equal scores the first added comes first.
    fn sorted(&self, class: usize) -> Vec<(f32, Verdict)> {
        let mut found = self.found[class].clone();
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found
    }

    fn progress(
        &self,
        found: &[(f32, Verdict)],
        class: usize,
        size: usize,
        bit: usize,
    ) -> Progress {
        let counted = found
            .iter()
            .filter(|(_, verdict)| verdict.ignored[size] >> bit & 1 == 0);
        let hits = counted.map(|(_, verdict)| verdict.hits[size] >> bit & 1 == 1);
        Progress::new(hits, self.label_counts[class][size])
    }

    /// Works out one class; where F1 peaks is not known yet.
    fn class_report(&self, class: usize) -> (ClassReport, ClassCurves) {
        let found = self.sorted(class);
        let progress = |bit: usize| self.progress(&found, class, 0, bit);
        let at_half = progress(0);
        let envelope = at_half.envelope();
        let scores: Vec<f32> = found.iter().map(|(score, _)| *score).collect();
        let (precision, recall) = at_half.by_confidence(&scores);
        let pairs = precision.iter().zip(&recall);
        let f1 = pairs.map(|(p, r)| 2.0 * p * r / (p + r + 1e-16)).collect();
        let report = ClassReport {
            class: class as u32,
            image_count: self.image_counts[class],
            label_count: self.label_counts[class][0],
            precision: 0.0,
            recall: 0.0,
            f1: 0.0,
            average_precision: std::array::from_fn(|bit| {
                progress(bit).average_precision(self.interpolation)
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

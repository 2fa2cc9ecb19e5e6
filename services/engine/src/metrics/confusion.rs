//! Which class is taken for which, and what is missed or seen where nothing is.

use super::matching::{Scored, Truth};

/// Scores must be above it to count.
const CONFIDENCE: f32 = 0.25;
/// The overlap a detection needs with a label, whatever their classes.
const IOU: f64 = 0.45;

/// Counts of predicted against true classes, with one more row and column for the background.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConfusionMatrix {
    class_count: usize,
    /// Row by row: the predicted class, then the true one.
    counts: Vec<u64>,
}

impl ConfusionMatrix {
    /// Creates an empty matrix.
    pub fn new(class_count: usize) -> Self {
        let side = class_count + 1;
        Self {
            class_count,
            counts: vec![0; side * side],
        }
    }

    /// Returns how often `predicted` was said of `truth`; `None` is the background.
    pub fn count(&self, predicted: Option<u32>, truth: Option<u32>) -> u64 {
        self.counts[self.place(predicted, truth)]
    }

    /// Returns the rows: predicted classes, the background last; each by true class, the background last.
    pub fn rows(&self) -> impl Iterator<Item = &[u64]> {
        self.counts.chunks(self.class_count + 1)
    }

    /// Counts the detections of one image, which must be sorted by descending score; `overlap(label, detection)` is
    /// asked about all.
    pub fn add(
        &mut self,
        detections: &[Scored],
        labels: &[Truth],
        overlap: impl Fn(usize, usize) -> f64,
    ) {
        let mut is_taken = vec![false; labels.len()];
        for (place, detection) in detections.iter().enumerate() {
            if detection.score <= CONFIDENCE {
                continue;
            }
            let mut best = (None, IOU);
            for (index, _) in is_taken.iter().enumerate().filter(|(_, taken)| !**taken) {
                let overlap = overlap(index, place);
                if overlap > best.1 {
                    best = (Some(index), overlap);
                }
            }
            let truth = best.0.map(|index| {
                is_taken[index] = true;
                labels[index].class
            });
            self.bump(Some(detection.class), truth);
        }
        for (label, _) in labels.iter().zip(is_taken).filter(|(_, taken)| !taken) {
            self.bump(None, Some(label.class));
        }
    }

    /// Counts one whole image of a class.
    pub fn add_image(&mut self, predicted: u32, truth: u32) {
        self.bump(Some(predicted), Some(truth));
    }

    fn bump(&mut self, predicted: Option<u32>, truth: Option<u32>) {
        let place = self.place(predicted, truth);
        self.counts[place] += 1;
    }

    fn place(&self, predicted: Option<u32>, truth: Option<u32>) -> usize {
        let axis = |class: Option<u32>| class.map_or(self.class_count, |class| class as usize);
        axis(predicted) * (self.class_count + 1) + axis(truth)
    }
}

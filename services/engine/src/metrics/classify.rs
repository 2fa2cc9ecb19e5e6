//! How well whole images are classified.

use super::ConfusionMatrix;

/// How many classes of the second accuracy may come first.
const TOP_COUNT: usize = 5;

/// Gathers the scores of images.
#[derive(Debug, Clone)]
pub struct ClassifyMetrics {
    /// Images of each class, and of them those whose class came first, and among the first five.
    counts: Vec<[u64; 3]>,
    confusion: ConfusionMatrix,
}

/// How well a model classifies. A class without images appears nowhere in `classes`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ClassifyReport {
    pub image_count: u64,
    /// The share of images whose class came first.
    pub top1: f64,
    /// The share of images whose class was among the first five.
    pub top5: f64,
    pub classes: Vec<ClassAccuracy>,
    pub confusion: ConfusionMatrix,
}

/// How well one class is recognised.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ClassAccuracy {
    pub class: u32,
    pub image_count: u64,
    pub top1: f64,
    pub top5: f64,
}

impl ClassifyReport {
    /// Returns the number that decides which epoch was best.
    pub fn fitness(&self) -> f64 {
        (self.top1 + self.top5) / 2.0
    }
}

impl ClassifyMetrics {
    /// Starts with no image.
    pub fn new(class_count: usize) -> Self {
        Self {
            counts: vec![[0; 3]; class_count],
            confusion: ConfusionMatrix::new(class_count),
        }
    }

    /// Adds one image by its scores or logits, one for each class. Of equal scores the first class comes first.
    ///
    /// # Panics
    /// When the label is not below the class count.
    pub fn add(&mut self, scores: &[f32], label: u32) {
        let own = scores[label as usize];
        let is_before =
            |(class, score): (usize, &f32)| *score > own || *score == own && class < label as usize;
        let rank = scores
            .iter()
            .enumerate()
            .filter(|&at| is_before(at))
            .count();
        let first =
            scores.iter().enumerate().fold(
                0,
                |best, (class, score)| {
                    if *score > scores[best] { class } else { best }
                },
            );
        let [images, top1, top5] = &mut self.counts[label as usize];
        *images += 1;
        // A score that is no number comes before none.
        *top1 += u64::from(!own.is_nan() && rank == 0);
        *top5 += u64::from(!own.is_nan() && rank < TOP_COUNT);
        self.confusion.add_image(first as u32, label);
    }

    /// Works out the metrics of all images so far.
    pub fn report(&self) -> ClassifyReport {
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let sum = |kind: usize| self.counts.iter().map(|counts| counts[kind]).sum::<u64>();
        let classes = self.counts.iter().enumerate();
        ClassifyReport {
            image_count: sum(0),
            top1: share(sum(1), sum(0)),
            top5: share(sum(2), sum(0)),
            classes: classes
                .filter(|(_, counts)| counts[0] > 0)
                .map(|(class, &[images, top1, top5])| ClassAccuracy {
                    class: class as u32,
                    image_count: images,
                    top1: share(top1, images),
                    top5: share(top5, images),
                })
                .collect(),
            confusion: self.confusion.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_count_the_rank_of_the_true_class() {
        let mut metrics = ClassifyMetrics::new(8);
        let scores = [0.1, 0.9, 0.3, 0.3, 0.2, 0.7, 0.0, f32::NAN];
        // Ranks: class 1 first, 5 second, 2 third, 3 fourth, 4 fifth, 0 sixth.
        for label in [1, 1, 5, 3, 4, 0, 7] {
            metrics.add(&scores, label);
        }
        let report = metrics.report();
        assert_eq!(report.image_count, 7);
        assert!((report.top1 - 2.0 / 7.0).abs() < 1e-12);
        assert!((report.top5 - 5.0 / 7.0).abs() < 1e-12);
        assert!((report.fitness() - 0.5).abs() < 1e-12);
        assert_eq!(report.classes.len(), 6);
        assert_eq!((report.classes[1].class, report.classes[1].top1), (1, 1.0));
        assert_eq!(report.confusion.count(Some(1), Some(1)), 2);
        assert_eq!(report.confusion.count(Some(1), Some(0)), 1);
        assert_eq!(ClassifyMetrics::new(2).report().top1, 0.0);
    }
}

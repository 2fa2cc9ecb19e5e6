//! The detection loss: class, box and distance terms over the anchors of all levels, with their gradient.

use crate::network::{HeadLevel, HeadLevelGradient};
use crate::parallel::Threads;

use super::Targets;
use super::assign::{Assignment, GroundTruth, ImageAssigner, sides};
use super::ciou::{Shape, ciou_with_gradient};
use super::classify;
use super::distance::{BIN_COUNT, Distribution};

/// How much each term counts.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gains {
    /// The overlap with the true box.
    #[serde(rename = "box")]
    pub boxes: f32,
    /// The classes.
    #[serde(rename = "cls")]
    pub classes: f32,
    /// The distribution over distances.
    #[serde(rename = "dfl")]
    pub distances: f32,
}

impl Default for Gains {
    fn default() -> Self {
        Self {
            boxes: 7.5,
            classes: 0.5,
            distances: 1.5,
        }
    }
}

/// What one call of the loss came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossOutput {
    /// What the gradients are the gradients of: the items' sum times the batch size.
    pub total: f32,
    /// The box, class and distance terms with their gains, not times the batch size.
    pub items: [f32; 3],
    /// How many anchors answer for a box.
    pub assigned: usize,
    /// The sum of the assigned anchors' target scores, before it is raised to at least 1.
    pub score_sum: f64,
}

/// The loss of a detection head. It keeps its scratch memory from step to step.
#[derive(Debug)]
pub struct DetectLoss {
    class_count: usize,
    gains: Gains,
    images: Vec<ImageAssigner>,
}

/// One image's share of the work.
struct ImageTask<'a> {
    assigner: &'a mut ImageAssigner,
    /// Boxes and scores of each level, for this image only; empty when no gradient is wanted.
    gradients: Vec<(&'a mut [f32], &'a mut [f32])>,
    score_sum: f64,
    /// Box, class and distance terms before gains and normalisation.
    sums: [f64; 3],
}

/// Factors common to all anchors of a batch.
#[derive(Clone, Copy)]
struct Scales {
    boxes: f64,
    classes: f64,
    distances: f64,
}

impl DetectLoss {
    /// Creates the loss of a head with `class_count` classes.
    pub fn new(class_count: usize, gains: Gains) -> Self {
        Self {
            class_count,
            gains,
            images: Vec::new(),
        }
    }

    /// Returns the loss of a batch and writes its gradient over all of `gradients`.
    ///
    /// `image_size` is height and width in pixels. The result is the same bits for any number of threads.
    ///
    /// # Panics
    ///
    /// When a target names an image outside the batch or a class the head does not have, or a slice of a level
    /// is too short: both are checked where data and model are loaded.
    pub fn compute(
        &mut self,
        levels: &[HeadLevel<'_>],
        gradients: &mut [HeadLevelGradient<'_>],
        targets: &Targets,
        image_size: (usize, usize),
        threads: &Threads,
    ) -> LossOutput {
        assert_eq!(levels.len(), gradients.len(), "one gradient for each level");
        self.batch(levels, gradients, targets, image_size, threads)
    }

    /// Returns the loss of a batch without its gradient, for validation.
    ///
    /// # Panics
    ///
    /// As [`DetectLoss::compute`].
    pub fn evaluate(
        &mut self,
        levels: &[HeadLevel<'_>],
        targets: &Targets,
        image_size: (usize, usize),
        threads: &Threads,
    ) -> LossOutput {
        self.batch(levels, &mut [], targets, image_size, threads)
    }

    /// Returns the anchors that the last call assigned, by image and anchor.
    pub fn assignments(&self) -> impl Iterator<Item = &Assignment> {
        self.images.iter().flat_map(|image| &image.assignments)
    }

    fn batch(
        &mut self,
        levels: &[HeadLevel<'_>],
        gradients: &mut [HeadLevelGradient<'_>],
        targets: &Targets,
        image_size: (usize, usize),
        threads: &Threads,
    ) -> LossOutput {
        self.take_targets(targets, image_size);
        let class_count = self.class_count;
        let mut tasks = tasks(&mut self.images, levels, gradients);
        threads.run_each(tasks.iter_mut(), |image, task| {
            task.score_sum = task.assigner.assign(levels, image);
        });
        let score_sum: f64 = tasks.iter().map(|task| task.score_sum).sum();
        let norm = score_sum.max(1.0);
        let batch = targets.batch as f64;
        let gains = self.gains;
        let scales = Scales {
            boxes: f64::from(gains.boxes) * batch / norm,
            classes: f64::from(gains.classes) * batch / norm,
            distances: f64::from(gains.distances) * batch / norm,
        };
        threads.run_each(tasks.iter_mut(), |image, task| {
            task.class_terms(levels, image, class_count, scales);
            task.box_terms(levels, image, scales);
        });
        let mut sums = [0.0; 3];
        for task in &tasks {
            for (sum, part) in sums.iter_mut().zip(task.sums) {
                *sum += part;
            }
        }
        let gains = [gains.boxes, gains.classes, gains.distances].map(f64::from);
        let items: [f64; 3] = std::array::from_fn(|i| sums[i] * gains[i] / norm);
        LossOutput {
            total: (items.iter().sum::<f64>() * batch) as f32,
            items: items.map(|item| item as f32),
            assigned: tasks.iter().map(|t| t.assigner.assignments.len()).sum(),
            score_sum,
        }
    }

    /// Sorts the targets by image and turns them into corners in pixels.
    fn take_targets(&mut self, targets: &Targets, (height, width): (usize, usize)) {
        self.images
            .resize_with(targets.batch, ImageAssigner::default);
        for image in &mut self.images {
            image.ground_truths.clear();
        }
        let (height, width) = (height as f64, width as f64);
        for ((&image, &class), bounds) in
            (targets.image.iter().zip(&targets.class)).zip(&targets.boxes)
        {
            assert!(
                (class as usize) < self.class_count && (image as usize) < targets.batch,
                "invariant: a target of image {image}, class {class} fits the batch of {} and the {} classes",
                targets.batch,
                self.class_count
            );
            let [x, y, w, h] = bounds.map(f64::from);
            self.images[image as usize].ground_truths.push(GroundTruth {
                class,
                shape: Shape::new([
                    (x - w / 2.0) * width,
                    (y - h / 2.0) * height,
                    (x + w / 2.0) * width,
                    (y + h / 2.0) * height,
                ]),
            });
        }
    }
}

/// Cuts the gradients into one task for each image.
fn tasks<'a>(
    images: &'a mut [ImageAssigner],
    levels: &[HeadLevel<'_>],
    gradients: &'a mut [HeadLevelGradient<'_>],
) -> Vec<ImageTask<'a>> {
    let mut tasks: Vec<_> = images
        .iter_mut()
        .map(|assigner| ImageTask {
            assigner,
            gradients: Vec::with_capacity(levels.len()),
            score_sum: 0.0,
            sums: [0.0; 3],
        })
        .collect();
    for (level, gradient) in levels.iter().zip(gradients) {
        let anchors = level.height * level.width;
        let boxes = gradient.boxes.chunks_exact_mut(anchors * level.box_stride);
        let scores = gradient
            .scores
            .chunks_exact_mut(anchors * level.score_stride);
        assert!(
            boxes.len() >= tasks.len() && scores.len() >= tasks.len(),
            "invariant: the gradients of a level hold the whole batch"
        );
        for ((task, boxes), scores) in tasks.iter_mut().zip(boxes).zip(scores) {
            task.gradients.push((boxes, scores));
        }
    }
    tasks
}

impl ImageTask<'_> {
    /// Adds up the cross-entropy over all anchors and classes.
    fn class_terms(
        &mut self,
        levels: &[HeadLevel<'_>],
        image: usize,
        class_count: usize,
        scales: Scales,
    ) {
        let mut sum = 0.0;
        for (index, level) in levels.iter().enumerate() {
            let size = level.height * level.width * level.score_stride;
            let rows = level.scores[image * size..][..size].chunks_exact(level.score_stride);
            match self.gradients.get_mut(index) {
                Some((_, gradients)) => {
                    let gradients = gradients.chunks_exact_mut(level.score_stride);
                    for (row, gradient) in rows.zip(gradients) {
                        sum += classify::background_loss_with_gradient(
                            row,
                            gradient,
                            class_count,
                            scales.classes as f32,
                        );
                    }
                }
                None => {
                    for row in rows {
                        sum += classify::background_loss(row, class_count);
                    }
                }
            }
        }
        for assignment in &self.assigner.assignments {
            let class = self.assigner.ground_truths[assignment.ground_truth as usize].class;
            let place = Place::find(levels, assignment.anchor as usize);
            let level = &levels[place.level];
            let at = place.cell * level.score_stride + class as usize;
            let offset = image * level.height * level.width * level.score_stride;
            sum -= f64::from(level.scores[offset + at]) * assignment.score;
            if let Some((_, gradient)) = self.gradients.get_mut(place.level) {
                gradient[at] -= (scales.classes * assignment.score) as f32;
            }
        }
        self.sums[1] = sum;
    }

    /// Adds up the box and distance terms over the assigned anchors.
    fn box_terms(&mut self, levels: &[HeadLevel<'_>], image: usize, scales: Scales) {
        for (boxes, _) in &mut self.gradients {
            boxes.fill(0.0);
        }
        let (mut box_sum, mut distance_sum) = (0.0, 0.0);
        for assignment in &self.assigner.assignments {
            let place = Place::find(levels, assignment.anchor as usize);
            let level = &levels[place.level];
            let stride = level.stride as f64;
            let truth = &self.assigner.ground_truths[assignment.ground_truth as usize];
            let target = truth.shape.corners.map(|pixels| pixels / stride);
            let logits = sides(level, image * level.height * level.width + place.cell);
            let distributions = logits.map(|logits| Distribution::new(&logits));

            let centre = place.centre(level);
            let predicted = corners(centre, distributions.map(|side| side.mean));
            let distances = distances(centre, target);
            let (value, slope) = ciou_with_gradient(predicted, target);
            let weight = assignment.score;
            box_sum += (1.0 - value) * weight;
            let cross_entropy: f64 = (0..4)
                .map(|side| distributions[side].loss(&logits[side], distances[side]))
                .sum();
            distance_sum += cross_entropy / 4.0 * weight;

            if let Some((gradient, _)) = self.gradients.get_mut(place.level) {
                let gradient = &mut gradient[place.cell * level.box_stride..][..4 * BIN_COUNT];
                for (side, gradient) in gradient.as_chunks_mut().0.iter_mut().enumerate() {
                    // Left and top move their corners the other way; the loss falls with the CIoU.
                    let sign = if side < 2 { 1.0 } else { -1.0 };
                    distributions[side].gradient(
                        sign * slope[side] * weight * scales.boxes,
                        weight / 4.0 * scales.distances,
                        distances[side],
                        gradient,
                    );
                }
            }
        }
        self.sums[0] = box_sum;
        self.sums[2] = distance_sum;
    }
}

/// Where an anchor lies.
#[derive(Clone, Copy)]
struct Place {
    level: usize,
    /// Index within the level.
    cell: usize,
}

impl Place {
    fn find(levels: &[HeadLevel<'_>], anchor: usize) -> Self {
        let mut cell = anchor;
        for (index, level) in levels.iter().enumerate() {
            let count = level.height * level.width;
            if cell < count {
                return Self { level: index, cell };
            }
            cell -= count;
        }
        unreachable!("anchor {anchor} lies beyond the last level")
    }

    /// Returns the anchor's centre in cells.
    fn centre(self, level: &HeadLevel<'_>) -> [f64; 2] {
        [
            (self.cell % level.width) as f64 + 0.5,
            (self.cell / level.width) as f64 + 0.5,
        ]
    }
}

/// Returns the box at the given distances (left, top, right, bottom) around a centre.
fn corners([x, y]: [f64; 2], [left, top, right, bottom]: [f64; 4]) -> [f64; 4] {
    [x - left, y - top, x + right, y + bottom]
}

/// Returns the distances (left, top, right, bottom) from a centre to the sides of a box.
fn distances([x, y]: [f64; 2], [x1, y1, x2, y2]: [f64; 4]) -> [f64; 4] {
    [x - x1, y - y1, x2 - x, y2 - y]
}

#[cfg(test)]
mod tests;

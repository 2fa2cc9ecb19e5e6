//! What training minimises: the targets of a batch, and the loss of each task with its hand-written gradient.
//!
//! [`Loss`] drives a whole head. A dense one has a `branch` or two: `assign` decides which anchors answer for which
//! object; `ciou`, `distance` and `cross_entropy` hold the terms of every task, `segment`, `pose` (with `flow`) and
//! `obb` those of one. `classify` is for whole images. Everything is computed image by image and added up in the
//! images' order, so the result does not depend on how many threads there are.

mod anchor;
mod assign;
mod branch;
mod ciou;
mod classify;
mod cross_entropy;
pub mod cuda;
mod distance;
mod flow;
mod items;
mod lanes;
mod obb;
mod outline;
mod pose;
mod rules;
mod segment;
mod targets;

pub(crate) use anchor::{ImageHead, Place};
pub use assign::Assignment;
pub(crate) use assign::KEYPOINT_AREA_SHARE;
pub use ciou::{ciou, ciou_with_gradient};
pub use distance::BIN_COUNT;
pub use items::Items;
pub(crate) use obb::probiou::Gaussian;
pub use obb::probiou::probiou;
pub(crate) use outline::Outline;
pub(crate) use rules::Rules;
pub use rules::{Gains, LossSettings, class_weights, keypoint_sigmas};
pub(crate) use segment::{InstanceMap, MaskCounts, Prototypes, Window};
pub use targets::{InstanceMaps, Targets};

#[cfg(test)]
pub(crate) use lanes::tests::noise;

use assign::Claims;
use branch::{Branch, BranchGradients, BranchInput};
use flow::Flow;
use items::Terms;
use segment::semantic::{SemanticMap, SemanticSums};

use crate::models::{self, ModelSpec, Task};
use crate::network::{Map, OutputGradients, Outputs};
use crate::parallel::Threads;

/// What the one-to-many branch counts at first and in the end; the one-to-one branch counts the rest.
const ONE_TO_MANY_FIRST: f64 = 0.8;
const ONE_TO_MANY_LAST: f64 = 0.1;

/// What a loss needs beside a head's outputs.
#[derive(Debug, Clone, Copy)]
pub struct LossInput<'a> {
    pub targets: &'a Targets,
    /// Height and width of the images in pixels.
    pub image_size: (usize, usize),
    /// The model's flat vector of parameters: a few heads learn their loss.
    pub parameters: &'a [f32],
    pub threads: &'a Threads,
}

/// What one call of the loss came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossOutput {
    /// What the gradients are the gradients of: the items' sum times the batch size, over all branches as much as
    /// they count. Classification does not multiply by the batch size.
    pub total: f64,
    /// The task's items with their gains, not times the batch size; those of the last branch.
    pub items: Items,
    /// How many anchors answer for an object, in the last branch.
    pub assigned: usize,
    /// The sum of the assigned anchors' target scores, before it is raised to at least 1, in the last branch.
    pub score_sum: f64,
}

/// The loss of a model. It keeps its scratch memory from step to step.
#[derive(Debug)]
pub struct Loss {
    rules: Rules,
    /// What the one-to-many branch counts beside a one-to-one branch.
    one_to_many: f64,
    branches: [Branch; 2],
    flow: Option<Flow>,
    semantic: Vec<SemanticImage>,
}

/// One image's share of the semantic loss.
#[derive(Debug, Default)]
struct SemanticImage {
    sums: SemanticSums,
    /// The class plus one that each pixel should say.
    classes: Vec<u32>,
    /// The class plus one of each instance by number; of the background, zero.
    of_instance: Vec<u32>,
    value: f64,
}

impl Loss {
    /// Creates the loss of a model.
    ///
    /// # Panics
    /// When the settings have another number of classes or keypoints than the model.
    pub fn new(spec: &ModelSpec, settings: LossSettings) -> Self {
        let flow = match spec.task {
            Task::Pose => Flow::find(&models::tables(spec).parameters),
            _ => None,
        };
        Self {
            rules: Rules::new(spec, settings),
            one_to_many: ONE_TO_MANY_FIRST,
            branches: [Branch::default(), Branch::default()],
            flow,
            semantic: Vec::new(),
        }
    }

    /// Returns the names of the items.
    pub fn item_names(&self) -> &'static [&'static str] {
        Items::names(self.rules.family, self.rules.task)
    }

    /// Says how far a run is: from the one-to-many branch the weight moves to the one-to-one branch.
    pub fn set_progress(&mut self, finished_epochs: usize, epochs: usize) {
        let progress = finished_epochs as f64 / epochs.saturating_sub(1).max(1) as f64;
        self.one_to_many =
            (1.0 - progress).max(0.0) * (ONE_TO_MANY_FIRST - ONE_TO_MANY_LAST) + ONE_TO_MANY_LAST;
    }

    /// Returns what each of `count` branches counts.
    pub fn branch_weights(&self, count: usize) -> [f64; 2] {
        match count {
            2 => [self.one_to_many, 1.0 - self.one_to_many],
            _ => [1.0, 0.0],
        }
    }

    /// Returns the loss of a batch, writes its gradient over all of `gradients`, and adds the part of the
    /// parameters' gradient that does not come through the outputs.
    ///
    /// The result is the same bits for any number of threads.
    ///
    /// # Panics
    /// When a target names an image outside the batch or a class the model does not have, or lacks what the task
    /// needs, or a slice is too short: all are checked where data and model are loaded.
    pub fn compute(
        &mut self,
        outputs: &Outputs<'_>,
        gradients: &mut OutputGradients<'_>,
        parameter_gradient: &mut [f32],
        input: &LossInput<'_>,
    ) -> LossOutput {
        assert_eq!(
            outputs.branches.len(),
            gradients.branches.len(),
            "there is one gradient for each branch"
        );
        self.batch(outputs, Some((gradients, parameter_gradient)), input)
    }

    /// Returns the loss of a batch without its gradient, for validation.
    ///
    /// # Panics
    /// As [`Loss::compute`].
    pub fn evaluate(&mut self, outputs: &Outputs<'_>, input: &LossInput<'_>) -> LossOutput {
        self.batch(outputs, None, input)
    }

    /// Returns the anchors that the last call assigned in a branch, by image and anchor.
    pub fn assignments(&self, branch: usize) -> impl Iterator<Item = &Assignment> {
        self.branches[branch].assignments()
    }

    fn batch(
        &mut self,
        outputs: &Outputs<'_>,
        mut gradients: Option<(&mut OutputGradients<'_>, &mut [f32])>,
        input: &LossInput<'_>,
    ) -> LossOutput {
        if let Some(logits) = outputs.logits {
            let gradient = gradients.and_then(|(gradients, _)| gradients.logits.as_mut());
            let gradient = gradient.map(|map| &mut *map.values);
            let loss = classify::compute(&self.rules, logits, gradient, input.targets);
            return LossOutput {
                total: loss,
                items: Items::new(&[loss]),
                assigned: 0,
                score_sum: 0.0,
            };
        }
        let weights = self.branch_weights(outputs.branches.len());
        let batch = input.targets.batch as f64;
        let semantic = outputs.semantic.map_or(0.0, |map| {
            let gradient = gradients.as_mut().and_then(|(g, _)| g.semantic.as_mut());
            let gradient = gradient.map(|map| &mut *map.values);
            self.semantic(map, gradient, weights[0] * batch, input)
        });
        let mut result = LossOutput {
            total: 0.0,
            items: Items::default(),
            assigned: 0,
            score_sum: 0.0,
        };
        let mut total = 0.0;
        for (index, levels) in outputs.branches.iter().enumerate() {
            let branch = BranchInput {
                rules: &self.rules,
                claims: [Claims::ONE_TO_MANY, Claims::ONE_TO_ONE][index],
                levels,
                prototypes: outputs.prototypes,
                input,
                weight: weights[index],
            };
            let gradients = gradients.as_mut().map(|(gradients, parameters)| {
                let prototypes = gradients.prototypes.as_mut().filter(|_| index == 0);
                BranchGradients {
                    levels: &mut gradients.branches[index],
                    prototypes: prototypes.map(|map| &mut *map.values),
                    parameters,
                }
            });
            self.branches[index].assign(&branch);
            let output = self.branches[index].compute(&branch, gradients, self.flow.as_mut());
            let terms = Terms {
                semantic,
                ..output.terms
            };
            total += weights[index] * batch * terms.sum();
            result = LossOutput {
                total,
                items: Items::of_terms(self.rules.family, self.rules.task, &terms),
                assigned: output.assigned,
                score_sum: output.score_sum,
            };
        }
        result
    }

    /// Returns the semantic loss with its gain, and writes `factor` times its gradient.
    fn semantic(
        &mut self,
        map: Map<'_>,
        gradient: Option<&mut [f32]>,
        factor: f64,
        input: &LossInput<'_>,
    ) -> f64 {
        let targets = input.targets;
        let gain = Terms::gains(&self.rules.gains).semantic;
        self.semantic
            .resize_with(targets.batch, SemanticImage::default);
        for image in &mut self.semantic {
            image.of_instance.clear();
            image.of_instance.push(0);
        }
        for (&image, &class) in targets.image.iter().zip(&targets.class) {
            self.semantic[image as usize].of_instance.push(class + 1);
        }
        let size = map.height * map.width * map.pixel_stride;
        let mut gradients = gradient.map(|values| values.chunks_exact_mut(size));
        let tasks: Vec<_> = self
            .semantic
            .iter_mut()
            .map(|image| (image, gradients.as_mut().and_then(Iterator::next)))
            .collect();
        input.threads.run_each(tasks, |index, (image, gradient)| {
            image.take_classes(targets.masks.as_ref(), index, &map);
            let map = SemanticMap {
                class_count: map.channels,
                pixel_stride: map.pixel_stride,
                logits: &map.values[index * size..][..size],
                classes: &image.classes,
            };
            image.value = image.sums.value(map, targets.batch);
            if let Some(gradient) = gradient {
                let scale = gain * factor;
                image.sums.gradient(map, targets.batch, scale, gradient);
            }
        });
        gain * self.semantic.iter().map(|image| image.value).sum::<f64>()
    }
}

impl SemanticImage {
    /// Takes the nearest instance of every pixel of a map, and its class.
    fn take_classes(&mut self, masks: Option<&InstanceMaps>, index: usize, map: &Map<'_>) {
        self.classes.clear();
        let Some(masks) = masks else {
            self.classes.resize(map.height * map.width, 0);
            return;
        };
        let instances = masks.image(index);
        for y in 0..map.height {
            let row = &instances[y * masks.height / map.height * masks.width..][..masks.width];
            for x in 0..map.width {
                let instance = row[x * masks.width / map.width];
                let class = self.of_instance.get(usize::from(instance));
                self.classes.push(class.copied().unwrap_or(0));
            }
        }
    }
}

#[cfg(test)]
mod tests;

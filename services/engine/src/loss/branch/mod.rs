//! The loss of one branch of a dense head: anchors are assigned image by image, then every term is summed over the
//! anchors and written back as a gradient.

mod image;

use crate::network::{HeadLevel, HeadLevelGradient, Map};

use super::LossInput;
use super::assign::{Annotations, Assignment, Claims, GroundTruth};
use super::ciou::Shape;
use super::flow::{Flow, Point};
use super::items::Terms;
use super::outline::{Outline, Turned};
use super::rules::Rules;
use super::segment::{InstanceMap, Prototypes};
use super::targets::Targets;
use crate::models::Task;
use image::{ImageGradient, ImageTask, ImageWork, LevelGradient};

/// A turned box with a shorter side, in pixels, is no object.
const TURNED_SIDE_MINIMUM: f64 = 2.0;

/// The memory of one branch, kept from step to step.
#[derive(Debug, Default)]
pub(super) struct Branch {
    images: Vec<ImageWork>,
    /// The visible keypoints of all assigned anchors.
    points: Vec<Point>,
}

/// What a branch's loss is computed from.
#[derive(Clone, Copy)]
pub(super) struct BranchInput<'a> {
    pub rules: &'a Rules,
    pub claims: Claims,
    pub levels: &'a [HeadLevel<'a>],
    pub prototypes: Option<Map<'a>>,
    pub input: &'a LossInput<'a>,
    /// What the branch counts in the whole loss.
    pub weight: f64,
}

/// Where a branch's gradients go.
pub(super) struct BranchGradients<'a, 'b> {
    pub levels: &'a mut [HeadLevelGradient<'b>],
    /// Absent for a branch that does not train the prototypes.
    pub prototypes: Option<&'a mut [f32]>,
    pub parameters: &'a mut [f32],
}

/// What a branch's loss came to.
pub(super) struct BranchOutput {
    /// With their gains.
    pub terms: Terms,
    pub assigned: usize,
    pub score_sum: f64,
}

impl Branch {
    /// Decides which anchors answer for which objects.
    pub fn assign(&mut self, branch: &BranchInput<'_>) {
        let BranchInput { rules, input, .. } = *branch;
        self.take_targets(rules, input.targets, input.image_size);
        let mut tasks = tasks(&mut self.images, branch, None);
        input
            .threads
            .run_each(tasks.iter_mut(), |_, task| task.assign(branch.claims));
    }

    /// Returns the loss of a batch whose anchors are assigned, and writes the gradient of `weight · batch` times it.
    pub fn compute(
        &mut self,
        branch: &BranchInput<'_>,
        gradients: Option<BranchGradients<'_, '_>>,
        flow: Option<&mut Flow>,
    ) -> BranchOutput {
        let BranchInput { rules, input, .. } = *branch;
        let (gradients, parameters) = match gradients {
            Some(gradients) => (
                Some((gradients.levels, gradients.prototypes)),
                Some(gradients.parameters),
            ),
            None => (None, None),
        };
        let mut tasks = tasks(&mut self.images, branch, gradients);
        let score_sum: f64 = tasks.iter().map(ImageTask::score_sum).sum();
        let assigned = tasks.iter().map(ImageTask::assigned).sum();
        let gains = Terms::gains(&rules.gains) * norms(rules, score_sum, assigned);
        let factor = branch.weight * input.targets.batch as f64;

        let has_deviations = branch.levels.iter().all(|level| !level.sigma.is_empty());
        let likelihood = flow.filter(|_| has_deviations).map(|flow| {
            let likelihood = Likelihood {
                points: &mut self.points,
                input,
                gain: gains.likelihood,
                factor,
            };
            likelihood.add(&mut tasks, flow, parameters)
        });
        let scales = gains * factor;
        input
            .threads
            .run_each(tasks.iter_mut(), |_, task| task.add_terms(&scales));
        let mut sums = Terms::default();
        for task in &tasks {
            sums += task.sums;
        }
        BranchOutput {
            terms: Terms {
                likelihood: likelihood.unwrap_or(0.0),
                ..sums * gains
            },
            assigned,
            score_sum,
        }
    }

    /// Returns the anchors that the last call assigned, by image and anchor.
    pub fn assignments(&self) -> impl Iterator<Item = &Assignment> {
        self.images
            .iter()
            .flat_map(|image| &image.assigner.assignments)
    }

    /// Sorts the targets by image and turns them into outlines in pixels.
    fn take_targets(&mut self, rules: &Rules, targets: &Targets, (height, width): (usize, usize)) {
        self.images.resize_with(targets.batch, ImageWork::default);
        for image in &mut self.images {
            image.assigner.ground_truths.clear();
            image.row_count = 0;
        }
        let (height, width) = (height as f64, width as f64);
        for (row, bounds) in targets.boxes.iter().enumerate() {
            let (image, class) = (targets.image[row] as usize, targets.class[row]);
            assert!(
                (class as usize) < rules.class_count && image < targets.batch,
                "invariant: a target of image {image}, class {class} fits the batch of {} and the {} classes",
                targets.batch,
                rules.class_count
            );
            let [x, y, w, h] = bounds.map(f64::from);
            let work = &mut self.images[image];
            work.row_count += 1;
            let outline = if rules.task == Task::Obb {
                let bounds = [x * width, y * height, w * width, h * height];
                if bounds[2].min(bounds[3]) < TURNED_SIDE_MINIMUM {
                    continue;
                }
                Outline::Turned(Turned::new(bounds, f64::from(targets.angles[row])))
            } else {
                Outline::Upright(Shape::new([
                    (x - w / 2.0) * width,
                    (y - h / 2.0) * height,
                    (x + w / 2.0) * width,
                    (y + h / 2.0) * height,
                ]))
            };
            work.assigner.ground_truths.push(GroundTruth {
                class,
                outline,
                row: row as u32,
                instance: work.row_count.min(usize::from(u16::MAX)) as u16,
            });
        }
    }
}

/// Returns what each term's sum is divided by.
fn norms(rules: &Rules, score_sum: f64, assigned: usize) -> Terms {
    let by_score = 1.0 / score_sum.max(1.0);
    let by_anchor = 1.0 / assigned.max(1) as f64;
    let keypoints = rules.keypoints.as_ref();
    let by_keypoint = by_anchor / keypoints.map_or(1.0, |rules| rules.shape.count as f64);
    Terms {
        boxes: by_score,
        classes: by_score,
        distances: by_score,
        angles: by_score,
        masks: by_anchor,
        keypoints: by_keypoint,
        visibility: by_keypoint,
        // Divided when the rows are known, and not of a branch.
        likelihood: 1.0,
        semantic: 1.0,
    }
}

/// The likelihood term of a batch, whose flow takes the rows of all images at once.
struct Likelihood<'a> {
    points: &'a mut Vec<Point>,
    input: &'a LossInput<'a>,
    gain: f64,
    /// What the whole branch's gradient is multiplied by.
    factor: f64,
}

impl Likelihood<'_> {
    /// Returns the term with its gain, not below zero, and prepares the tasks to write its gradient.
    fn add(
        self,
        tasks: &mut [ImageTask<'_>],
        flow: &mut Flow,
        parameters: Option<&mut [f32]>,
    ) -> f64 {
        let threads = self.input.threads;
        threads.run_each(tasks.iter_mut(), |_, task| task.list_rows());
        self.points.clear();
        for task in tasks.iter() {
            self.points.extend(task.points());
        }
        let count = self.points.len();
        if count == 0 {
            return 0.0;
        }
        flow.evaluate(self.input.parameters, self.points, threads);
        let mut rest = &self.points[..];
        for task in tasks.iter_mut() {
            let (own, others) = rest.split_at(task.points().len());
            task.take_densities(own);
            rest = others;
        }
        threads.run_each(tasks.iter_mut(), |_, task| task.sum_likelihood());
        let sum: f64 = tasks.iter().map(|task| task.sums.likelihood).sum();
        let value = self.gain * sum / count as f64;
        // The term is cut off at zero, and there it has no slope.
        if value < 0.0 {
            return 0.0;
        }
        let scale = self.gain * self.factor / count as f64;
        for task in tasks.iter_mut() {
            task.likelihood_scale = scale;
        }
        if let Some(parameters) = parameters.filter(|_| value.is_finite()) {
            flow.add_gradient(scale, parameters);
        }
        value
    }
}

/// Cuts a batch into one task for each image.
fn tasks<'a>(
    images: &'a mut [ImageWork],
    branch: &BranchInput<'a>,
    gradients: Option<(&'a mut [HeadLevelGradient<'_>], Option<&'a mut [f32]>)>,
) -> Vec<ImageTask<'a>> {
    let targets = branch.input.targets;
    let mut tasks: Vec<_> = images
        .iter_mut()
        .enumerate()
        .map(|(image, work)| {
            let prototypes = branch
                .prototypes
                .map(|map| Prototypes::of_image(&map, image));
            let instances = targets.masks.as_ref().map(|masks| InstanceMap {
                values: masks.image(image),
            });
            let annotations = Annotations {
                targets,
                instances,
                image_size: branch.input.image_size,
            };
            ImageTask::new(work, branch, image, prototypes, annotations)
        })
        .collect();
    let Some((levels, prototypes)) = gradients else {
        return tasks;
    };
    for task in &mut tasks {
        task.gradient = Some(ImageGradient::default());
    }
    for (level, gradient) in branch.levels.iter().zip(levels) {
        let cells = level.height * level.width;
        let mut cut = LevelGradient::cut(gradient, level, cells, tasks.len());
        for task in &mut tasks {
            let gradient = task.gradient.as_mut().expect("invariant: just made");
            gradient.levels.push(
                cut.next()
                    .expect("invariant: the gradients of a level hold the whole batch"),
            );
        }
    }
    if let (Some(values), Some(map)) = (prototypes, branch.prototypes) {
        let size = map.height * map.width * map.pixel_stride;
        for (task, values) in tasks.iter_mut().zip(values.chunks_exact_mut(size)) {
            let gradient = task.gradient.as_mut().expect("invariant: just made");
            gradient.prototypes = Some(values);
        }
    }
    tasks
}

//! One image's share of a branch's loss.

use crate::models::{MASK_CHANNELS, Task};
use crate::network::{HeadLevel, HeadLevelGradient};

use super::BranchInput;
use crate::loss::anchor::{ImageHead, Place, corners, distances, keypoint_scale};
use crate::loss::assign::{Annotations, Claims, ImageAssigner};
use crate::loss::ciou::ciou_with_gradient;
use crate::loss::cross_entropy::Background;
use crate::loss::flow::Point;
use crate::loss::items::Terms;
use crate::loss::obb::{self, probiou::probiou_with_gradient};
use crate::loss::outline::Outline;
use crate::loss::pose::likelihood::{self, Row};
use crate::loss::pose::{PoseGradient, PoseTerm};
use crate::loss::segment::{MaskGradient, MaskTerm, Prototypes};

/// The memory of one image, kept from step to step.
#[derive(Debug, Default)]
pub(super) struct ImageWork {
    pub assigner: ImageAssigner,
    /// The targets' rows of the image so far.
    pub row_count: usize,
    /// The visible keypoints of its assigned anchors, and what the flow said of them.
    rows: Vec<Row>,
    densities: Vec<Point>,
    score_sum: f64,
    /// Space for one row of a mask.
    mask_row: Vec<f32>,
}

/// One image's share of the work.
pub(super) struct ImageTask<'a> {
    work: &'a mut ImageWork,
    head: ImageHead<'a>,
    annotations: Annotations<'a>,
    pub gradient: Option<ImageGradient<'a>>,
    /// The terms before gains and norms.
    pub sums: Terms,
    /// What the likelihood's gradient is multiplied by.
    pub likelihood_scale: f64,
}

/// Where one image's gradients go.
#[derive(Default)]
pub(super) struct ImageGradient<'a> {
    pub levels: Vec<LevelGradient<'a>>,
    pub prototypes: Option<&'a mut [f32]>,
}

/// The gradients of one level for one image.
pub(super) struct LevelGradient<'a> {
    boxes: Output<'a>,
    scores: Output<'a>,
    extra: Output<'a>,
    sigma: Output<'a>,
}

/// The gradient of one of a level's outputs; empty where the head has none.
struct Output<'a> {
    values: &'a mut [f32],
    stride: usize,
}

impl<'a> Output<'a> {
    /// Cuts a batch's gradient into those of its images.
    fn cut(values: &'a mut [f32], stride: usize, cells: usize) -> impl Iterator<Item = Self> {
        values
            .chunks_exact_mut((cells * stride).max(1))
            .map(move |values| Self { values, stride })
            .chain(std::iter::repeat_with(|| Self {
                values: &mut [],
                stride: 0,
            }))
    }

    fn row(&mut self, cell: usize) -> &mut [f32] {
        &mut self.values[cell * self.stride..][..self.stride]
    }
}

impl<'a> LevelGradient<'a> {
    /// Cuts the gradients of a level into those of its `images`.
    pub fn cut<'b: 'a>(
        gradient: &'a mut HeadLevelGradient<'b>,
        level: &HeadLevel<'_>,
        cells: usize,
        images: usize,
    ) -> impl Iterator<Item = Self> + use<'a, 'b> {
        assert!(
            gradient.boxes.len() >= images * cells * level.box_stride
                && gradient.scores.len() >= images * cells * level.score_stride
                && gradient.extra.len() >= images * cells * level.extra_stride
                && gradient.sigma.len() >= images * cells * level.sigma_stride,
            "invariant: the gradients of a level hold the whole batch"
        );
        let boxes = Output::cut(gradient.boxes, level.box_stride, cells);
        let scores = Output::cut(gradient.scores, level.score_stride, cells);
        let extra = Output::cut(gradient.extra, level.extra_stride, cells);
        let sigma = Output::cut(gradient.sigma, level.sigma_stride, cells);
        let outputs = boxes.zip(scores).zip(extra.zip(sigma));
        outputs.map(|((boxes, scores), (extra, sigma))| Self {
            boxes,
            scores,
            extra,
            sigma,
        })
    }
}

impl<'a> ImageTask<'a> {
    pub fn new(
        work: &'a mut ImageWork,
        branch: &BranchInput<'a>,
        image: usize,
        prototypes: Option<Prototypes<'a>>,
        annotations: Annotations<'a>,
    ) -> Self {
        work.rows.clear();
        work.densities.clear();
        Self {
            work,
            head: ImageHead {
                rules: branch.rules,
                levels: branch.levels,
                image,
                prototypes,
            },
            annotations,
            gradient: None,
            sums: Terms::default(),
            likelihood_scale: 0.0,
        }
    }

    /// Decides which anchors answer for which objects.
    pub fn assign(&mut self, claims: Claims) {
        let assigner = &mut self.work.assigner;
        self.work.score_sum = assigner.assign(&self.head, claims, &self.annotations);
    }

    /// Returns the sum of the assigned anchors' target scores.
    pub fn score_sum(&self) -> f64 {
        self.work.score_sum
    }

    /// Returns how many anchors answer for an object.
    pub fn assigned(&self) -> usize {
        self.work.assigner.assignments.len()
    }

    /// Lists the visible keypoints of the assigned anchors.
    pub fn list_rows(&mut self) {
        let ImageWork { assigner, rows, .. } = &mut *self.work;
        let count = self.head.rules.keypoints().shape.count;
        for (_, truth, place) in assigner.places(&self.head) {
            let truths = self
                .annotations
                .targets
                .keypoints_of(truth.row as usize, count);
            let cells = cells(&self.annotations, self.head.stride(place));
            likelihood::list(&self.head, place, truths, cells, rows);
        }
    }

    /// Returns what the flow is asked about.
    pub fn points(&self) -> impl ExactSizeIterator<Item = Point> {
        self.work.rows.iter().map(Row::point)
    }

    /// Takes what the flow said.
    pub fn take_densities(&mut self, points: &[Point]) {
        self.work.densities.extend_from_slice(points);
    }

    /// Sums up the likelihood's losses.
    pub fn sum_likelihood(&mut self) {
        let pairs = self.work.rows.iter().zip(&self.work.densities);
        self.sums.likelihood = pairs.map(|(row, point)| row.loss(point)).sum();
    }

    /// Adds up all other terms and writes the gradients, `scales` times those of the sums.
    pub fn add_terms(&mut self, scales: &Terms) {
        self.add_classes(scales);
        if let Some(gradient) = &mut self.gradient {
            for level in &mut gradient.levels {
                for output in [&mut level.boxes, &mut level.extra, &mut level.sigma] {
                    output.values.fill(0.0);
                }
            }
            if let Some(prototypes) = &mut gradient.prototypes {
                prototypes.fill(0.0);
            }
        }
        self.add_boxes(scales);
        match self.head.rules.task {
            Task::Segment => self.add_masks(scales),
            Task::Pose => self.add_keypoints(scales),
            Task::Detect | Task::Obb | Task::Classify => {}
        }
    }

    /// The cross-entropy over all anchors and classes.
    fn add_classes(&mut self, scales: &Terms) {
        let Self { head, gradient, .. } = self;
        let rules = head.rules;
        let mut sum = 0.0;
        for (index, level) in head.levels.iter().enumerate() {
            let size = level.height * level.width * level.score_stride;
            let gradient = gradient
                .as_mut()
                .map(|g| &mut *g.levels[index].scores.values);
            sum += Background {
                rows: &level.scores[head.image * size..][..size],
                row_stride: level.score_stride,
                class_count: rules.class_count,
                weights: &rules.class_weights,
                gradient: gradient.unwrap_or(&mut []),
                scale: scales.classes as f32,
            }
            .loss();
        }
        for (assignment, truth, place) in self.work.assigner.places(head) {
            let target = assignment.score * rules.class_weight(truth.class);
            sum -= f64::from(head.score(place, truth.class)) * target;
            if let Some(gradient) = gradient {
                let row = gradient.levels[place.level].scores.row(place.cell);
                row[truth.class as usize] -= (scales.classes * target) as f32;
            }
        }
        self.sums.classes = sum;
    }

    /// Overlap, distances and angle of the assigned anchors.
    fn add_boxes(&mut self, scales: &Terms) {
        let Self { head, gradient, .. } = self;
        let (height, width) = self.annotations.image_size;
        let mut sums = Terms::default();
        for (assignment, truth, place) in self.work.assigner.places(head) {
            let weight = assignment.score;
            let stride = head.stride(place);
            let centre = head.centre(place);
            let sides = head.sides(place);
            let means = sides.means();
            let units = [width, height, width, height].map(|side| stride / side as f64);
            let (targets, by_side, by_angle) = match truth.outline {
                Outline::Upright(shape) => {
                    let target = shape.corners.map(|pixels| pixels / stride);
                    let (value, slope) = ciou_with_gradient(corners(centre, means), target);
                    sums.boxes += (1.0 - value) * weight;
                    // Left and top move their corners the other way; the loss falls with the overlap.
                    let factor = weight * scales.boxes;
                    let by_side = [slope[0], slope[1], -slope[2], -slope[3]].map(|s| s * factor);
                    (distances(centre, target), by_side, None)
                }
                Outline::Turned(turned) => {
                    let [x, y, w, h] = turned.bounds.map(|pixels| pixels / stride);
                    let target = [x, y, w, h, turned.angle];
                    let (angle, angle_slope) = head.angle(place);
                    let predicted = obb::turned_box(centre, means, angle);
                    let (value, slope) = probiou_with_gradient(predicted, target);
                    let (error, error_slope) = obb::angle_term(angle, target);
                    sums.boxes += (1.0 - value) * weight;
                    sums.angles += error * weight;
                    let by_box = slope.map(|s| -s * weight * scales.boxes);
                    let (by_side, turn) = obb::turned_box_gradient(means, angle, by_box);
                    let by_angle = turn + error_slope * weight * scales.angles;
                    let targets = obb::distances_in_frame(centre, target);
                    (targets, by_side, Some(by_angle * angle_slope))
                }
            };
            sums.distances += sides.loss(targets, units) * weight;
            if let Some(gradient) = gradient {
                let level = &mut gradient.levels[place.level];
                let row = level.boxes.row(place.cell);
                sides.gradient(by_side, weight * scales.distances, targets, units, row);
                if let Some(by_angle) = by_angle {
                    level.extra.row(place.cell)[0] = by_angle as f32;
                }
            }
        }
        self.sums += sums;
    }

    /// The masks of the assigned anchors.
    fn add_masks(&mut self, scales: &Terms) {
        let (Some(prototypes), Some(instances)) =
            (self.head.prototypes, self.annotations.instances)
        else {
            return;
        };
        let Self { head, gradient, .. } = self;
        let ImageWork {
            assigner, mask_row, ..
        } = &mut *self.work;
        let (height, width) = self.annotations.image_size;
        let mut sum = 0.0;
        for (_, truth, place) in assigner.places(head) {
            let Outline::Upright(shape) = truth.outline else {
                continue;
            };
            let area = truth.outline.area() / (height * width) as f64;
            let share = 1.0 / ((prototypes.height * prototypes.width) as f64 * area);
            if !(area > 0.0 && share.is_finite()) {
                continue;
            }
            let gradient = gradient.as_mut().map(|gradient| MaskGradient {
                scale: (scales.masks * share) as f32,
                coefficients: &mut gradient.levels[place.level].extra.row(place.cell)
                    [..MASK_CHANNELS],
                prototypes: gradient.prototypes.as_deref_mut(),
            });
            let term = MaskTerm {
                prototypes,
                coefficients: head.extra(place, MASK_CHANNELS),
                instances,
                instance: truth.instance,
                window: prototypes.window(shape.corners, self.annotations.image_size),
                row: mask_row,
                gradient,
            };
            sum += term.compute() * share;
        }
        self.sums.masks = sum;
    }

    /// The keypoints of the assigned anchors, and the likelihood's gradient.
    fn add_keypoints(&mut self, scales: &Terms) {
        let Self { head, gradient, .. } = self;
        let rules = head.rules.keypoints();
        let values = rules.shape.values();
        let mut sums = Terms::default();
        for (_, truth, place) in self.work.assigner.places(head) {
            let stride = head.stride(place);
            let gradient = gradient.as_mut().map(|gradient| PoseGradient {
                keypoint_scale: scales.keypoints,
                visibility_scale: scales.visibility,
                raw: &mut gradient.levels[place.level].extra.row(place.cell)[..values],
            });
            let term = PoseTerm {
                rules,
                family: head.rules.family,
                raw: head.extra(place, values),
                area: truth.outline.area() / (stride * stride),
                truths: (self.annotations.targets)
                    .keypoints_of(truth.row as usize, rules.shape.count),
                cells: cells(&self.annotations, stride),
                gradient,
            };
            let loss = term.compute(|index| head.keypoint(place, rules, index));
            sums.keypoints += loss.keypoints;
            sums.visibility += loss.visibility;
        }
        self.sums += sums;
        self.add_likelihood_gradient();
    }

    fn add_likelihood_gradient(&mut self) {
        let Some(gradient) = self
            .gradient
            .as_mut()
            .filter(|_| self.likelihood_scale != 0.0)
        else {
            return;
        };
        let rules = self.head.rules.keypoints();
        let step = keypoint_scale(self.head.rules.family);
        for (row, point) in self.work.rows.iter().zip(&self.work.densities) {
            let by = row.gradient(point, self.likelihood_scale);
            let Place { level, cell } = row.place;
            let level = &mut gradient.levels[level];
            let extra = &mut level.extra.row(cell)[row.keypoint * rules.shape.dims..];
            let sigma = &mut level.sigma.row(cell)[2 * row.keypoint..];
            for axis in 0..2 {
                extra[axis] += (by.place[axis] * step) as f32;
                sigma[axis] += by.sigma[axis] as f32;
            }
        }
    }
}

/// Returns width and height of the image in cells of a level.
fn cells(annotations: &Annotations<'_>, stride: f64) -> [f64; 2] {
    let (height, width) = annotations.image_size;
    [width, height].map(|side| side as f64 / stride)
}

//! Decoding, assigning and the losses, against the engine's own on the CPU.

use engine::device::cuda::Device;
use engine::loss::cuda::{
    ClassifyLoss, DetLoss, Head, HeadDecode, HeadGradient, MaskLoss, TalAssign, Truths,
};
use engine::loss::{InstanceMaps, Loss, LossInput, LossOutput, LossSettings, Targets};
use engine::models::ModelSpec;
use engine::network::{HeadLevel, HeadLevelGradient, Map, MapGradient, OutputGradients, Outputs};
use engine::ops::cuda::FastDiv;
use engine::parallel::Threads;

use crate::bench::{Draw, Tensor, Vector, agree, each_way};

const HEIGHT: usize = 96;
const WIDTH: usize = 160;
const IMAGES: usize = 3;
const MASK_CHANNELS: usize = 32;

/// One level's outputs and gradients: boxes, classes, mask coefficients.
struct Level {
    stride: usize,
    height: usize,
    width: usize,
    outputs: [Tensor; 3],
    gradients: [Tensor; 3],
    values: [Vec<f32>; 3],
}

impl Level {
    fn new(device: &Device, stride: usize, channels: [usize; 3]) -> Self {
        let (height, width) = (HEIGHT / stride, WIDTH / stride);
        let tensor =
            |channels| Tensor::new(device, IMAGES * height * width, [channels + 8, 8, channels]);
        Self {
            stride,
            height,
            width,
            outputs: channels.map(tensor),
            gradients: channels.map(tensor),
            values: Default::default(),
        }
    }

    fn fill(&mut self, draw: &mut Draw, bins: usize, classes: usize) {
        for (kind, (tensor, values)) in self.outputs.iter().zip(&mut self.values).enumerate() {
            let exact = tensor.set(|_, channel| match kind {
                0 if bins == 1 => 3.0 + 3.0 * draw.next(),
                0 => 2.0 * draw.next(),
                1 if channel >= classes => 0.0,
                1 => 3.0 * draw.next() - 2.0,
                _ => 0.5 * draw.next(),
            });
            *values = exact.iter().map(|&value| value as f32).collect();
        }
    }

    fn head(&self) -> HeadLevel<'_> {
        HeadLevel {
            stride: self.stride,
            height: self.height,
            width: self.width,
            boxes: &self.values[0],
            box_stride: self.outputs[0].channels,
            scores: &self.values[1],
            score_stride: self.outputs[1].channels,
            extra: &self.values[2],
            extra_stride: self.outputs[2].channels,
            ..HeadLevel::default()
        }
    }
}

/// Objects of two images; the third has none. All places are exact in single precision.
fn targets(draw: &mut Draw, classes: usize) -> Targets {
    let mut targets = Targets::empty(IMAGES);
    for (image, count) in [(0, 5), (1, 3)] {
        for index in 0..count {
            let mut part = |low: f32, high: f32| {
                let share = low + (high - low) * (draw.next() + 1.0) / 2.0;
                (share * 256.0).round() / 256.0
            };
            // The first is small, so that its neighbourhood counts.
            let (low, high) = if index == 0 {
                (0.02, 0.06)
            } else {
                (0.15, 0.7)
            };
            let bounds = [
                part(0.3, 0.7),
                part(0.3, 0.7),
                part(low, high),
                part(low, high),
            ];
            let class = (index * 7 + image as usize) % classes;
            targets.push(image, class as u32, bounds);
        }
    }
    targets
}

/// The objects on the device.
struct Objects {
    boxes: Vector,
    meta: Vector,
    count: Vector,
}

impl Objects {
    fn new(device: &Device, targets: &Targets) -> Self {
        let mut boxes = Vec::new();
        let mut meta = Vec::new();
        let mut numbers = [0u32; IMAGES];
        for (row, &[x, y, w, h]) in targets.boxes.iter().enumerate() {
            let (width, height) = (WIDTH as f32, HEIGHT as f32);
            boxes.extend([
                (x - w / 2.0) * width,
                (y - h / 2.0) * height,
                (x + w / 2.0) * width,
                (y + h / 2.0) * height,
            ]);
            let image = targets.image[row];
            numbers[image as usize] += 1;
            meta.extend([image, targets.class[row], numbers[image as usize], 0]);
        }
        Self {
            boxes: Vector::of(device, &boxes),
            meta: Vector::of(device, &meta),
            count: Vector::of(device, &[targets.len() as u32]),
        }
    }

    fn truths(&self) -> Truths {
        Truths {
            boxes: self.boxes.address(),
            meta: self.meta.address(),
            count: self.count.address(),
        }
    }
}

/// What the assigner keeps on the device.
struct Scratch {
    boxes: Vector,
    scores: Vector,
    nearest: Vector,
    claims: Vector,
    peaks: Vector,
    owners: Vector,
    targets: Vector,
    partials: Vector,
    counter: Vector,
    totals: Vector,
    items: Vector,
}

const BLOCKS: u32 = 3;

impl Scratch {
    fn new(device: &Device, rows: usize, classes: usize, objects: usize) -> Self {
        Self {
            boxes: Vector::poisoned(device, 4 * rows),
            scores: Vector::poisoned(device, classes * rows),
            nearest: Vector::of(device, &vec![0u64; rows]),
            claims: Vector::of(device, &vec![0u64; rows]),
            peaks: Vector::poisoned(device, 4 * objects),
            owners: Vector::poisoned(device, rows),
            targets: Vector::poisoned(device, rows),
            partials: Vector::poisoned(device, 2 * BLOCKS as usize),
            counter: Vector::of(device, &[0u32]),
            totals: Vector::poisoned(device, 2),
            items: Vector::poisoned(device, 3),
        }
    }
}

fn gradient_of([boxes, scores, extra]: &mut [Vec<f32>; 3]) -> HeadLevelGradient<'_> {
    HeadLevelGradient {
        boxes,
        scores,
        extra,
        sigma: &mut [],
    }
}

struct Model {
    spec: ModelSpec,
    bins: usize,
    class_weights: Vec<f32>,
    levels: Vec<Level>,
}

impl Model {
    fn new(device: &Device, name: &str, classes: usize, weighted: bool) -> Self {
        let spec = ModelSpec::parse(name, classes).unwrap();
        let bins = spec.family.bins();
        let boxes = (4 * bins).next_multiple_of(16);
        let channels = [boxes, classes.next_multiple_of(16), MASK_CHANNELS];
        Self {
            spec,
            bins,
            class_weights: match weighted {
                true => (0..classes)
                    .map(|class| 0.5 + class as f32 * 0.125)
                    .collect(),
                false => Vec::new(),
            },
            levels: [8, 16, 32]
                .map(|stride| Level::new(device, stride, channels))
                .into(),
        }
    }

    fn head(&self) -> Head {
        let level = |index: usize| {
            let level = &self.levels[index];
            let sizes = [level.stride, level.height, level.width].map(|size| size as u32);
            (level.outputs[0].view(), level.outputs[1].view(), sizes)
        };
        let numbers = [IMAGES, self.spec.class_count, self.bins].map(|number| number as u32);
        Head::new([level(0), level(1), level(2)], numbers)
    }

    fn loss(&self) -> Loss {
        let settings = LossSettings {
            class_weights: self.class_weights.clone(),
            ..LossSettings::default()
        };
        Loss::new(&self.spec, settings)
    }

    /// Decodes and assigns on the device.
    fn assign(&self, device: &Device, objects: &Objects, scratch: &Scratch, claims: [u32; 2]) {
        let head = self.head();
        let decode = HeadDecode {
            head,
            boxes: scratch.boxes.address(),
            scores: scratch.scores.address(),
        };
        device.launch("head_decode", head.grid(), &decode).unwrap();
        let assign = TalAssign {
            head,
            truths: objects.truths(),
            boxes: scratch.boxes.address(),
            nearest: scratch.nearest.address(),
            claims: scratch.claims.address(),
            peaks: scratch.peaks.address(),
            owners: scratch.owners.address(),
            targets: scratch.targets.address(),
            partials: scratch.partials.address(),
            counter: scratch.counter.address(),
            totals: scratch.totals.address(),
            per_object: claims[0],
            one_kept: claims[1],
        };
        // One block too many for the objects there are.
        device
            .launch("tal_metric_topk", assign.grid(9), &assign)
            .unwrap();
        let blocks = (head.images * head.anchors).div_ceil(256);
        device.launch("tal_peaks", [blocks, 1, 1], &assign).unwrap();
        device
            .launch("tal_targets", [BLOCKS, 1, 1], &assign)
            .unwrap();
    }

    /// Compares the assignment with the CPU's.
    fn check_assignment(&self, scratch: &Scratch, targets: &Targets, loss: &Loss, branch: usize) {
        let anchors = self.head().anchors as usize;
        let first_of = |image: u32| targets.image.iter().take_while(|&&i| i < image).count();
        let mut owners = vec![0u32; IMAGES * anchors];
        let mut scores = vec![0.0; IMAGES * anchors];
        for assignment in loss.assignments(branch) {
            let row = assignment.image as usize * anchors + assignment.anchor as usize;
            owners[row] = first_of(assignment.image) as u32 + assignment.ground_truth + 1;
            scores[row] = assignment.score;
        }
        assert_eq!(
            scratch.owners.read::<u32>(),
            owners,
            "who answers for which object"
        );
        agree("target scores", &scratch.targets.floats(), &scores, 2e-5);
    }

    fn det_loss(&self, objects: &Objects, scratch: &Scratch, weights: u64, factor: f32) -> DetLoss {
        let gains = LossSettings::default().gains;
        let gradient = |index: usize| HeadGradient {
            boxes: self.levels[index].gradients[0].view(),
            scores: self.levels[index].gradients[1].view(),
        };
        DetLoss {
            head: self.head(),
            gradients: [gradient(0), gradient(1), gradient(2)],
            truths: objects.truths(),
            owners: scratch.owners.address(),
            targets: scratch.targets.address(),
            totals: scratch.totals.address(),
            class_weights: weights,
            partials: scratch.partials.address(),
            counter: scratch.counter.address(),
            items: scratch.items.address(),
            by_pieces: FastDiv::new(self.levels[0].outputs[1].channels as u32 / 8),
            gain_boxes: gains.boxes,
            gain_classes: gains.classes,
            gain_distances: gains.distances,
            factor,
            image_height: HEIGHT as f32,
            image_width: WIDTH as f32,
            unused: 0,
        }
    }

    /// The CPU's loss of `branches` equal branches; returns the gradients of one, by level and kind.
    fn reference(
        &self,
        loss: &mut Loss,
        targets: &Targets,
        prototypes: Option<(Map<'_>, &mut [f32])>,
        branches: usize,
        wanted: usize,
    ) -> (LossOutput, Vec<[Vec<f32>; 3]>) {
        let empty = |level: &Level| {
            level
                .values
                .each_ref()
                .map(|values| vec![f32::NAN; values.len()])
        };
        let mut gradients: Vec<Vec<_>> = (0..branches)
            .map(|_| self.levels.iter().map(empty).collect())
            .collect();
        let heads = || self.levels.iter().map(Level::head).collect();
        let (map, map_gradient) = match prototypes {
            Some((map, values)) => (Some(map), Some(MapGradient { values })),
            None => (None, None),
        };
        let outputs = Outputs {
            branches: (0..branches).map(|_| heads()).collect(),
            prototypes: map,
            ..Outputs::default()
        };
        let mut views = OutputGradients {
            branches: gradients
                .iter_mut()
                .map(|levels| levels.iter_mut().map(gradient_of).collect())
                .collect(),
            prototypes: map_gradient,
            ..OutputGradients::default()
        };
        let input = LossInput {
            targets,
            image_size: (HEIGHT, WIDTH),
            parameters: &[],
            threads: &Threads::new(1).unwrap(),
        };
        let output = loss.compute(&outputs, &mut views, &mut [], &input);
        drop(views);
        (output, gradients.swap_remove(wanted))
    }

    fn check_gradients(&self, expected: &[[Vec<f32>; 3]], kinds: usize) {
        for (level, expected) in self.levels.iter().zip(expected) {
            let pairs = level.gradients.iter().zip(expected).take(kinds);
            for (kind, (gradient, expected)) in pairs.enumerate() {
                let expected: Vec<f64> = expected.iter().map(|&value| f64::from(value)).collect();
                let name = ["boxes", "classes", "coefficients"][kind];
                agree(name, &gradient.get(), &expected, 5e-3);
            }
        }
    }
}

#[test]
fn boxes_and_probabilities_are_decoded_as_on_the_cpu() {
    use engine::decode::Decoder;
    each_way(|device, seed| {
        for (name, classes) in [("yolo11n", 3), ("yolo26n", 20)] {
            let draw = &mut Draw::new(seed);
            let mut model = Model::new(device, name, classes, false);
            let rows = IMAGES * model.head().anchors as usize;
            let scratch = Scratch::new(device, rows, classes, 1);
            for _ in 0..2 {
                for level in &mut model.levels {
                    level.fill(draw, model.bins, classes);
                }
                let decode = HeadDecode {
                    head: model.head(),
                    boxes: scratch.boxes.address(),
                    scores: scratch.scores.address(),
                };
                device
                    .launch("head_decode", decode.head.grid(), &decode)
                    .unwrap();
                let heads: Vec<_> = model.levels.iter().map(Level::head).collect();
                let mut expected = vec![0.0; rows * (4 + classes)];
                let threads = Threads::new(1).unwrap();
                Decoder::new(&model.spec).anchors(&threads, &heads, &mut expected);
                let (mut boxes, mut scores) = (Vec::new(), Vec::new());
                for row in expected.chunks(4 + classes) {
                    let [x, y, w, h] = [0, 1, 2, 3].map(|i| f64::from(row[i]));
                    boxes.extend([x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]);
                    scores.extend(row[4..].iter().map(|&score| f64::from(score)));
                }
                agree("boxes", &scratch.boxes.floats(), &boxes, 1e-6);
                agree("probabilities", &scratch.scores.floats(), &scores, 1e-6);
            }
        }
    });
}

#[test]
fn assignment_loss_and_gradients_are_those_of_the_cpu() {
    each_way(|device, seed| {
        let cases = [
            ("yolo11n", 3, false, 1, 0),
            ("yolo11n", 20, true, 1, 0),
            ("yolo26n", 3, false, 2, 0),
            ("yolo26n", 3, false, 2, 1),
        ];
        for (name, classes, weighted, branches, branch) in cases {
            let draw = &mut Draw::new(seed + 10 * classes as u64);
            let mut model = Model::new(device, name, classes, weighted);
            let weights = weighted.then(|| Vector::of(device, &model.class_weights));
            let rows = IMAGES * model.head().anchors as usize;
            let scratch = Scratch::new(device, rows, classes, 8);
            for _ in 0..2 {
                for level in &mut model.levels {
                    level.fill(draw, model.bins, classes);
                }
                let targets = targets(draw, classes);
                let objects = Objects::new(device, &targets);
                let claims = [[10, 0], [7, 1]][branch];
                model.assign(device, &objects, &scratch, claims);
                let mut loss = model.loss();
                let (output, expected) =
                    model.reference(&mut loss, &targets, None, branches, branch);
                model.check_assignment(&scratch, &targets, &loss, branch);

                let factor = (loss.branch_weights(branches)[branch] * IMAGES as f64) as f32;
                let weights = weights.as_ref().map_or(0, Vector::address);
                let parameters = model.det_loss(&objects, &scratch, weights, factor);
                for name in ["det_loss_classes", "det_loss_boxes"] {
                    device.launch(name, [BLOCKS, 1, 1], &parameters).unwrap();
                }
                model.check_gradients(&expected, 2);
                if branch + 1 == branches {
                    let items: Vec<f64> = output.items.iter().map(|&v| f64::from(v)).collect();
                    agree("items", &scratch.items.floats(), &items, 2e-5);
                    let totals = [output.score_sum, output.assigned as f64];
                    agree("totals", &scratch.totals.floats(), &totals, 2e-5);
                }
            }
        }
    });
}

#[test]
fn masks_are_compared_as_on_the_cpu() {
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let classes = 3;
        let (height, width) = (HEIGHT / 4, WIDTH / 4);
        let mut model = Model::new(device, "yolo11n-seg", classes, false);
        let rows = IMAGES * model.head().anchors as usize;
        let scratch = Scratch::new(device, rows, classes, 8);
        let tensor =
            |offset| Tensor::new(device, IMAGES * height * width, [48, offset, MASK_CHANNELS]);
        let (prototypes, gradient) = (tensor(8), tensor(16));
        let capacity = 128;
        let list = Vector::poisoned(device, IMAGES * capacity);
        let counts = Vector::poisoned(device, IMAGES);
        let partials = Vector::poisoned(device, IMAGES * 2);
        let loss_there = Vector::poisoned(device, 1);
        for _ in 0..2 {
            for level in &mut model.levels {
                level.fill(draw, model.bins, classes);
            }
            let mut targets = targets(draw, classes);
            let map: Vec<u16> = (0..IMAGES * height * width)
                .map(|_| ((draw.next() + 1.0) * 2.5) as u16)
                .collect();
            let instances = Vector::of(device, &map);
            targets.masks = Some(InstanceMaps {
                height,
                width,
                values: map,
            });
            let values: Vec<f32> = prototypes
                .set(|_, _| draw.next())
                .iter()
                .map(|&value| value as f32)
                .collect();
            let objects = Objects::new(device, &targets);
            model.assign(device, &objects, &scratch, [10, 0]);
            let view = |index: usize| model.levels[index].outputs[2].view();
            let slope = |index: usize| model.levels[index].gradients[2].view();
            let parameters = MaskLoss {
                head: model.head(),
                truths: objects.truths(),
                owners: scratch.owners.address(),
                totals: scratch.totals.address(),
                prototypes: prototypes.view(),
                prototype_gradient: gradient.view(),
                coefficients: [view(0), view(1), view(2)],
                coefficient_gradients: [slope(0), slope(1), slope(2)],
                instances: instances.address(),
                list: list.address(),
                counts: counts.address(),
                partials: partials.address(),
                counter: scratch.counter.address(),
                loss: loss_there.address(),
                by_width: FastDiv::new(width as u32),
                width: width as u32,
                height: height as u32,
                scale_x: 0.25,
                scale_y: 0.25,
                capacity: capacity as u32,
                gain: LossSettings::default().gains.boxes,
                factor: IMAGES as f32,
            };
            let images = IMAGES as u32;
            device
                .launch("mask_list", [images, 1, 1], &parameters)
                .unwrap();
            device
                .launch("mask_loss", [2, images, 1], &parameters)
                .unwrap();
            let blocks = ((height * width) as u32).div_ceil(128);
            device
                .launch("mask_loss_prototypes", [blocks, images, 1], &parameters)
                .unwrap();

            let map = Map {
                height,
                width,
                channels: MASK_CHANNELS,
                pixel_stride: MASK_CHANNELS,
                values: &values,
            };
            let mut expected = vec![f32::NAN; values.len()];
            let mut loss = model.loss();
            let prototypes = Some((map, &mut expected[..]));
            let (output, gradients) = model.reference(&mut loss, &targets, prototypes, 1, 0);
            model.check_assignment(&scratch, &targets, &loss, 0);
            let item = [f64::from(output.items[1])];
            agree("mask loss", &loss_there.floats(), &item, 2e-5);
            let expected: Vec<f64> = expected.iter().map(|&value| f64::from(value)).collect();
            agree("prototypes", &gradient.get(), &expected, 5e-3);
            for (level, expected) in model.levels.iter().zip(&gradients) {
                let expected: Vec<f64> = expected[2].iter().map(|&v| f64::from(v)).collect();
                agree("coefficients", &level.gradients[2].get(), &expected, 5e-3);
            }
        }
    });
}

#[test]
fn whole_images_are_compared_as_on_the_cpu() {
    each_way(|device, seed| {
        for (classes, weighted) in [(5, true), (300, false)] {
            let draw = &mut Draw::new(seed);
            let spec = ModelSpec::parse("yolo11n-cls", classes).unwrap();
            let padded = classes.next_multiple_of(16);
            let logits = Tensor::new(device, IMAGES, [padded + 8, 8, padded]);
            let gradient = Tensor::new(device, IMAGES, [padded + 16, 0, padded]);
            let class_weights: Vec<f32> = match weighted {
                true => (0..classes).map(|class| 0.5 + class as f32 / 4.0).collect(),
                false => Vec::new(),
            };
            let weights = weighted.then(|| Vector::of(device, &class_weights));
            let (partials, there) = (
                Vector::poisoned(device, IMAGES),
                Vector::poisoned(device, 1),
            );
            let counter = Vector::of(device, &[0u32]);
            for round in 0..2 {
                let labels: Vec<u32> = (0..IMAGES)
                    .map(|image| ((image * 7 + round) % classes) as u32)
                    .collect();
                let labels_there = Vector::of(device, &labels);
                let values: Vec<f32> = logits
                    .set(|_, channel| {
                        if channel < classes {
                            12.0 * draw.next()
                        } else {
                            0.0
                        }
                    })
                    .iter()
                    .map(|&value| value as f32)
                    .collect();
                let parameters = ClassifyLoss {
                    logits: logits.view(),
                    gradient: gradient.view(),
                    labels: labels_there.address(),
                    class_weights: weights.as_ref().map_or(0, Vector::address),
                    partials: partials.address(),
                    counter: counter.address(),
                    loss: there.address(),
                    classes: classes as u32,
                    share: 1.0 / IMAGES as f32,
                };
                let grid = [IMAGES as u32, 1, 1];
                device.launch("classify_loss", grid, &parameters).unwrap();
                let mut expected = vec![f32::NAN; values.len()];
                let map = Map {
                    height: 1,
                    width: 1,
                    channels: classes,
                    pixel_stride: padded,
                    values: &values,
                };
                let outputs = Outputs {
                    logits: Some(map),
                    ..Outputs::default()
                };
                let mut gradients = OutputGradients {
                    logits: Some(MapGradient {
                        values: &mut expected,
                    }),
                    ..OutputGradients::default()
                };
                let settings = LossSettings {
                    class_weights: class_weights.clone(),
                    ..LossSettings::default()
                };
                let input = LossInput {
                    targets: &Targets::labelled(labels),
                    image_size: (HEIGHT, WIDTH),
                    parameters: &[],
                    threads: &Threads::new(1).unwrap(),
                };
                let mut loss = Loss::new(&spec, settings);
                let output = loss.compute(&outputs, &mut gradients, &mut [], &input);
                drop(gradients);
                agree("loss", &there.floats(), &[output.total], 1e-5);
                let expected: Vec<f64> = expected.iter().map(|&value| f64::from(value)).collect();
                agree("gradient", &gradient.get(), &expected, 4e-3);
            }
        }
    });
}

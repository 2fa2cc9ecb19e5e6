//! What a model finds in validation pictures, counted for every task.

use crate::data::Batch;
use crate::loss::{Gaussian, LossSettings, Prototypes, Targets};
use crate::metrics::{
    ClassifyMetrics, ClassifyReport, DetectMetrics, DetectReport, Detection, Detector, Label,
    MaskTruths, NmsOptions, Scored, Truth, iou, keypoint_similarity,
};
use crate::models::{ModelSpec, Task};
use crate::network::Outputs;
use crate::parallel::Threads;

/// Turned boxes less sure than this are not looked at: their suppression takes long.
const TURNED_CONFIDENCE_MIN: f32 = 0.01;

/// Counts what was found.
#[derive(Debug)]
pub(super) struct Tally {
    task: Task,
    class_count: usize,
    detector: Detector,
    /// Of boxes, and of masks or poses.
    boxes: DetectMetrics,
    second: DetectMetrics,
    images: ClassifyMetrics,
}

/// What was found in one picture, beside what is there.
struct Found {
    objects: Vec<Scored>,
    truths: Vec<Truth>,
    /// How well boxes meet, label by label.
    boxes: Vec<f64>,
    /// How well masks or poses meet, where the task has them.
    second: Option<Second>,
}

/// What was found of masks or poses; only their areas may be others than those of boxes.
struct Second {
    objects: Vec<Scored>,
    truths: Vec<Truth>,
    overlaps: Vec<f64>,
}

impl Tally {
    pub fn new(spec: &ModelSpec, settings: LossSettings, options: NmsOptions) -> Self {
        let mut options = options;
        if spec.task == Task::Obb {
            options.confidence = options.confidence.max(TURNED_CONFIDENCE_MIN);
        }
        Self {
            task: spec.task,
            class_count: spec.class_count,
            detector: Detector::with_settings(spec, settings, options),
            boxes: DetectMetrics::new(spec.class_count),
            second: DetectMetrics::new(spec.class_count),
            images: ClassifyMetrics::new(spec.class_count),
        }
    }

    /// Forgets all pictures.
    pub fn start(&mut self) {
        self.boxes = DetectMetrics::new(self.class_count);
        self.second = DetectMetrics::new(self.class_count);
        self.images = ClassifyMetrics::new(self.class_count);
    }

    /// Counts the outputs for one batch.
    pub fn add(&mut self, outputs: &Outputs<'_>, batch: &Batch, threads: &Threads) {
        if let Some(logits) = outputs.logits {
            let rows = logits.values.chunks_exact(logits.pixel_stride);
            for (row, &label) in rows.zip(&batch.targets.labels) {
                self.images.add(&row[..self.class_count], label);
            }
            return;
        }
        let mut found: Vec<Option<Found>> = Vec::new();
        found.resize_with(batch.count, || None);
        let rows = rows_by_image(&batch.targets);
        let look = |image: usize| {
            let picture = Picture {
                detector: &self.detector,
                outputs,
                batch,
                image,
                rows: &rows[image],
            };
            match self.task {
                Task::Obb => picture.turned(),
                Task::Segment => picture.with_masks(),
                Task::Pose => picture.with_keypoints(),
                Task::Detect | Task::Classify => picture.upright().0,
            }
        };
        threads.run_each(found.iter_mut(), |image, found| *found = Some(look(image)));
        for found in found.into_iter().flatten() {
            let count = found.objects.len();
            let overlap = |label: usize, object: usize| found.boxes[label * count + object];
            self.boxes.add_by(&found.objects, &found.truths, overlap);
            self.boxes
                .confuse_by(&found.objects, &found.truths, overlap);
            if let Some(second) = found.second {
                let overlap = |label: usize, object: usize| second.overlaps[label * count + object];
                self.second.add_by(&second.objects, &second.truths, overlap);
            }
        }
    }

    /// Works out the metrics: of boxes, of masks or poses, of whole images.
    pub fn reports(&self) -> (DetectReport, Option<DetectReport>, Option<ClassifyReport>) {
        let has_second = matches!(self.task, Task::Segment | Task::Pose);
        let is_whole = self.task == Task::Classify;
        (
            self.boxes.report(),
            has_second.then(|| self.second.report()),
            is_whole.then(|| self.images.report()),
        )
    }
}

/// Returns the rows of the targets that belong to each image.
fn rows_by_image(targets: &Targets) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new(); targets.batch];
    for (row, &image) in targets.image.iter().enumerate() {
        rows[image as usize].push(row);
    }
    rows
}

/// One picture of a batch.
#[derive(Clone, Copy)]
struct Picture<'a> {
    detector: &'a Detector,
    outputs: &'a Outputs<'a>,
    batch: &'a Batch,
    image: usize,
    /// Its rows of the targets.
    rows: &'a [usize],
}

impl Picture<'_> {
    /// Returns centre and size of a row's box, in pixels.
    fn bounds(&self, row: usize) -> [f32; 4] {
        let [x, y, width, height] = self.batch.targets.boxes[row];
        let (across, down) = (self.batch.width as f32, self.batch.height as f32);
        [x * across, y * down, width * across, height * down]
    }

    fn label(&self, row: usize) -> Label {
        let [x, y, width, height] = self.bounds(row);
        Label {
            class: self.batch.targets.class[row],
            bounds: [
                x - width / 2.0,
                y - height / 2.0,
                x + width / 2.0,
                y + height / 2.0,
            ],
        }
    }

    fn upright(&self) -> (Found, Vec<Detection>) {
        let detections = self.detector.upright(self.outputs, self.image);
        let labels: Vec<_> = self.rows.iter().map(|&row| self.label(row)).collect();
        let pairs = labels
            .iter()
            .flat_map(|label| detections.iter().map(move |found| (label, found)));
        let found = Found {
            objects: detections.iter().map(Detection::scored).collect(),
            truths: labels.iter().map(Label::truth).collect(),
            boxes: pairs
                .map(|(label, found)| iou(&label.bounds, &found.bounds))
                .collect(),
            second: None,
        };
        (found, detections)
    }

    fn turned(&self) -> Found {
        let detections = self.detector.turned(self.outputs, self.image);
        let gaussian = |bounds: [f32; 5]| Gaussian::new(bounds.map(f64::from), 0.0);
        let objects: Vec<_> = detections.iter().map(|f| gaussian(f.bounds)).collect();
        let targets = &self.batch.targets;
        let (mut truths, mut boxes) = (Vec::new(), Vec::new());
        for &row in self.rows {
            let [x, y, width, height] = self.bounds(row);
            truths.push(Truth {
                class: targets.class[row],
                area: f64::from(width) * f64::from(height),
            });
            let truth = gaussian([x, y, width, height, targets.angles[row]]);
            boxes.extend(objects.iter().map(|object| truth.overlap(object)));
        }
        Found {
            objects: detections.iter().map(|found| found.scored()).collect(),
            truths,
            boxes,
            second: None,
        }
    }

    fn with_masks(&self) -> Found {
        let (mut found, detections) = self.upright();
        let (Some(map), Some(masks)) = (&self.outputs.prototypes, &self.batch.targets.masks) else {
            return found;
        };
        let labels = MaskTruths::new(masks.image(self.image), self.rows.len());
        let image_size = (self.batch.height, self.batch.width);
        // Areas are those of the input, which has more pixels than the map.
        let scale = (image_size.0 * image_size.1) as f64 / (map.height * map.width) as f64;
        let prototypes = Prototypes::of_image(map, self.image);
        let count = detections.len();
        let mut second = Second {
            objects: found.objects.clone(),
            truths: found.truths.clone(),
            overlaps: vec![0.0; self.rows.len() * count],
        };
        for (label, truth) in second.truths.iter_mut().enumerate() {
            truth.area = labels.area(label) as f64 * scale;
        }
        for (index, detection) in detections.iter().enumerate() {
            let coefficients =
                (self.detector).coefficients(self.outputs, self.image, detection.index);
            let (overlaps, area) =
                labels.overlaps(prototypes, coefficients, detection.bounds, image_size);
            second.objects[index].area = area as f64 * scale;
            for (label, overlap) in overlaps.into_iter().enumerate() {
                second.overlaps[label * count + index] = overlap;
            }
        }
        found.second = Some(second);
        found
    }

    fn with_keypoints(&self) -> Found {
        let (mut found, detections) = self.upright();
        let spreads = self.detector.keypoint_spreads();
        let (across, down) = (self.batch.width as f32, self.batch.height as f32);
        let poses: Vec<_> = detections
            .iter()
            .map(|found| (self.detector).keypoints(self.outputs, self.image, found.index))
            .collect();
        let mut overlaps = Vec::with_capacity(self.rows.len() * poses.len());
        for (&row, truth) in self.rows.iter().zip(&found.truths) {
            let targets = &self.batch.targets;
            let points = targets.keypoints_of(row, spreads.len());
            let points: Vec<_> = points
                .iter()
                .map(|&[x, y, visibility]| [x * across, y * down, visibility])
                .collect();
            let similarity =
                |pose: &Vec<_>| keypoint_similarity(&points, pose, spreads, truth.area);
            overlaps.extend(poses.iter().map(similarity));
        }
        found.second = Some(Second {
            objects: found.objects.clone(),
            truths: found.truths.clone(),
            overlaps,
        });
        found
    }
}

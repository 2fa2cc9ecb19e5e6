//! How good a model is on a split of a data set.
//!
//! For callers: `validate(&checkpoint, dataset, options, &mut on_batch) -> Result<Validation>` with a model file;
//! [`Validator`] for weights in memory, many times over. `on_batch(done, all)` may return an error to stop.
//! Pictures are grouped by shape, scores counted in the network's frame, boxes suppressed with confidence 0.001.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::clock::Stopwatch;
use crate::data::cache::CACHE_BYTES_DEFAULT;
use crate::data::yolo::Strictness;
use crate::data::{Batch, Dataset, Loader, Split, ValidationBatches};
use crate::loss::{DetectLoss, Gains};
use crate::metrics::{self, DetectMetrics, DetectReport, Detection, Label, NmsOptions};
use crate::models::ModelSpec;
use crate::network::{Images, InputShape, Predictions, State};
use crate::parallel::Threads;
use crate::plan::Mode;
use crate::train::{Networks, Scores, finite};
use crate::{Error, Result};

/// Networks held for the shapes of batches.
const NETWORKS_HELD: usize = 4;
/// Loader threads for one thread of the network.
const CORES_PER_WORKER: usize = 4;

/// What to validate on and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValidateOptions {
    pub split: Split,
    pub imgsz: usize,
    pub batch: usize,
    /// Scores must be above it.
    pub conf: f32,
    /// Overlap above which a surer box suppresses another.
    pub iou: f32,
    /// The most boxes of a picture; raised to the most labels of one.
    pub max_det: usize,
    /// Threads of the network; 0 takes all.
    pub threads: usize,
    /// The most threads that prepare batches.
    pub workers: usize,
    pub cache_bytes: u64,
    /// Refuse unreadable pictures instead of counting them as empty.
    pub strict: bool,
    pub gains: Gains,
}

impl Default for ValidateOptions {
    fn default() -> Self {
        let nms = NmsOptions::validation();
        Self {
            split: Split::Val,
            imgsz: 640,
            batch: 32,
            conf: nms.confidence,
            iou: nms.iou,
            max_det: nms.detection_count_max,
            threads: 0,
            workers: 8,
            cache_bytes: CACHE_BYTES_DEFAULT,
            strict: false,
            gains: Gains::default(),
        }
    }
}

/// What a validation found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    pub report: DetectReport,
    /// Box, class and distance loss, mean over the batches.
    pub losses: [f64; 3],
    pub images: usize,
    pub objects: usize,
    pub seconds: f64,
    /// Pictures that could not be read and counted as empty.
    pub unreadable: Vec<String>,
}

impl Validation {
    /// Returns the numbers that a run keeps.
    pub fn scores(&self) -> Scores {
        Scores {
            precision: finite(self.report.precision),
            recall: finite(self.report.recall),
            map50: finite(self.report.map50),
            map50_95: finite(self.report.map50_95),
            losses: self.losses,
        }
    }
}

/// Hears how many batches of all are done.
pub type OnBatch<'a> = dyn FnMut(usize, usize) -> Result<()> + 'a;

/// Validates the model in a checkpoint.
pub fn validate(
    checkpoint: &Checkpoint,
    dataset: Arc<Dataset>,
    options: ValidateOptions,
    on_batch: &mut OnBatch<'_>,
) -> Result<Validation> {
    let spec = &checkpoint.header.model;
    if spec.class_count != dataset.classes.len() {
        return Err(Error::Argument {
            argument: "data",
            rule: format!(
                "the data set has {} classes and the model {}",
                dataset.classes.len(),
                spec.class_count
            ),
        });
    }
    let threads = match options.threads {
        0 => Threads::available()?,
        count => Threads::new(count)?,
    };
    let mut validator = Validator::new(spec, dataset, options, &threads)?;
    validator.run(checkpoint.inference_state(), on_batch)
}

/// A split ready to be validated on, with its networks and decoded pictures.
#[derive(Debug)]
pub struct Validator {
    batches: Arc<ValidationBatches>,
    networks: Networks,
    loss: DetectLoss,
    nms: NmsOptions,
    class_count: usize,
    workers: usize,
    threads: Threads,
}

impl Validator {
    /// Plans the batches; reads the pictures' headers only.
    pub fn new(
        spec: &ModelSpec,
        dataset: Arc<Dataset>,
        options: ValidateOptions,
        threads: &Threads,
    ) -> Result<Self> {
        let strictness = if options.strict {
            Strictness::Refuse
        } else {
            Strictness::LeaveOut
        };
        let samples = options.split.samples(&dataset);
        if samples.is_empty() {
            return Err(Error::Argument {
                argument: "split",
                rule: format!("the data set has no pictures in {:?}", options.split),
            });
        }
        let labels_max = samples.iter().map(|sample| sample.labels.len()).max();
        let nms = NmsOptions {
            confidence: options.conf,
            iou: options.iou,
            detection_count_max: options.max_det.max(labels_max.unwrap_or(0)),
            ..NmsOptions::validation()
        };
        let batches = ValidationBatches::new(
            dataset,
            options.split,
            options.imgsz,
            options.batch,
            strictness,
            options.cache_bytes,
        )?;
        Ok(Self {
            batches: Arc::new(batches),
            networks: Networks::new(spec.clone(), Mode::Infer, threads.clone(), NETWORKS_HELD),
            loss: DetectLoss::new(spec.class_count, options.gains),
            nms,
            class_count: spec.class_count,
            workers: options
                .workers
                .min(threads.count() / CORES_PER_WORKER)
                .max(1),
            threads: threads.clone(),
        })
    }

    /// Validates `state`.
    pub fn run(&mut self, state: &State, on_batch: &mut OnBatch<'_>) -> Result<Validation> {
        let stopwatch = Stopwatch::start();
        self.networks.forget_weights();
        let count = self.batches.count();
        let batches = Arc::clone(&self.batches);
        let mut loader = Loader::start(0, count, self.workers, move |number| batches.batch(number));
        let mut metrics = DetectMetrics::new(self.class_count);
        let mut loss_sums = [0.0f64; 3];
        let (mut images, mut objects, mut done) = (0, 0, 0);
        while let Some(batch) = loader.take()? {
            let losses = self.run_batch(&batch, state, &mut metrics)?;
            for (sum, item) in loss_sums.iter_mut().zip(losses) {
                *sum += f64::from(item);
            }
            images += batch.count;
            objects += batch.targets.len();
            done += 1;
            on_batch(done, count)?;
        }
        Ok(Validation {
            report: metrics.report(),
            losses: loss_sums.map(|sum| finite(sum / count.max(1) as f64)),
            images,
            objects,
            seconds: stopwatch.elapsed().as_secs_f64(),
            unreadable: self.batches.unreadable(),
        })
    }

    fn run_batch(
        &mut self,
        batch: &Batch,
        state: &State,
        metrics: &mut DetectMetrics,
    ) -> Result<[f32; 3]> {
        let shape = InputShape {
            batch: batch.count,
            height: batch.height,
            width: batch.width,
        };
        let network = self.networks.get_loaded(shape, state)?;
        network.infer_forward(Images::U8(&batch.images));
        let found = suppress(&network.predictions(), &self.nms, &self.threads);
        for (detections, labels) in found.iter().zip(labels(batch)) {
            metrics.add(detections, &labels);
        }
        let size = (batch.height, batch.width);
        let levels = &network.outputs().branches[0];
        let output = self
            .loss
            .evaluate(levels, &batch.targets, size, &self.threads);
        Ok(output.items)
    }
}

/// Suppresses doubles, image by image on all threads.
pub(crate) fn suppress(
    predictions: &Predictions<'_>,
    options: &NmsOptions,
    threads: &Threads,
) -> Vec<Vec<Detection>> {
    let mut found = vec![Vec::new(); predictions.batch];
    threads.run_each(found.iter_mut(), |image, found| {
        *found = metrics::nms(predictions.image(image), predictions.class_count, options);
    });
    found
}

/// Returns the labels of each picture, as corners in pixels of the network's frame.
fn labels(batch: &Batch) -> Vec<Vec<Label>> {
    let mut labels = vec![Vec::new(); batch.count];
    let targets = &batch.targets;
    for ((&image, &class), bounds) in targets.image.iter().zip(&targets.class).zip(&targets.boxes) {
        let [x, y, width, height] = *bounds;
        let (across, down) = (batch.width as f32, batch.height as f32);
        labels[image as usize].push(Label {
            class,
            bounds: [
                (x - width / 2.0) * across,
                (y - height / 2.0) * down,
                (x + width / 2.0) * across,
                (y + height / 2.0) * down,
            ],
        });
    }
    labels
}

//! How good a model is on a split of a data set.
//!
//! For callers: `validate(&checkpoint, dataset, options, &mut on_batch) -> Result<Validation>` with a model file;
//! [`Validator`] for weights in memory, many times over. `on_batch(done, all)` may return an error to stop.
//! Pictures are grouped by shape, scores counted in the network's frame, boxes suppressed with confidence 0.001.
//! Sizes of objects are those in the network's frame, too.

mod tally;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::clock::Stopwatch;
use crate::data::cache::{CACHE_BYTES_DEFAULT, CacheOptions};
use crate::data::yolo::Strictness;
use crate::data::{Batch, Dataset, Loader, Split, ValidationBatches, ValidationOptions};
use crate::loss::{Gains, Loss, LossInput, LossSettings};
use crate::metrics::{self, ClassifyReport, DetectReport, Detection, NmsOptions};
use crate::models::ModelSpec;
use crate::network::{Images, InputShape, Predictions, State};
use crate::parallel::Threads;
use crate::plan::Mode;
use crate::train::{Networks, Row, Scores, finite};
use crate::{Error, Result};
use tally::Tally;

/// Networks held for the shapes of batches.
const NETWORKS_HELD: usize = 4;
/// Loader threads for one thread of the network.
const CORES_PER_WORKER: usize = 4;

/// What to validate on and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidateOptions {
    pub split: Split,
    pub imgsz: usize,
    pub batch: usize,
    /// Scores must be above it; of turned boxes above 0.01 at least.
    pub conf: f32,
    /// Overlap above which a surer box suppresses another.
    pub iou: f32,
    /// The most boxes of a picture; raised to the most labels of one.
    pub max_det: usize,
    /// Threads of the network; 0 takes all.
    pub threads: usize,
    /// The most threads that prepare batches.
    pub workers: usize,
    /// Where decoded pictures are kept.
    pub cache: CacheOptions,
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
            cache: CacheOptions::Ram {
                limit_bytes: CACHE_BYTES_DEFAULT,
            },
            strict: false,
            gains: Gains::default(),
        }
    }
}

/// What a validation found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Of boxes; nothing of whole images.
    pub report: DetectReport,
    /// The same of masks or poses, where the task has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub second: Option<DetectReport>,
    /// Of whole images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classification: Option<ClassifyReport>,
    /// The loss items, mean over the batches.
    pub losses: Row,
    pub images: usize,
    pub objects: usize,
    pub seconds: f64,
    /// Pictures that could not be read and counted as empty.
    pub unreadable: Vec<String>,
}

impl Validation {
    /// Returns the numbers that a run keeps.
    pub fn scores(&self) -> Scores {
        let [precision, recall, map50, map50_95] = measures(&self.report);
        let accuracy = |report: &ClassifyReport| [report.top1, report.top5];
        Scores {
            precision,
            recall,
            map50,
            map50_95,
            second: self.second.as_ref().map(measures),
            accuracy: self.classification.as_ref().map(accuracy),
            losses: self.losses,
        }
    }
}

fn measures(report: &DetectReport) -> [f64; 4] {
    let DetectReport {
        precision,
        recall,
        map50,
        map50_95,
        ..
    } = *report;
    [precision, recall, map50, map50_95].map(finite)
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
    loss: Loss,
    tally: Tally,
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
        dataset.check_task(spec.task)?;
        let layout = dataset.keypoints.as_ref();
        if let Some((wanted, layout)) = spec.keypoints.zip(layout)
            && wanted != layout.shape
        {
            let shape = layout.shape;
            return Err(Error::Argument {
                argument: "data",
                rule: format!(
                    "the data set has {} keypoints of {} numbers and the model {} of {}",
                    shape.count, shape.dims, wanted.count, wanted.dims
                ),
            });
        }
        let labels_max = samples.iter().map(|sample| sample.labels.len()).max();
        let nms = NmsOptions {
            confidence: options.conf,
            iou: options.iou,
            detection_count_max: options.max_det.max(labels_max.unwrap_or(0)),
            ..NmsOptions::validation()
        };
        let loss_settings = LossSettings {
            gains: options.gains,
            keypoint_sigmas: layout.map_or_else(Vec::new, |layout| layout.sigmas.clone()),
            ..LossSettings::default()
        };
        let batches = ValidationBatches::new(
            dataset,
            ValidationOptions {
                task: spec.task,
                split: options.split,
                size: options.imgsz,
                batch: options.batch,
                strictness,
                cache: options.cache,
            },
        )?;
        Ok(Self {
            batches: Arc::new(batches),
            networks: Networks::new(spec.clone(), Mode::Infer, threads.clone(), NETWORKS_HELD),
            loss: Loss::new(spec, loss_settings.clone()),
            tally: Tally::new(spec, loss_settings, nms),
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
        self.tally.start();
        let mut loss_sums = Row::default();
        let (mut images, mut objects, mut done) = (0, 0, 0);
        while let Some(batch) = loader.take()? {
            let losses = self.run_batch(&batch, state)?;
            loss_sums.add(&losses);
            images += batch.count;
            objects += batch.targets.len() + batch.targets.labels.len();
            done += 1;
            on_batch(done, count)?;
        }
        let (report, second, classification) = self.tally.reports();
        Ok(Validation {
            report,
            second,
            classification,
            losses: loss_sums.map(|sum| finite(sum / count.max(1) as f64)),
            images,
            objects,
            seconds: stopwatch.elapsed().as_secs_f64(),
            unreadable: self.batches.unreadable(),
        })
    }

    fn run_batch(&mut self, batch: &Batch, state: &State) -> Result<Row> {
        let shape = InputShape {
            batch: batch.count,
            height: batch.height,
            width: batch.width,
        };
        let network = self.networks.get_loaded(shape, state)?;
        network.infer_forward(Images::U8(&batch.images));
        let outputs = network.outputs();
        self.tally.add(&outputs, batch, &self.threads);
        let input = LossInput {
            targets: &batch.targets,
            image_size: (batch.height, batch.width),
            parameters: &state.parameters,
            threads: &self.threads,
        };
        let output = self.loss.evaluate(&outputs, &input);
        Ok(output.items.iter().map(|&item| f64::from(item)).collect())
    }
}

/// Suppresses doubles in decoded predictions, image by image on all threads.
pub fn suppress(
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

#[cfg(test)]
mod tests;

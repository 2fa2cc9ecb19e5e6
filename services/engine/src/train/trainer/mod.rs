//! The loop of a run: batches in, steps, validation after each epoch, checkpoints out.

mod epoch;
mod resume;
mod step;

use std::sync::Arc;

use super::freeze::Frozen;
use super::networks::Networks;
use super::options::TrainOptions;
use super::report::{EpochReport, Progress, Reason, Started, StopHandle};
use super::session::Session;
use crate::checkpoint::Position;
use crate::data::batches::TrainingOptions;
use crate::data::{Batch, Dataset, Loader, TrainingBatches};
use crate::import::{self, Weights};
use crate::loss::Loss;
use crate::models::{self, ModelSpec, Task};
use crate::network::{InputShape, State};
use crate::optim::{Accumulation, Ema, Optimizer, OptimizerSettings, Schedule};
use crate::parallel::Threads;
use crate::plan::{self, Mode};
use crate::validate::{ValidateOptions, Validator};
use crate::{Error, Result};

/// A loss or gradient that is not finite is skipped so often in a row before the run fails.
pub const NOT_FINITE_MAX: u32 = 10;
/// The full batch and the short one at an epoch's end.
const NETWORKS_HELD: usize = 2;

/// How a call of [`Trainer::run`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All epochs are done.
    Completed,
    /// No epoch was better for as long as the run's patience.
    OutOfPatience,
    /// The caller asked to stop; a checkpoint was handed over.
    Stopped,
}

/// A run in memory: weights, optimiser, average and position.
#[derive(Debug)]
pub struct Trainer {
    options: TrainOptions,
    spec: ModelSpec,
    dataset: Arc<Dataset>,
    fingerprint: String,
    threads: Threads,
    batches: Arc<TrainingBatches>,
    validator: Option<Validator>,
    networks: Networks,
    loss: Loss,
    settings: OptimizerSettings,
    schedule: Schedule,
    optimizer: Optimizer,
    average: Ema,
    accumulation: Accumulation,
    state: State,
    gradient: Vec<f32>,
    /// Running statistics before the step at hand, for when its loss is not finite.
    statistics_before: Vec<f32>,
    frozen: Frozen,
    position: Position,
    best: Option<(f64, u32)>,
    history: Vec<EpochReport>,
    /// To tell before the first step.
    notes: Vec<String>,
}

impl Trainer {
    /// Begins a run. `pretrained` gives the weights to start from where names and shapes agree.
    pub fn new(
        mut options: TrainOptions,
        dataset: Arc<Dataset>,
        pretrained: Option<&Weights>,
    ) -> Result<Self> {
        let mut notes: Vec<String> = options.round_size().into_iter().collect();
        options.check()?;
        let dataset = options.prepared(dataset);
        let mut spec = options.spec(&dataset)?;
        if let Some(pretrained) = pretrained {
            spec = import::fitted(spec, pretrained);
        }
        options.settle_optimizer(dataset.train.len(), spec.class_count)?;
        let mut state = models::initialise(&spec, options.seed);
        if let Some(pretrained) = pretrained {
            let report = import::load(&spec, &dataset.classes, &mut state, pretrained);
            notes.push(report.to_string());
        }
        let mut trainer = Self::assemble(options, spec, dataset, state)?;
        trainer.notes.append(&mut notes);
        Ok(trainer)
    }

    fn assemble(
        options: TrainOptions,
        spec: ModelSpec,
        dataset: Arc<Dataset>,
        state: State,
    ) -> Result<Self> {
        if dataset.train.is_empty() {
            return Err(Error::Data {
                place: "train".into(),
                rule: "the split holds no image".into(),
            });
        }
        let threads = match options.threads {
            0 => Threads::available()?,
            count => Threads::new(count)?,
        };
        let strictness = options.strictness();
        let batches = TrainingBatches::new(
            Arc::clone(&dataset),
            TrainingOptions {
                task: spec.task,
                seed: options.seed,
                size: options.imgsz,
                multi_scale: options.multi_scale,
                batch: options.batch,
                augmentation: options.augmentation,
                close_mosaic_at: options.close_mosaic_at(),
                strictness,
                cache: options.cache(),
            },
        );
        let validator = if options.val && !dataset.val.is_empty() {
            let validation = ValidateOptions {
                imgsz: options.imgsz,
                batch: match spec.task {
                    Task::Obb => options.batch,
                    _ => options.batch * plan::VALIDATION_BATCHES,
                },
                iou: options.iou as f32,
                max_det: options.max_det,
                workers: options.loader_threads(threads.count()),
                cache: options.cache(),
                strict: options.strict,
                gains: options.gains,
                ..ValidateOptions::default()
            };
            let dataset = Arc::clone(&dataset);
            Some(Validator::new(&spec, dataset, validation, &threads)?)
        } else {
            None
        };
        let settings = options.optimizer_settings(dataset.train.len(), spec.class_count)?;
        let per_epoch = batches.per_epoch();
        let mut schedule =
            Schedule::new(&settings, options.epochs as usize, per_epoch, options.batch);
        schedule.accumulate = options
            .accumulate()
            .min((options.epochs as usize * per_epoch).max(1));
        schedule.final_fraction = options.lrf;
        schedule.is_cosine = options.cos_lr;
        schedule.warmup_epochs = options.warmup_epochs;
        schedule.warmup_momentum = options.warmup_momentum;
        let decay = options.scaled_weight_decay();
        let tables = models::tables(&spec);
        Ok(Self {
            fingerprint: dataset.fingerprint()?,
            batches: Arc::new(batches),
            validator,
            networks: Networks::new(spec.clone(), Mode::Train, threads.clone(), NETWORKS_HELD)
                .computing(options.precision.here())
                .freezing(options.freeze.clone()),
            loss: Loss::new(&spec, options.loss_settings(&dataset)),
            optimizer: Optimizer::new(&settings, decay, &tables.parameters),
            average: Ema::new(&state),
            accumulation: Accumulation::default(),
            gradient: vec![0.0; state.parameters.len()],
            statistics_before: Vec::new(),
            frozen: Frozen::new(&options.freeze, &tables, &state),
            position: Position::default(),
            best: None,
            history: Vec::new(),
            notes: options
                .precision
                .note()
                .map(str::to_owned)
                .into_iter()
                .collect(),
            options,
            spec,
            dataset,
            threads,
            settings,
            schedule,
            state,
        })
    }

    /// Trains until the end, or until `stop` says so.
    pub fn run(&mut self, stop: &StopHandle, progress: &mut dyn Progress) -> Result<Ending> {
        let per_epoch = self.batches.per_epoch();
        let mut session = Session::new(self.start_loader(), self.position.elapsed_seconds);
        progress.on_start(&self.started()?)?;
        for note in self.notes.drain(..) {
            progress.on_note(&note)?;
        }
        while self.position.epoch < self.options.epochs {
            if self.position.batch == 0 && self.is_out_of_patience() {
                return Ok(Ending::OutOfPatience);
            }
            if self.options.time > 0.0 {
                // How many epochs there will be, and so the last ones without mosaic, is known anew each time.
                session.load_from(self.start_loader());
            }
            session.begin_epoch();
            while (self.position.batch as usize) < per_epoch && !self.is_out_of_time(&session) {
                if stop.is_stopped() {
                    return self.stop(&session, progress);
                }
                self.train_batch(&mut session, progress)?;
                if stop.take_checkpoint_request() {
                    self.hand_over(&session, Reason::Request, progress)?;
                }
            }
            match self.end_epoch(&mut session, stop, progress) {
                Err(Error::Cancelled) => return self.stop(&session, progress),
                other => other?,
            }
        }
        if self.is_out_of_patience() {
            return Ok(Ending::OutOfPatience);
        }
        Ok(Ending::Completed)
    }

    /// Returns the model that is trained.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the arguments of the run.
    pub fn options(&self) -> &TrainOptions {
        &self.options
    }

    /// Returns the first batch of the run, to be looked at.
    pub fn first_batch(&self) -> Result<Batch> {
        self.batches.batch(0, 0)
    }

    /// Returns the data set, with the share of training pictures that the run uses.
    pub fn dataset(&self) -> Arc<Dataset> {
        Arc::clone(&self.dataset)
    }

    /// Returns the finished epochs.
    pub fn history(&self) -> &[EpochReport] {
        &self.history
    }

    /// Returns the best fitness and its epoch, counted from 0.
    pub fn best(&self) -> Option<(f64, u32)> {
        self.best
    }

    fn started(&mut self) -> Result<Started> {
        let size = *self.batches.sides().end();
        let count = self.batches.size_of(0);
        let plan_bytes = self
            .networks
            .get(InputShape::square(count, size))?
            .plan()
            .peak_bytes();
        Ok(Started {
            model: self.options.model.clone(),
            parameters: self.state.parameters.len(),
            classes: self.dataset.classes.clone(),
            train_images: self.dataset.train.len(),
            val_images: self.dataset.val.len(),
            epochs: self.options.epochs,
            batches_per_epoch: self.batches.per_epoch() as u32,
            epoch: self.position.epoch,
            batch: self.position.batch,
            optimizer: self.settings.kind.name().into(),
            learning_rate: self.settings.learning_rate,
            threads: self.threads.count(),
            plan_bytes,
        })
    }

    /// Starts to make the batches from here to the end; with a time limit, to the end of the epoch.
    fn start_loader(&self) -> Loader<Batch> {
        let per_epoch = self.batches.per_epoch();
        let epoch = self.position.epoch as usize;
        let first = epoch * per_epoch + self.position.batch as usize;
        let epochs = match self.options.time > 0.0 {
            true => epoch + 1,
            false => self.options.epochs as usize,
        };
        let threads = self.options.loader_threads(self.threads.count());
        let batches = Arc::clone(&self.batches);
        batches.close_mosaic_at(self.options.close_mosaic_at());
        Loader::start(first, epochs * per_epoch, threads, move |index| {
            batches.batch((index / per_epoch) as u32, index % per_epoch)
        })
    }

    fn stop(&mut self, session: &Session, progress: &mut dyn Progress) -> Result<Ending> {
        self.hand_over(session, Reason::Stop, progress)?;
        Ok(Ending::Stopped)
    }

    fn hand_over(
        &mut self,
        session: &Session,
        reason: Reason,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        self.position.elapsed_seconds = session.elapsed();
        progress.on_checkpoint(reason, &self.checkpoint().to_bytes())
    }
}

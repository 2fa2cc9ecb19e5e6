//! The loop of a run: batches in, steps, validation after each epoch, checkpoints out.

use std::sync::Arc;

use super::networks::Networks;
use super::options::TrainOptions;
use super::report::{
    EpochReport, Progress, Reason, Scores, Started, StepReport, StopHandle, finite,
};
use crate::checkpoint::{Checkpoint, FORMAT_VERSION, Header, Position};
use crate::clock::Stopwatch;
use crate::data::batches::TrainingOptions;
use crate::data::yolo::Strictness;
use crate::data::{Batch, Dataset, Loader, TrainingBatches};
use crate::import::{self, Weights};
use crate::loss::DetectLoss;
use crate::models::{self, ModelSpec};
use crate::network::{Images, InputShape, State};
use crate::ops::simd::Level;
use crate::optim::{
    self, Accumulation, Ema, GRADIENT_NORM_MAX, Optimizer, OptimizerSettings, Schedule,
};
use crate::parallel::Threads;
use crate::plan::Mode;
use crate::validate::{ValidateOptions, Validator};
use crate::{Error, Result};

/// A loss or gradient that is not finite is skipped so often in a row before the run fails.
pub const NOT_FINITE_MAX: u32 = 10;
/// The full batch and the short one at an epoch's end.
const NETWORKS_HELD: usize = 2;
/// Validation batches are so much larger: they need far less memory.
const VALIDATION_BATCH_FACTOR: usize = 2;
/// The engine that writes a checkpoint.
const BUILD: &str = concat!("fovea ", env!("CARGO_PKG_VERSION"));

/// Returns what computes: other instructions round in another way.
fn device() -> String {
    format!("cpu {}", Level::best().name())
}

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
    loss: DetectLoss,
    settings: OptimizerSettings,
    schedule: Schedule,
    optimizer: Optimizer,
    average: Ema,
    accumulation: Accumulation,
    state: State,
    gradient: Vec<f32>,
    /// Running statistics before the step at hand, for when its loss is not finite.
    statistics_before: Vec<f32>,
    position: Position,
    best: Option<(f64, u32)>,
    history: Vec<EpochReport>,
    /// To tell before the first step.
    notes: Vec<String>,
}

impl Trainer {
    /// Begins a run. `pretrained` gives the weights to start from where names and shapes agree.
    pub fn new(
        options: TrainOptions,
        dataset: Arc<Dataset>,
        pretrained: Option<&Weights>,
    ) -> Result<Self> {
        options.check()?;
        let spec = ModelSpec::parse(&options.model, dataset.classes.len())?;
        let mut state = models::initialise(&spec, options.seed);
        let mut notes = Vec::new();
        if let Some(pretrained) = pretrained {
            let report = import::load(&spec, &dataset.classes, &mut state, pretrained);
            notes.push(report.to_string());
        }
        let mut trainer = Self::assemble(options, spec, dataset, state)?;
        trainer.notes.append(&mut notes);
        Ok(trainer)
    }

    /// Continues a run from a checkpoint; `place` is what errors call it. `threads` may differ from the first
    /// machine's, 0 takes all: the result is the same to the bit.
    pub fn resume(
        checkpoint: Checkpoint,
        place: &str,
        dataset: Arc<Dataset>,
        threads: usize,
    ) -> Result<Self> {
        let Checkpoint {
            ref header,
            ref gradient,
            ..
        } = checkpoint;
        let mut options = header.options.clone();
        options.threads = threads;
        options.check()?;
        let spec = ModelSpec::parse(&options.model, dataset.classes.len())?;
        let dataset = options.limited(dataset);
        checkpoint.check_continues(place, &spec, &dataset.classes, &dataset.fingerprint()?)?;
        let refuse = |rule: &str| Error::Checkpoint {
            place: place.to_owned(),
            rule: rule.to_owned(),
        };
        let mut trainer = Self::assemble(options, spec, dataset, checkpoint.state)?;
        let average = checkpoint
            .average
            .ok_or_else(|| refuse("it holds no averaged weights"))?;
        let position = header.position;
        let per_epoch = trainer.batches.per_epoch() as u32;
        if position.epoch > trainer.options.epochs || position.batch > per_epoch {
            return Err(refuse("its position lies outside the run"));
        }
        trainer.average = Ema::restore(average, position.average_updates);
        trainer.accumulation = Accumulation::restore(position.first_unstepped);
        let mut moments = checkpoint.moments;
        trainer
            .optimizer
            .restore(position.steps, |name| moments.remove(name))?;
        if !gradient.is_empty() {
            trainer.gradient.copy_from_slice(gradient);
        }
        let device = device();
        if (&header.build[..], &header.device[..]) != (BUILD, &device[..]) {
            trainer.notes.push(format!(
                "the checkpoint was written by {} on {}, this is {BUILD} on {device}: the run goes on, not to the bit",
                header.build, header.device
            ));
        }
        trainer.position = position;
        trainer.best = header.best;
        trainer.history.clone_from(&header.history);
        Ok(trainer)
    }

    fn assemble(
        options: TrainOptions,
        spec: ModelSpec,
        dataset: Arc<Dataset>,
        state: State,
    ) -> Result<Self> {
        let dataset = options.limited(dataset);
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
                seed: options.seed,
                size: options.imgsz,
                batch: options.batch,
                augmentation: options.augmentation,
                close_mosaic_at: options.close_mosaic_at(),
                strictness,
                cache_bytes: options.cache_bytes,
            },
        );
        let validator = if options.val && !dataset.val.is_empty() {
            let validation = ValidateOptions {
                imgsz: options.imgsz,
                batch: options.batch * VALIDATION_BATCH_FACTOR,
                iou: options.iou as f32,
                max_det: options.max_det,
                workers: options.loader_threads(threads.count()),
                cache_bytes: options.cache_bytes,
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
        schedule.final_fraction = options.lrf;
        schedule.is_cosine = options.cos_lr;
        schedule.warmup_epochs = options.warmup_epochs;
        schedule.warmup_momentum = options.warmup_momentum;
        let decay = optim::scaled_weight_decay(options.weight_decay, options.batch);
        let tables = models::tables(&spec);
        Ok(Self {
            fingerprint: dataset.fingerprint()?,
            batches: Arc::new(batches),
            validator,
            networks: Networks::new(spec.clone(), Mode::Train, threads.clone(), NETWORKS_HELD),
            loss: DetectLoss::new(spec.class_count, options.gains),
            optimizer: Optimizer::new(&settings, decay, &tables.parameters),
            average: Ema::new(&state),
            accumulation: Accumulation::default(),
            gradient: vec![0.0; state.parameters.len()],
            statistics_before: Vec::new(),
            position: Position::default(),
            best: None,
            history: Vec::new(),
            notes: Vec::new(),
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
        let mut session = Session {
            stopwatch: Stopwatch::start(),
            elapsed_before: self.position.elapsed_seconds,
            loader: self.start_loader(per_epoch),
            epoch_images: 0,
            epoch_began: 0.0,
            notes_told: 0,
        };
        progress.on_start(&self.started()?)?;
        for note in self.notes.drain(..) {
            progress.on_note(&note)?;
        }
        while self.position.epoch < self.options.epochs {
            if self.position.batch == 0 && self.is_out_of_patience() {
                return Ok(Ending::OutOfPatience);
            }
            session.begin_epoch();
            while (self.position.batch as usize) < per_epoch {
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

    /// Returns the run as it stands.
    pub fn checkpoint(&self) -> Checkpoint {
        let mut position = self.position;
        position.first_unstepped = self.accumulation.next();
        position.steps = self.optimizer.step_count();
        position.average_updates = self.average.update_count();
        let is_accumulating = self.gradient.iter().any(|value| value.to_bits() != 0);
        Checkpoint {
            header: Header {
                format: FORMAT_VERSION,
                build: BUILD.into(),
                device: device(),
                model: self.spec.clone(),
                classes: self.dataset.classes.clone(),
                options: self.options.clone(),
                data: self.fingerprint.clone(),
                position,
                best: self.best,
                history: self.history.clone(),
                is_model: false,
            },
            state: self.state.clone(),
            average: Some(self.average.state().clone()),
            moments: self
                .optimizer
                .moments()
                .iter()
                .map(|moment| (moment.name.to_owned(), moment.values.clone()))
                .collect(),
            gradient: if is_accumulating {
                self.gradient.clone()
            } else {
                Vec::new()
            },
        }
    }

    /// Returns the arguments of the run.
    pub fn options(&self) -> &TrainOptions {
        &self.options
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
        let size = self.options.imgsz;
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

    fn start_loader(&self, per_epoch: usize) -> Loader<Batch> {
        let first = self.position.epoch as usize * per_epoch + self.position.batch as usize;
        let count = self.options.epochs as usize * per_epoch;
        let threads = self.options.loader_threads(self.threads.count());
        let batches = Arc::clone(&self.batches);
        Loader::start(first, count, threads, move |index| {
            batches.batch((index / per_epoch) as u32, index % per_epoch)
        })
    }

    fn train_batch(&mut self, session: &mut Session, progress: &mut dyn Progress) -> Result<()> {
        let stopwatch = Stopwatch::start();
        let batch = session.loader.take()?.ok_or_else(|| Error::Data {
            place: "train".into(),
            rule: "the loader ended before the run".into(),
        })?;
        session.tell_unreadable(&self.batches.unreadable(), progress)?;
        let step = self.step(&batch)?;
        let position = &mut self.position;
        position.iteration += 1;
        position.batch += 1;
        position.not_finite = if step.is_finite {
            0
        } else {
            position.not_finite + 1
        };
        if step.is_finite {
            position.loss_count += 1;
            for (sum, item) in position.loss_sums.iter_mut().zip(step.losses) {
                *sum += f64::from(item);
            }
        }
        let position = self.position;
        if !step.is_finite {
            if position.not_finite >= NOT_FINITE_MAX {
                return Err(Error::NotFinite {
                    step: position.iteration,
                    limit: NOT_FINITE_MAX,
                });
            }
            progress.on_note(&format!(
                "epoch {} batch {}: the loss is not finite, the batch is skipped",
                position.epoch + 1,
                position.batch
            ))?;
        }
        session.epoch_images += batch.count;
        let seconds = stopwatch.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
        progress.on_step(&StepReport {
            epoch: position.epoch + 1,
            epochs: self.options.epochs,
            batch: position.batch,
            batches: self.batches.per_epoch() as u32,
            iteration: position.iteration,
            losses: step.losses,
            mean_losses: self.mean_losses(),
            learning_rates: self.learning_rates(position.iteration - 1),
            gradient_norm: step.gradient_norm,
            images: batch.count,
            objects: batch.targets.len(),
            images_per_second: batch.count as f64 / seconds,
            data_wait_share: session.data_wait_share(),
        })
    }

    /// Runs one batch forward and back, and the optimiser where a step is due.
    fn step(&mut self, batch: &Batch) -> Result<Step> {
        let shape = InputShape {
            batch: batch.count,
            height: batch.height,
            width: batch.width,
        };
        let iteration = self.position.iteration;
        let plan = self.schedule.at(self.position.epoch as usize, iteration);
        self.statistics_before.clone_from(&self.state.buffers);
        let network = self.networks.get(shape)?;
        network.forward(&mut self.state, Images::U8(&batch.images));
        let (outputs, mut gradients) = network.outputs_and_gradients();
        let output = self.loss.compute(
            &outputs.branches[0],
            &mut gradients.branches[0],
            &batch.targets,
            (batch.height, batch.width),
            &self.threads,
        );
        let mut is_finite = output.total.is_finite();
        if is_finite {
            network.backward(&self.state, &mut self.gradient);
        } else {
            self.state.buffers.clone_from(&self.statistics_before);
        }
        let mut gradient_norm = None;
        if self.accumulation.is_step_due(iteration, plan.accumulate) {
            let clip = optim::clip_gradient_norm(&self.gradient, GRADIENT_NORM_MAX, &self.threads);
            gradient_norm = Some(clip.norm);
            if clip.norm.is_finite() {
                self.optimizer.step(
                    &mut self.state.parameters,
                    &mut self.gradient,
                    clip.factor,
                    &plan.rates,
                    &self.threads,
                );
                self.average.update(&self.state, &self.threads);
            } else {
                is_finite = false;
                self.gradient.fill(0.0);
            }
        }
        Ok(Step {
            losses: output.items,
            is_finite,
            gradient_norm,
        })
    }

    /// Validates, judges and closes the epoch.
    fn end_epoch(
        &mut self,
        session: &mut Session,
        stop: &StopHandle,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let images_per_second = session.epoch_speed();
        let validation = match &mut self.validator {
            None => None,
            Some(validator) => {
                let seen =
                    validator.run(self.average.state(), &mut |_, _| match stop.is_stopped() {
                        true => Err(Error::Cancelled),
                        false => Ok(()),
                    })?;
                Some(seen.scores())
            }
        };
        let epoch = self.position.epoch;
        let fitness = validation.as_ref().map(Scores::fitness);
        let is_best = match (fitness, self.best) {
            (Some(fitness), Some((best, _))) => fitness > best || best == 0.0,
            (Some(_), None) => true,
            // Without validation the last is the best there is.
            (None, _) => true,
        };
        if let Some(fitness) = fitness.filter(|_| is_best) {
            self.best = Some((fitness, epoch));
        }
        let report = EpochReport {
            epoch: epoch + 1,
            seconds: session.elapsed(),
            losses: self.mean_losses(),
            learning_rates: self.learning_rates(self.position.iteration.saturating_sub(1)),
            validation,
            is_best,
            images_per_second,
            data_wait_share: session.data_wait_share(),
        };
        self.history.push(report);
        self.position.epoch += 1;
        self.position.batch = 0;
        self.position.loss_sums = [0.0; 3];
        self.position.loss_count = 0;
        progress.on_epoch(&report)?;
        self.hand_over(session, Reason::Epoch { is_best }, progress)
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

    fn is_out_of_patience(&self) -> bool {
        let patience = self.options.patience;
        let Some((_, best_epoch)) = self.best else {
            return false;
        };
        // Epochs finished since the best one.
        patience > 0 && self.position.epoch.saturating_sub(best_epoch + 1) >= patience
    }

    fn mean_losses(&self) -> [f64; 3] {
        let count = self.position.loss_count.max(1) as f64;
        self.position.loss_sums.map(|sum| finite(sum / count))
    }

    fn learning_rates(&self, iteration: u64) -> [f64; 3] {
        let rates = self
            .schedule
            .at(self.position.epoch as usize, iteration)
            .rates;
        [rates.weight, rates.norm, rates.bias]
    }
}

impl TrainOptions {
    fn strictness(&self) -> Strictness {
        if self.strict {
            Strictness::Refuse
        } else {
            Strictness::LeaveOut
        }
    }

    /// Returns the data set with the share of training pictures that the run uses.
    fn limited(&self, dataset: Arc<Dataset>) -> Arc<Dataset> {
        let count = dataset.train.len();
        let kept = (count as f64 * self.fraction).round_ties_even() as usize;
        if kept >= count {
            return dataset;
        }
        let mut limited = Dataset::clone(&dataset);
        limited.train.truncate(kept.max(1));
        Arc::new(limited)
    }
}

/// What one batch came to.
struct Step {
    losses: [f32; 3],
    is_finite: bool,
    gradient_norm: Option<f64>,
}

/// What belongs to one call of `run` and to no checkpoint.
struct Session {
    stopwatch: Stopwatch,
    elapsed_before: f64,
    loader: Loader<Batch>,
    epoch_images: usize,
    epoch_began: f64,
    notes_told: usize,
}

impl Session {
    fn elapsed(&self) -> f64 {
        self.elapsed_before + self.stopwatch.elapsed().as_secs_f64()
    }

    fn begin_epoch(&mut self) {
        self.epoch_images = 0;
        self.epoch_began = self.elapsed();
    }

    fn epoch_speed(&self) -> f64 {
        let seconds = (self.elapsed() - self.epoch_began).max(f64::MIN_POSITIVE);
        self.epoch_images as f64 / seconds
    }

    fn data_wait_share(&self) -> f64 {
        let all = self
            .stopwatch
            .elapsed()
            .as_secs_f64()
            .max(f64::MIN_POSITIVE);
        self.loader.waited().as_secs_f64() / all
    }

    fn tell_unreadable(&mut self, all: &[String], progress: &mut dyn Progress) -> Result<()> {
        for note in all.iter().skip(self.notes_told) {
            progress.on_note(&format!(
                "{note}; it is left out and a grey picture takes its place"
            ))?;
        }
        self.notes_told = all.len();
        Ok(())
    }
}

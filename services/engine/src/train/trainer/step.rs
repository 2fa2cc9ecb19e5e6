//! One batch: forward, loss, backward, and the optimiser where a step is due.

use super::{NOT_FINITE_MAX, Trainer};
use crate::clock::Stopwatch;
use crate::data::Batch;
use crate::loss::LossInput;
use crate::network::{Images, InputShape};
use crate::optim::{self, GRADIENT_NORM_MAX};
use crate::train::columns::Columns;
use crate::train::diagnose;
use crate::train::report::{Progress, StepReport};
use crate::train::row::Row;
use crate::train::session::Session;
use crate::{Error, Result};

/// What one batch came to.
struct Step {
    losses: Row,
    is_finite: bool,
    gradient_norm: Option<f64>,
}

impl Trainer {
    /// Takes the next batch, trains on it and tells how it went.
    pub(super) fn train_batch(
        &mut self,
        session: &mut Session,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let stopwatch = Stopwatch::start();
        let batch = session.loader.take()?.ok_or_else(|| Error::Data {
            place: "train".into(),
            rule: "the loader ended before the run".into(),
        })?;
        session.tell(&self.batches, progress)?;
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
            position.loss_sums.add(&step.losses);
        }
        let position = self.position;
        if !step.is_finite {
            if position.not_finite >= NOT_FINITE_MAX {
                return Err(Error::NotFinite {
                    step: position.iteration,
                    limit: NOT_FINITE_MAX,
                    first: diagnose::first_not_finite(
                        &self.spec,
                        &self.state,
                        &batch,
                        &self.threads,
                    ),
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
            columns: Columns::of(&self.spec),
            losses: step.losses,
            mean_losses: self.mean_losses(),
            learning_rates: self.learning_rates(position.iteration - 1),
            gradient_norm: step.gradient_norm,
            images: batch.count,
            objects: batch.targets.len() + batch.targets.labels.len(),
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
        let (finished, epochs) = (self.position.epoch, self.options.epochs);
        self.loss.set_progress(finished as usize, epochs as usize);
        let input = LossInput {
            targets: &batch.targets,
            image_size: (batch.height, batch.width),
            parameters: &self.state.parameters,
            threads: &self.threads,
        };
        let output = self
            .loss
            .compute(&outputs, &mut gradients, &mut self.gradient, &input);
        let mut is_finite = output.total.is_finite();
        if is_finite {
            network.backward(&self.state, &mut self.gradient);
            self.frozen.clear_gradient(&mut self.gradient);
        } else {
            self.state.buffers.clone_from(&self.statistics_before);
            // A head that learns its loss has added to the gradient already: with it goes what waited there.
            if self.gradient.iter().any(|value| !value.is_finite()) {
                self.gradient.fill(0.0);
            }
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
                self.frozen.restore(&mut self.state);
                self.average.update(&self.state, &self.threads);
            } else {
                is_finite = false;
                self.gradient.fill(0.0);
            }
        }
        Ok(Step {
            losses: output.items.iter().map(|&item| f64::from(item)).collect(),
            is_finite,
            gradient_norm,
        })
    }
}

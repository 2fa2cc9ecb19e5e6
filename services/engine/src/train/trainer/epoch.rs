//! The end of an epoch: validation, judgement, and how many more there will be.

use super::Trainer;
use crate::optim::{CLASS_BRANCH_BOOST, OptimizerKind};
use crate::train::columns::Columns;
use crate::train::options::EPOCHS_MAX;
use crate::train::report::{EpochReport, Progress, Reason, Scores, StopHandle, finite};
use crate::train::row::Row;
use crate::train::session::Session;
use crate::{Error, Result};

const SECONDS_PER_HOUR: f64 = 3600.0;

impl Trainer {
    /// Validates, judges and closes the epoch.
    pub(super) fn end_epoch(
        &mut self,
        session: &mut Session,
        stop: &StopHandle,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let images_per_second = session.epoch_speed();
        let data_wait_share = session.data_wait_share();
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
            columns: Columns::of(&self.spec),
            seconds: session.elapsed(),
            losses: self.mean_losses(),
            learning_rates: self.learning_rates(self.position.iteration.saturating_sub(1)),
            validation,
            is_best,
            images_per_second,
            data_wait_share,
        };
        self.history.push(report);
        self.position.epoch += 1;
        self.position.batch = 0;
        self.position.loss_sums = Row::default();
        self.position.loss_count = 0;
        progress.on_epoch(&report)?;
        self.estimate_epochs(session, progress)?;
        self.hand_over(session, Reason::Epoch { is_best }, progress)
    }

    /// Returns whether the run ends for it.
    pub(super) fn is_out_of_patience(&self) -> bool {
        let patience = self.options.patience;
        let Some((_, best_epoch)) = self.best else {
            return false;
        };
        // Epochs finished since the best one.
        patience > 0 && self.position.epoch.saturating_sub(best_epoch + 1) >= patience
    }

    /// Returns whether the run ends for it.
    pub(super) fn is_out_of_time(&self, session: &Session) -> bool {
        let limit = self.options.time * SECONDS_PER_HOUR;
        limit > 0.0 && session.elapsed() >= limit
    }

    /// With a time limit, sets the run's epochs to as many as fit into it.
    fn estimate_epochs(&mut self, session: &Session, progress: &mut dyn Progress) -> Result<()> {
        if self.options.time == 0.0 {
            return Ok(());
        }
        let done = self.position.epoch;
        let limit = self.options.time * SECONDS_PER_HOUR;
        let epochs = if self.is_out_of_time(session) {
            done
        } else {
            let mean = session.elapsed() / f64::from(done.max(1));
            (limit / mean)
                .ceil()
                .clamp(f64::from(done), f64::from(EPOCHS_MAX)) as u32
        };
        if epochs != self.options.epochs {
            progress.on_note(&format!(
                "{} hours are enough for {epochs} epochs, not {}",
                self.options.time, self.options.epochs
            ))?;
            self.options.epochs = epochs;
            self.schedule.epochs = epochs as usize;
        }
        Ok(())
    }

    pub(super) fn mean_losses(&self) -> Row {
        let count = self.position.loss_count.max(1) as f64;
        self.position.loss_sums.map(|sum| finite(sum / count))
    }

    /// Returns the groups' rates, as the reference numbers them: weights, norms, biases; MuSGD has matrices as a fourth
    /// and divides each into class branches, which learn faster, and the rest.
    pub(super) fn learning_rates(&self, iteration: u64) -> Row {
        let rates = self
            .schedule
            .at(self.position.epoch as usize, iteration)
            .rates;
        let groups = [rates.weight, rates.norm, rates.bias];
        if self.settings.kind != OptimizerKind::MuSgd {
            return groups.into_iter().collect();
        }
        let boost = f64::from(CLASS_BRANCH_BOOST);
        let groups = groups.into_iter().chain([rates.weight]);
        groups.flat_map(|rate| [boost * rate, rate]).collect()
    }
}

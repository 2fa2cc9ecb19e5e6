//! A run as a checkpoint, and back.

use std::sync::Arc;

use super::Trainer;
use crate::checkpoint::{Checkpoint, FORMAT_VERSION, Header};
use crate::data::Dataset;
use crate::models::ModelSpec;
use crate::ops::conv2d;
use crate::ops::simd::Level;
use crate::optim::{Accumulation, Ema};
use crate::{Error, Precision, Result};

/// The engine that writes a checkpoint.
const BUILD: &str = concat!("fovea ", env!("CARGO_PKG_VERSION"));

/// Returns what computes: other instructions round in another way.
fn device(precision: Precision) -> String {
    let level = Level::best().name();
    match precision.here() {
        conv2d::Precision::F32 => format!("cpu {level}"),
        conv2d::Precision::Mixed => format!("cpu {level} bf16"),
    }
}

impl Trainer {
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
        let dataset = options.prepared(dataset);
        let spec = ModelSpec {
            class_hidden: header.model.class_hidden,
            ..options.spec(&dataset)?
        };
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
        let device = device(header.options.precision);
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
                device: device(self.options.precision),
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
}

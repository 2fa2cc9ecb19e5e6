//! What belongs to one call of a run and to no checkpoint: clocks, the loader, and what was told.

use super::report::Progress;
use crate::Result;
use crate::clock::Stopwatch;
use crate::data::{Batch, Loader, TrainingBatches};

pub struct Session {
    stopwatch: Stopwatch,
    elapsed_before: f64,
    pub loader: Loader<Batch>,
    pub epoch_images: usize,
    epoch_began: f64,
    /// What loaders of this session before the present one made the step wait, and all of them before this epoch.
    waited_before: f64,
    epoch_waited_before: f64,
    notes_told: usize,
    is_trouble_told: bool,
}

impl Session {
    /// Begins a session of a run that has taken `elapsed_before` seconds already.
    pub fn new(loader: Loader<Batch>, elapsed_before: f64) -> Self {
        Self {
            stopwatch: Stopwatch::start(),
            elapsed_before,
            loader,
            epoch_images: 0,
            epoch_began: elapsed_before,
            waited_before: 0.0,
            epoch_waited_before: 0.0,
            notes_told: 0,
            is_trouble_told: false,
        }
    }

    /// Returns the seconds the run has taken, sessions before this one included.
    pub fn elapsed(&self) -> f64 {
        self.elapsed_before + self.stopwatch.elapsed().as_secs_f64()
    }

    /// Begins an epoch, or what this session has of it.
    pub fn begin_epoch(&mut self) {
        self.epoch_images = 0;
        self.epoch_began = self.elapsed();
        self.epoch_waited_before = self.waited();
    }

    /// Takes another loader from here on.
    pub fn load_from(&mut self, loader: Loader<Batch>) {
        self.waited_before = self.waited();
        self.loader = loader;
    }

    /// Returns images a second in this epoch.
    pub fn epoch_speed(&self) -> f64 {
        self.epoch_images as f64 / self.epoch_seconds()
    }

    /// Returns the share of this epoch that was spent waiting for batches.
    pub fn data_wait_share(&self) -> f64 {
        (self.waited() - self.epoch_waited_before) / self.epoch_seconds()
    }

    /// Tells what the batches' makers met since the last time.
    pub fn tell(&mut self, batches: &TrainingBatches, progress: &mut dyn Progress) -> Result<()> {
        let all = batches.unreadable();
        for note in all.iter().skip(self.notes_told) {
            progress.on_note(&format!("{note}; it is left out, another takes its place"))?;
        }
        self.notes_told = all.len();
        if let Some(trouble) = batches.cache_trouble().filter(|_| !self.is_trouble_told) {
            progress.on_note(trouble)?;
            self.is_trouble_told = true;
        }
        Ok(())
    }

    fn epoch_seconds(&self) -> f64 {
        (self.elapsed() - self.epoch_began).max(f64::MIN_POSITIVE)
    }

    fn waited(&self) -> f64 {
        self.waited_before + self.loader.waited().as_secs_f64()
    }
}

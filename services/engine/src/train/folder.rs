//! A run as a folder: arguments, results, weights; and going on from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::TrainOptions;
use super::report::{EpochReport, Progress, Reason, Started, StepReport, StopHandle};
use super::results::results;
use super::trainer::{Ending, Trainer};
use crate::checkpoint::{Checkpoint, files};
use crate::data::yolo::Strictness;
use crate::data::{self, Dataset};
use crate::import;
use crate::plots;
use crate::validate::{self, ValidateOptions, Validation};
use crate::{Error, Result};

/// What a run in a folder came to.
#[derive(Debug, Clone, PartialEq)]
pub struct FolderRun {
    pub ending: Ending,
    pub history: Vec<EpochReport>,
    /// The checkpoint to go on from.
    pub last: PathBuf,
    /// The model of the best epoch, once there is one.
    pub best: Option<PathBuf>,
    /// What the best model reaches on the validation split; not for a run that was stopped.
    pub validation: Option<Validation>,
}

/// Trains on the data set that `options` name and writes `args.yaml`, `results.csv`, `weights/last.fovea` and
/// `weights/best.fovea` to `folder`, which must not hold a run yet.
pub fn run_folder(
    options: TrainOptions,
    folder: &Path,
    stop: &StopHandle,
    progress: &mut dyn Progress,
) -> Result<FolderRun> {
    options.check()?;
    let paths = Paths::new(folder);
    if paths.last.exists() || files::spare(&paths.last).exists() {
        return Err(Error::Argument {
            argument: "folder",
            rule: format!(
                "{} holds a run already: resume it or choose another",
                folder.display()
            ),
        });
    }
    let dataset = open_data(&options, progress)?;
    let pretrained = options
        .pretrained
        .as_deref()
        .map(import::read)
        .transpose()?;
    let trainer = Trainer::new(options, dataset, pretrained.as_ref())?;
    let yaml = serde_yaml::to_string(trainer.options()).map_err(|error| Error::Argument {
        argument: "options",
        rule: error.to_string(),
    })?;
    files::write_atomically(&paths.arguments, yaml.as_bytes())?;
    let drawn = trainer
        .first_batch()
        .and_then(|first| plots::write_start(folder, &trainer.dataset(), &first));
    tell_undrawn(drawn, progress)?;
    run(trainer, paths, stop, progress)
}

/// Goes on with the run in `folder`; `data` says where the data set is now, if it moved, and `threads` how many
/// to use, 0 for all.
pub fn resume_folder(
    folder: &Path,
    data: Option<&Path>,
    threads: usize,
    stop: &StopHandle,
    progress: &mut dyn Progress,
) -> Result<FolderRun> {
    let paths = Paths::new(folder);
    let (mut checkpoint, note) = files::read_with_spare(&paths.last)?;
    if let Some(note) = note {
        progress.on_note(&note)?;
    }
    if let Some(data) = data {
        checkpoint.header.options.data = data.to_owned();
    }
    let dataset = open_data(&checkpoint.header.options, progress)?;
    let place = paths.last.display().to_string();
    let trainer = Trainer::resume(checkpoint, &place, dataset, threads)?;
    run(trainer, paths, stop, progress)
}

/// A run goes on without its plots.
fn tell_undrawn(drawn: Result<()>, progress: &mut dyn Progress) -> Result<()> {
    match drawn {
        Ok(()) => Ok(()),
        Err(error) => progress.on_note(&format!("not drawn: {error}")),
    }
}

struct Paths {
    folder: PathBuf,
    arguments: PathBuf,
    results: PathBuf,
    last: PathBuf,
    best: PathBuf,
    weights: PathBuf,
}

impl Paths {
    fn new(folder: &Path) -> Self {
        let weights = folder.join("weights");
        Self {
            folder: folder.to_owned(),
            arguments: folder.join("args.yaml"),
            results: folder.join("results.csv"),
            last: weights.join("last.fovea"),
            best: weights.join("best.fovea"),
            weights,
        }
    }
}

fn open_data(options: &TrainOptions, progress: &mut dyn Progress) -> Result<Arc<Dataset>> {
    let strictness = if options.strict {
        Strictness::Refuse
    } else {
        Strictness::LeaveOut
    };
    let (dataset, report) = data::open(&options.data, strictness)?;
    for note in &report.notes {
        progress.on_note(note)?;
    }
    for (place, rule) in &report.left_out {
        progress.on_note(&format!("left out: {place}: {rule}"))?;
    }
    for (place, rule) in &report.rows_left_out {
        progress.on_note(&format!("row left out: {place}: {rule}"))?;
    }
    if report.duplicates + report.empty_boxes > 0 {
        progress.on_note(&format!(
            "{} label rows said twice and {} boxes without area are ignored",
            report.duplicates, report.empty_boxes
        ))?;
    }
    Ok(Arc::new(dataset))
}

fn run(
    mut trainer: Trainer,
    paths: Paths,
    stop: &StopHandle,
    progress: &mut dyn Progress,
) -> Result<FolderRun> {
    let mut writer = Writer {
        history: trainer.history().to_vec(),
        save_period: trainer.options().save_period,
        paths: &paths,
        inner: progress,
    };
    let ending = trainer.run(stop, &mut writer)?;
    let has_best = paths.best.exists();
    let validation = match ending {
        Ending::Completed | Ending::OutOfPatience if has_best => {
            let options = trainer.options();
            let validation = ValidateOptions {
                imgsz: options.imgsz,
                iou: options.iou as f32,
                max_det: options.max_det,
                threads: options.threads,
                strict: options.strict,
                ..ValidateOptions::default()
            };
            let best = files::read(&paths.best)?;
            let validation =
                validate::validate(&best, trainer.dataset(), validation, &mut |_, _| Ok(()))?;
            let classes = &best.header.classes;
            let task = best.header.model.task;
            let drawn = plots::write_validation(&paths.folder, task, &validation, classes)
                .and_then(|()| plots::write_samples(&paths.folder, &best, &trainer.dataset()));
            tell_undrawn(drawn, progress)?;
            Some(validation)
        }
        _ => None,
    };
    let drawn = plots::write_results(&paths.folder, &results(trainer.history()));
    tell_undrawn(drawn, progress)?;
    Ok(FolderRun {
        ending,
        history: trainer.history().to_vec(),
        best: has_best.then(|| paths.best.clone()),
        last: paths.last,
        validation,
    })
}

/// Writes what a run tells, and passes it on.
struct Writer<'a> {
    history: Vec<EpochReport>,
    save_period: u32,
    paths: &'a Paths,
    inner: &'a mut dyn Progress,
}

impl Progress for Writer<'_> {
    fn on_start(&mut self, started: &Started) -> Result<()> {
        self.inner.on_start(started)
    }

    fn on_step(&mut self, step: &StepReport) -> Result<()> {
        self.inner.on_step(step)
    }

    fn on_epoch(&mut self, epoch: &EpochReport) -> Result<()> {
        self.history.push(*epoch);
        self.inner.on_epoch(epoch)
    }

    fn on_checkpoint(&mut self, reason: Reason, bytes: &[u8]) -> Result<()> {
        files::write_with_spare(&self.paths.last, bytes)?;
        if let Reason::Epoch { is_best } = reason {
            files::write_atomically(&self.paths.results, results(&self.history).as_bytes())?;
            if is_best {
                let place = self.paths.last.display().to_string();
                let model = Checkpoint::from_bytes(bytes, &place)?.into_model();
                files::write_atomically(&self.paths.best, &model.to_bytes())?;
            }
            let epoch = self.history.len() as u32;
            if self.save_period > 0 && epoch.is_multiple_of(self.save_period) {
                let path = self.paths.weights.join(format!("epoch{epoch}.fovea"));
                fs::write(&path, bytes).map_err(Error::io(path.display().to_string()))?;
            }
        }
        self.inner.on_checkpoint(reason, bytes)
    }

    fn on_note(&mut self, note: &str) -> Result<()> {
        self.inner.on_note(note)
    }
}

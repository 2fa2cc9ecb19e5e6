//! A run as a folder: arguments, results, weights; and going on from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::TrainOptions;
use super::report::{EpochReport, Progress, Reason, Started, StepReport, StopHandle};
use super::trainer::{Ending, Trainer};
use crate::checkpoint::{Checkpoint, files};
use crate::data::yolo::{self, Strictness};
use crate::import;
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
    let yaml = serde_yaml::to_string(&options).map_err(|error| Error::Argument {
        argument: "options",
        rule: error.to_string(),
    })?;
    let trainer = Trainer::new(options, dataset, pretrained.as_ref())?;
    files::write_atomically(&paths.arguments, yaml.as_bytes())?;
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

struct Paths {
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
            arguments: folder.join("args.yaml"),
            results: folder.join("results.csv"),
            last: weights.join("last.fovea"),
            best: weights.join("best.fovea"),
            weights,
        }
    }
}

fn open_data(
    options: &TrainOptions,
    progress: &mut dyn Progress,
) -> Result<Arc<crate::data::Dataset>> {
    let strictness = if options.strict {
        Strictness::Refuse
    } else {
        Strictness::LeaveOut
    };
    let (dataset, report) = yolo::open(&options.data, strictness)?;
    for note in &report.notes {
        progress.on_note(note)?;
    }
    for (place, rule) in &report.left_out {
        progress.on_note(&format!("left out: {place}: {rule}"))?;
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
            Some(validation)
        }
        _ => None,
    };
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

const COLUMNS: &str = "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,\
    metrics/precision(B),metrics/recall(B),metrics/mAP50(B),metrics/mAP50-95(B),\
    val/box_loss,val/cls_loss,val/dfl_loss,lr/pg0,lr/pg1,lr/pg2";

/// Returns the content of `results.csv`.
pub fn results(history: &[EpochReport]) -> String {
    let mut text = format!("{COLUMNS}\n");
    for report in history {
        let scores = report.validation.unwrap_or_default();
        let mut values = vec![report.seconds];
        values.extend(report.losses);
        values.extend([
            scores.precision,
            scores.recall,
            scores.map50,
            scores.map50_95,
        ]);
        values.extend(scores.losses);
        values.extend(report.learning_rates);
        let values: Vec<String> = values.into_iter().map(six_digits).collect();
        text.push_str(&format!("{},{}\n", report.epoch, values.join(",")));
    }
    text
}

/// Writes a number with six significant digits, as C's `%.6g` does.
fn six_digits(value: f64) -> String {
    const DIGITS: i32 = 6;
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let trim = |text: &str| -> String {
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.to_owned(),
        }
    };
    let scientific = format!("{value:.5e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        let decimals = (DIGITS - 1 - exponent) as usize;
        trim(&format!("{value:.decimals$}"))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_as_c_prints_them() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (0.001429, "0.001429"),
            (0.000123456789, "0.000123457"),
            (0.0000123456789, "1.23457e-05"),
            (123456.7, "123457"),
            (1234567.0, "1.23457e+06"),
            (999999.96, "1e+06"),
            (-2.5, "-2.5"),
            (100.0, "100"),
        ] {
            assert_eq!(six_digits(value), text);
        }
    }

    #[test]
    fn results_have_one_row_for_each_epoch() {
        let history = [EpochReport {
            epoch: 1,
            seconds: 12.5,
            losses: [1.0, 2.0, 3.0],
            ..EpochReport::default()
        }];
        let text = results(&history);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "1,12.5,1,2,3,0,0,0,0,0,0,0,0,0,0");
        assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
    }
}

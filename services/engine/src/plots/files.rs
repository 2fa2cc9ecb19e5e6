//! The plots that a run leaves in its folder, under the names that people know.

use std::path::Path;

use super::batch::{Boxed, PICTURES_MAX, Shown, batch};
use super::confusion::confusion;
use super::curves::{Measure, confidence_curve, precision_recall};
use super::labels::labels;
use super::results::results;
use crate::Result;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::files::write_atomically;
use crate::data::{Batch, Dataset, Picture, decode};
use crate::metrics::{ConfusionMatrix, DetectReport};
use crate::models::Task;
use crate::parallel::Threads;
use crate::predict::{PredictOptions, Predictor};
use crate::validate::Validation;

/// Writes what a run starts from: `labels.svg`, and the first batch as the model sees it in `train_batch0.svg`.
pub fn write_start(folder: &Path, dataset: &Dataset, first: &Batch) -> Result<()> {
    let boxes: Vec<(u32, [f32; 4])> = dataset
        .train
        .iter()
        .flat_map(|sample| &sample.labels)
        .map(|label| (label.class, label.bounds))
        .collect();
    write(folder, "labels.svg", &labels(&boxes, &dataset.classes))?;
    let pictures: Vec<Picture> = first
        .images
        .chunks_exact(3 * first.width * first.height)
        .take(PICTURES_MAX)
        .map(|pixels| Picture::new(first.width, first.height, pixels.to_vec()))
        .collect();
    let shown: Vec<Shown<'_>> = pictures
        .iter()
        .enumerate()
        .map(|(index, picture)| Shown {
            name: name_in(dataset, first, index),
            picture,
            boxes: boxes_in(first, index),
        })
        .collect();
    write(
        folder,
        "train_batch0.svg",
        &batch(&shown, &dataset.classes)?,
    )
}

/// Returns the name of a picture of a batch, and its class where it has one as a whole.
fn name_in(dataset: &Dataset, batch: &Batch, index: usize) -> String {
    let sample = batch.samples.get(index);
    let sample = sample.and_then(|&sample| dataset.train.get(sample as usize));
    let name = sample.map_or("", |sample| sample.name.as_str());
    let class = batch.targets.labels.get(index);
    match class.and_then(|&class| dataset.classes.get(class as usize)) {
        Some(class) => format!("{class}: {name}"),
        None => name.to_owned(),
    }
}

fn boxes_in(batch: &Batch, index: usize) -> Vec<Boxed> {
    let targets = &batch.targets;
    let rows = targets.image.iter().zip(&targets.class).zip(&targets.boxes);
    rows.filter(|((image, _), _)| **image as usize == index)
        .map(|((_, &class), &bounds)| Boxed {
            class,
            score: None,
            bounds: corners(bounds, [batch.width, batch.height]),
        })
        .collect()
}

/// Returns the corners in pixels of a box given by centre and size as fractions.
fn corners([x, y, width, height]: [f32; 4], [across, down]: [usize; 2]) -> [f32; 4] {
    let (across, down) = (across as f32, down as f32);
    [
        (x - width / 2.0) * across,
        (y - height / 2.0) * down,
        (x + width / 2.0) * across,
        (y + height / 2.0) * down,
    ]
}

/// Writes the curves and the confusion matrices of a validation.
pub fn write_validation(
    folder: &Path,
    task: Task,
    validation: &Validation,
    classes: &[String],
) -> Result<()> {
    if let Some(report) = &validation.classification {
        return write_confusion(folder, &report.confusion, classes);
    }
    write_curves(folder, "Box", &validation.report, classes)?;
    if let Some(second) = &validation.second {
        let kind = if task == Task::Pose { "Pose" } else { "Mask" };
        write_curves(folder, kind, second, classes)?;
    }
    write_confusion(folder, &validation.report.confusion, classes)
}

fn write_curves(
    folder: &Path,
    kind: &str,
    report: &DetectReport,
    classes: &[String],
) -> Result<()> {
    for (letter, measure) in [
        ("P", Measure::Precision),
        ("R", Measure::Recall),
        ("F1", Measure::F1),
    ] {
        let text = confidence_curve(measure, &report.curves, classes);
        write(folder, &format!("{kind}{letter}_curve.svg"), &text)?;
    }
    let text = precision_recall(report, classes);
    write(folder, &format!("{kind}PR_curve.svg"), &text)
}

fn write_confusion(folder: &Path, matrix: &ConfusionMatrix, classes: &[String]) -> Result<()> {
    let text = confusion(matrix, classes, false);
    write(folder, "confusion_matrix.svg", &text)?;
    let text = confusion(matrix, classes, true);
    write(folder, "confusion_matrix_normalized.svg", &text)
}

/// Writes the first pictures of the validation split with their labels, `val_batch0_labels.svg`, and with what a
/// model finds in them, `val_batch0_pred.svg`. A picture that can't be read is passed by.
pub fn write_samples(folder: &Path, model: &Checkpoint, dataset: &Dataset) -> Result<()> {
    if model.header.model.task != Task::Detect {
        return Ok(());
    }
    let samples = dataset.val.iter().take(PICTURES_MAX).filter_map(|sample| {
        let bytes = sample.source.read().ok()?;
        let picture = decode::decode(&sample.name, &bytes).ok()?;
        Some((sample, picture))
    });
    let samples: Vec<_> = samples.collect();
    let show = |boxes_of: &dyn Fn(usize) -> Vec<Boxed>| -> Result<String> {
        let shown = samples
            .iter()
            .enumerate()
            .map(|(index, (sample, picture))| Shown {
                name: sample.name.clone(),
                picture,
                boxes: boxes_of(index),
            });
        batch(&shown.collect::<Vec<_>>(), &dataset.classes)
    };
    let labelled = |index: usize| {
        let (sample, picture) = &samples[index];
        let labels = sample.labels.iter().map(|label| Boxed {
            class: label.class,
            score: None,
            bounds: corners(label.bounds, [picture.width(), picture.height()]),
        });
        labels.collect()
    };
    write(folder, "val_batch0_labels.svg", &show(&labelled)?)?;
    let threads = Threads::available()?;
    let mut predictor = Predictor::new(model, model.header.options.imgsz, &threads)?;
    let pictures: Vec<&Picture> = samples.iter().map(|(_, picture)| picture).collect();
    let found = predictor.predict(&pictures, &PredictOptions::default())?;
    let found = |index: usize| {
        let found = found[index].iter().map(|object| Boxed {
            class: object.class,
            score: Some(object.score),
            bounds: object.bounds,
        });
        found.collect()
    };
    write(folder, "val_batch0_pred.svg", &show(&found)?)
}

/// Writes `results.svg` from the text of `results.csv`.
pub fn write_results(folder: &Path, csv: &str) -> Result<()> {
    write(folder, "results.svg", &results(csv))
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    write_atomically(&folder.join(name), text.as_bytes())
}

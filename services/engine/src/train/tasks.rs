//! Every task on real data: a small model learns a few pictures, and does so to the bit.

use std::sync::Arc;

use super::*;
use crate::data::yolo::Strictness;
use crate::data::{self, Dataset, testing};
use crate::models::ModelSpec;
use crate::validate::{ValidateOptions, validate};

/// Model, archive of its data, and the loss item that falls from the first step on: those of boxes weigh little
/// before any box is near its object, and rise at first.
const RUNS: [(&str, &str, usize); 6] = [
    ("yolo11n", "bccd-yolo.zip", 1),
    ("yolo11n-seg", "nuts-yolo-seg.zip", 1),
    ("yolo11n-pose", "mouse-yolo-pose.zip", 1),
    ("yolo11n-obb", "nuts-yolo-obb.zip", 1),
    ("yolo11n-cls", "clothing-cls.zip", 0),
    ("yolo26n", "bccd-yolo.zip", 1),
];

/// How long each learns, and how much of its first epoch's item may be left then.
const EPOCHS: u32 = 8;
const LEFT_MAX: f64 = 0.85;

/// Returns every so many-th picture of an archive's training split, which then is the validation split too.
fn few(archive: &str, step: usize, count: usize) -> Option<Arc<Dataset>> {
    let folder = testing::unpacked(archive)?;
    let (mut dataset, _) = data::open(folder.path(), Strictness::Refuse).unwrap();
    dataset.train = dataset
        .train
        .into_iter()
        .step_by(step)
        .take(count)
        .collect();
    for sample in &mut dataset.train {
        // The folder is gone when this returns.
        sample.source = data::Source::Bytes(sample.source.read().unwrap());
    }
    dataset.val = dataset.train.clone();
    dataset.test.clear();
    Some(Arc::new(dataset))
}

/// Keeps what a run tells.
#[derive(Default)]
struct Told {
    epochs: Vec<EpochReport>,
    last: Vec<u8>,
}

impl Progress for Told {
    fn on_epoch(&mut self, epoch: &EpochReport) -> crate::Result<()> {
        self.epochs.push(*epoch);
        Ok(())
    }

    fn on_checkpoint(&mut self, _: Reason, bytes: &[u8]) -> crate::Result<()> {
        self.last = bytes.to_vec();
        Ok(())
    }
}

#[test]
fn every_task_learns_a_few_pictures_and_reports_its_own_columns() {
    for (model, archive, item) in RUNS {
        let Some(dataset) = few(archive, 1 + usize::from(archive.starts_with("clo")) * 39, 8)
        else {
            return;
        };
        let mut options = TrainOptions {
            model: model.into(),
            epochs: EPOCHS,
            batch: 4,
            nbs: 4,
            imgsz: 96,
            optimizer: "AdamW".into(),
            lr0: 0.002,
            warmup_epochs: 0.0,
            close_mosaic: EPOCHS,
            ..TrainOptions::default()
        };
        options.augmentation = crate::data::Augmentation::NONE;
        let mut trainer = Trainer::new(options, dataset, None).unwrap();
        let columns = Columns::of(trainer.spec());
        let mut told = Told::default();
        let ending = trainer.run(&StopHandle::default(), &mut told).unwrap();
        assert_eq!(ending, Ending::Completed);
        let (first, last) = (&told.epochs[0], told.epochs.last().unwrap());
        println!("{model}: {:.3?} to {:.3?}", first.losses, last.losses);
        assert!(
            last.losses[item] < LEFT_MAX * first.losses[item],
            "{model}: {:?} to {:?}",
            first.losses,
            last.losses
        );
        for report in &told.epochs {
            assert_eq!(report.columns, columns);
            assert_eq!(report.losses.len(), columns.loss_names().len(), "{model}");
            assert!(report.losses.iter().all(|loss| loss.is_finite()));
            let scores = report.validation.unwrap();
            assert_eq!(scores.losses.len(), columns.loss_names().len());
            let named = report.named();
            let names = 2 * columns.loss_names().len() + columns.metric_names().len();
            assert_eq!(named.len(), names, "{model}: {named:?}");
        }
        let table = results(&told.epochs);
        assert_eq!(table.lines().count(), EPOCHS as usize + 1);
    }
}

#[test]
fn runs_of_every_task_resume_to_the_bit() {
    for (model, archive, _) in &RUNS[1..] {
        let Some(dataset) = few(archive, 1 + usize::from(archive.starts_with("clo")) * 39, 5)
        else {
            return;
        };
        let options = TrainOptions {
            model: (*model).into(),
            epochs: 2,
            batch: 2,
            imgsz: 64,
            val: false,
            ..TrainOptions::default()
        };
        let run = |threads, stop_after: Option<u64>| {
            let mut told = Told::default();
            let options = TrainOptions {
                threads,
                ..options.clone()
            };
            let mut trainer = Trainer::new(options, Arc::clone(&dataset), None).unwrap();
            if let Some(after) = stop_after {
                let stop = StopHandle::default();
                let mut stopping = StopAfter {
                    after,
                    stop: stop.clone(),
                };
                assert_eq!(trainer.run(&stop, &mut stopping).unwrap(), Ending::Stopped);
                let checkpoint = trainer.checkpoint();
                trainer = Trainer::resume(checkpoint, "stop", Arc::clone(&dataset), 2).unwrap();
            }
            trainer.run(&StopHandle::default(), &mut told).unwrap();
            trainer.checkpoint()
        };
        let (whole, interrupted) = (run(1, None), run(3, Some(2)));
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert!(
            bits(&whole.state.parameters) == bits(&interrupted.state.parameters),
            "{model}"
        );
        assert!(
            bits(&whole.state.buffers) == bits(&interrupted.state.buffers),
            "{model}"
        );
    }
}

/// Model, archive, side, batch and epochs of a run that learns its own pictures by heart.
const BY_HEART: [(&str, &str, usize, usize, u32); 4] = [
    ("yolo11n-seg", "nuts-yolo-seg.zip", 320, 4, 120),
    ("yolo11n-pose", "mouse-yolo-pose.zip", 192, 16, 50),
    ("yolo11n-obb", "nuts-yolo-obb.zip", 320, 4, 120),
    ("yolo11n-cls", "clothing-cls.zip", 128, 16, 40),
];
/// What it must reach on them: mean average precision at an overlap of 0.5, or accuracy.
const BY_HEART_MIN: f64 = 0.95;

/// `FOVEA_LEARN_MODEL` chooses one of the models.
#[test]
#[ignore = "takes tens of minutes"]
fn small_data_sets_of_every_task_are_learnt_by_heart() {
    #[expect(
        clippy::disallowed_methods,
        reason = "a person chooses what to look at"
    )]
    let chosen = std::env::var("FOVEA_LEARN_MODEL").ok();
    for (model, archive, imgsz, batch, epochs) in BY_HEART {
        if chosen.as_ref().is_some_and(|chosen| chosen != model) {
            continue;
        }
        let Some(dataset) = few(archive, 1, usize::MAX) else {
            return;
        };
        let mut options = TrainOptions {
            model: model.into(),
            epochs,
            batch,
            nbs: batch,
            imgsz,
            optimizer: "AdamW".into(),
            lr0: 0.002,
            val: false,
            ..TrainOptions::default()
        };
        options.augmentation = crate::data::Augmentation::NONE;
        if model.ends_with("-cls") {
            // Validation shows the middle square, which training meets among parts of many sizes and shapes only.
            options.augmentation.scale = 0.4;
        }
        let mut trainer = Trainer::new(options, Arc::clone(&dataset), None).unwrap();
        let mut told = Told::default();
        trainer.run(&StopHandle::default(), &mut told).unwrap();
        let last = told.epochs.last().unwrap();
        println!(
            "{model}: losses {:.3?} in {:.0} s",
            last.losses, last.seconds
        );
        let validation = ValidateOptions {
            imgsz,
            ..ValidateOptions::default()
        };
        let checkpoint = trainer.checkpoint();
        let seen = validate(&checkpoint, dataset, validation, &mut |_, _| Ok(())).unwrap();
        let scores = seen.scores();
        println!("{model}: {scores:.4?}");
        let reached = match scores.accuracy {
            Some([top1, _]) => top1,
            None => scores.second.map_or(scores.map50, |[_, _, map50, _]| map50),
        };
        assert!(reached >= BY_HEART_MIN, "{model} reached {reached}");
    }
}

struct StopAfter {
    after: u64,
    stop: StopHandle,
}

impl Progress for StopAfter {
    fn on_step(&mut self, step: &StepReport) -> crate::Result<()> {
        if step.iteration == self.after {
            self.stop.stop();
        }
        Ok(())
    }
}

#[test]
fn keypoints_of_the_data_set_shape_the_model() {
    let Some(dataset) = few("mouse-yolo-pose.zip", 1, 2) else {
        return;
    };
    let options = TrainOptions {
        model: "yolo26n-pose".into(),
        imgsz: 64,
        batch: 2,
        epochs: 1,
        ..TrainOptions::default()
    };
    let trainer = Trainer::new(options, Arc::clone(&dataset), None).unwrap();
    let shape = dataset.keypoints.as_ref().unwrap().shape;
    let wanted = ModelSpec::parse("yolo26n-pose", 1)
        .unwrap()
        .with_keypoints(shape)
        .unwrap();
    assert_eq!(*trainer.spec(), wanted);
    let detect = TrainOptions {
        model: "yolo11n-seg".into(),
        imgsz: 64,
        ..TrainOptions::default()
    };
    let error = Trainer::new(detect, dataset, None).unwrap_err().to_string();
    assert!(error.contains("boxes without an outline"), "{error}");
}

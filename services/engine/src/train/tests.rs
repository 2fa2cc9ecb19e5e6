//! Runs: what they learn, how they resume to the bit, and how they fail.

use std::sync::Arc;

use super::*;
use crate::checkpoint::Checkpoint;
use crate::data::Dataset;
use crate::data::cache::CacheKind;
use crate::data::sample::{self, SampleOptions};
use crate::{Error, Result};

fn dataset() -> Arc<Dataset> {
    let options = SampleOptions {
        images: 17,
        width: 96,
        height: 64,
        classes: 2,
        objects_max: 3,
        ..SampleOptions::default()
    };
    Arc::new(sample::dataset(&options).unwrap())
}

/// Twelve training pictures in batches of five, five and two; three epochs; every optimiser step takes several
/// batches once the warm-up is over.
fn options() -> TrainOptions {
    TrainOptions {
        epochs: 3,
        batch: 5,
        imgsz: 64,
        seed: 4,
        warmup_epochs: 1.0,
        close_mosaic: 1,
        threads: 1,
        ..TrainOptions::default()
    }
}

/// Keeps checkpoints and stops a run after some batches.
#[derive(Default)]
struct Recorder {
    stop_after: Option<u64>,
    stop: StopHandle,
    last: Vec<u8>,
    reasons: Vec<Reason>,
    steps: Vec<StepReport>,
    epochs: Vec<EpochReport>,
    notes: Vec<String>,
}

impl Progress for Recorder {
    fn on_step(&mut self, step: &StepReport) -> Result<()> {
        self.steps.push(*step);
        if self.stop_after == Some(step.iteration) {
            self.stop.stop();
        }
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochReport) -> Result<()> {
        self.epochs.push(*epoch);
        Ok(())
    }

    fn on_checkpoint(&mut self, reason: Reason, bytes: &[u8]) -> Result<()> {
        self.reasons.push(reason);
        self.last = bytes.to_vec();
        Ok(())
    }

    fn on_note(&mut self, note: &str) -> Result<()> {
        self.notes.push(note.to_owned());
        Ok(())
    }
}

fn run(trainer: &mut Trainer, stop_after: Option<u64>) -> (Ending, Recorder) {
    let mut recorder = Recorder {
        stop_after,
        ..Recorder::default()
    };
    let stop = recorder.stop.clone();
    let ending = trainer.run(&stop, &mut recorder).unwrap();
    (ending, recorder)
}

/// Everything of a run but the time it took.
fn without_time(bytes: &[u8]) -> Checkpoint {
    let mut checkpoint = Checkpoint::from_bytes(bytes, "test").unwrap();
    checkpoint.header.position.elapsed_seconds = 0.0;
    checkpoint.header.options.threads = 0;
    for report in &mut checkpoint.header.history {
        report.forget_time();
    }
    checkpoint
}

#[test]
fn an_interrupted_run_ends_with_the_same_bytes_as_one_that_was_not() {
    let dataset = dataset();
    let mut whole = Trainer::new(options(), Arc::clone(&dataset), None).unwrap();
    let (ending, recorded) = run(&mut whole, None);
    assert_eq!(ending, Ending::Completed);
    let wanted = without_time(&recorded.last);
    assert_eq!(wanted.header.history.len(), 3);
    // In the first epoch's middle, at its last batch (validation comes next), mid-accumulation, and twice.
    for (stops, threads) in [(&[2][..], 2), (&[3], 1), (&[5], 3), (&[1, 4, 7], 2)] {
        let mut trainer = Trainer::new(options(), Arc::clone(&dataset), None).unwrap();
        let mut last = Vec::new();
        for &after in stops {
            let (ending, recorded) = run(&mut trainer, Some(after));
            assert_eq!(ending, Ending::Stopped);
            assert_eq!(recorded.reasons.last(), Some(&Reason::Stop));
            last = recorded.last;
            let checkpoint = Checkpoint::from_bytes(&last, "stop").unwrap();
            assert_eq!(checkpoint.header.position.iteration, after);
            trainer = Trainer::resume(checkpoint, "stop", Arc::clone(&dataset), threads).unwrap();
        }
        assert!(!last.is_empty());
        let (ending, recorded) = run(&mut trainer, None);
        assert_eq!(ending, Ending::Completed);
        let seen = without_time(&recorded.last);
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(
            bits(&seen.state.parameters),
            bits(&wanted.state.parameters),
            "stopped at {stops:?}"
        );
        assert_eq!(bits(&seen.state.buffers), bits(&wanted.state.buffers));
        assert_eq!(bits(&seen.gradient), bits(&wanted.gradient));
        assert_eq!(seen, wanted, "stopped at {stops:?}");
        assert_eq!(
            seen.into_model().to_bytes(),
            wanted.clone().into_model().to_bytes()
        );
    }
}

#[test]
fn a_run_tells_each_step_and_epoch_and_gives_a_checkpoint_after_each_epoch() {
    let mut trainer = Trainer::new(options(), dataset(), None).unwrap();
    let (_, recorded) = run(&mut trainer, None);
    let images: Vec<usize> = recorded.steps.iter().map(|step| step.images).collect();
    assert_eq!(images, [5, 5, 2, 5, 5, 2, 5, 5, 2]);
    assert!(
        recorded
            .steps
            .iter()
            .all(|step| step.losses.iter().all(|item| item.is_finite()))
    );
    assert_eq!(recorded.steps[8].mean_losses, recorded.epochs[2].losses);
    assert_eq!(recorded.reasons.len(), 3);
    assert!(matches!(
        recorded.reasons[0],
        Reason::Epoch { is_best: true }
    ));
    assert!(
        recorded
            .epochs
            .iter()
            .all(|epoch| epoch.validation.is_some())
    );
    assert!(recorded.notes.is_empty(), "{:?}", recorded.notes);
}

#[test]
fn a_checkpoint_may_be_asked_for_at_any_step() {
    let stop = StopHandle::default();
    let mut recorder = Recorder::default();
    stop.request_checkpoint();
    let mut trainer = Trainer::new(options(), dataset(), None).unwrap();
    trainer.run(&stop, &mut recorder).unwrap();
    assert_eq!(recorder.reasons[0], Reason::Request);
    assert_eq!(recorder.reasons.len(), 4);
}

#[test]
fn a_run_without_patience_ends_early_and_stays_ended() {
    let patient = TrainOptions {
        epochs: 20,
        patience: 2,
        ..options()
    };
    let data = dataset();
    // The first epoch is said to have been better than any will be.
    let mut checkpoint = Trainer::new(patient, Arc::clone(&data), None)
        .unwrap()
        .checkpoint();
    checkpoint.header.best = Some((0.99, 0));
    let mut trainer = Trainer::resume(checkpoint, "start", Arc::clone(&data), 1).unwrap();
    let (ending, recorded) = run(&mut trainer, None);
    assert_eq!((ending, recorded.epochs.len()), (Ending::OutOfPatience, 3));
    let checkpoint = Checkpoint::from_bytes(&recorded.last, "last").unwrap();
    let mut again = Trainer::resume(checkpoint, "last", data, 1).unwrap();
    let (ending, recorded) = run(&mut again, None);
    assert_eq!((ending, recorded.steps.len()), (Ending::OutOfPatience, 0));
}

#[test]
fn a_loss_that_is_never_finite_fails_the_run_after_a_limit() {
    let long = TrainOptions {
        epochs: 20,
        ..options()
    };
    let mut checkpoint = Trainer::new(long, dataset(), None).unwrap().checkpoint();
    checkpoint.state.parameters[0] = f32::NAN;
    let mut trainer = Trainer::resume(checkpoint, "broken", dataset(), 1).unwrap();
    let mut recorder = Recorder::default();
    let error = trainer
        .run(&StopHandle::default(), &mut recorder)
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::NotFinite {
                limit: NOT_FINITE_MAX,
                first,
                ..
            } if first == "the weights model.0.conv.weight"
        ),
        "{error}"
    );
    assert_eq!(recorder.notes.len() as u32, NOT_FINITE_MAX - 1);
    assert!(recorder.notes[0].contains("epoch 1 batch 1: the loss is not finite"));
}

#[test]
fn a_folder_holds_arguments_results_and_weights_and_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let drawn = SampleOptions {
        images: 10,
        width: 64,
        height: 64,
        ..SampleOptions::default()
    };
    sample::write_folder(&drawn, &data, |_| ()).unwrap();
    let target = folder.path().join("run");
    let options = TrainOptions {
        data,
        epochs: 2,
        ..options()
    };
    let mut recorder = Recorder {
        stop_after: Some(1),
        ..Recorder::default()
    };
    let stop = recorder.stop.clone();
    let stopped = run_folder(options.clone(), &target, &stop, &mut recorder).unwrap();
    assert_eq!((stopped.ending, stopped.best), (Ending::Stopped, None));
    let refused = run_folder(options, &target, &StopHandle::default(), &mut ()).unwrap_err();
    assert!(refused.to_string().contains("holds a run already"));
    // A crash while writing must not cost the run.
    std::fs::copy(
        &stopped.last,
        crate::checkpoint::files::spare(&stopped.last),
    )
    .unwrap();
    std::fs::write(&stopped.last, b"{").unwrap();
    let mut recorder = Recorder::default();
    let done = resume_folder(&target, None, 2, &StopHandle::default(), &mut recorder).unwrap();
    assert!(recorder.notes[0].contains("going on from the one before"));
    assert_eq!(done.ending, Ending::Completed);
    assert_eq!(done.history.len(), 2);
    assert!(done.best.unwrap().ends_with("weights/best.fovea"));
    assert!(done.validation.unwrap().images > 0);
    let results = std::fs::read_to_string(target.join("results.csv")).unwrap();
    assert_eq!(results.lines().count(), 3);
    let arguments = std::fs::read_to_string(target.join("args.yaml")).unwrap();
    assert!(arguments.contains("close_mosaic: 1"));
}

#[test]
fn a_broken_layer_is_named_when_the_weights_are_finite() {
    let long = TrainOptions {
        epochs: 20,
        ..options()
    };
    let mut checkpoint = Trainer::new(long, dataset(), None).unwrap().checkpoint();
    let tables = crate::models::tables(&checkpoint.header.model);
    let name = "model.4.cv1.bn.weight";
    let tensor = tables.parameters.iter().find(|tensor| tensor.name == name);
    // Finite, and infinite once it is multiplied.
    checkpoint.state.parameters[tensor.unwrap().range()].fill(f32::MAX);
    let mut trainer = Trainer::resume(checkpoint, "broken", dataset(), 1).unwrap();
    let error = trainer
        .run(&StopHandle::default(), &mut ())
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("first not finite: the layer model.4.cv1"),
        "{error}"
    );
}

#[test]
fn everything_that_augments_together_trains_the_same_for_any_number_of_threads() {
    let augmented = |threads| {
        let mut options = TrainOptions {
            epochs: 2,
            close_mosaic: 1,
            multi_scale: 0.5,
            threads,
            ..options()
        };
        options.augmentation.mixup = 0.5;
        options.augmentation.cutmix = 0.5;
        options.augmentation.degrees = 10.0;
        let mut trainer = Trainer::new(options, dataset(), None).unwrap();
        let (ending, recorded) = run(&mut trainer, None);
        assert_eq!(ending, Ending::Completed);
        without_time(&recorded.last)
    };
    assert_eq!(augmented(1), augmented(3));
}

#[test]
fn a_time_limit_ends_the_run_and_sets_its_epochs() {
    let limited = |time| TrainOptions { time, ..options() };
    let mut trainer = Trainer::new(limited(1e-9), dataset(), None).unwrap();
    let (ending, recorded) = run(&mut trainer, None);
    assert_eq!((ending, recorded.epochs.len()), (Ending::Completed, 1));
    assert!(
        recorded.notes[0].contains("enough for 1 epochs, not 3"),
        "{:?}",
        recorded.notes
    );
    let mut trainer = Trainer::new(limited(1000.0), dataset(), None).unwrap();
    let (ending, _) = run(&mut trainer, Some(4));
    assert_eq!(ending, Ending::Stopped);
    assert!(
        trainer.options().epochs > 1000,
        "{}",
        trainer.options().epochs
    );
    let resumed = Trainer::resume(trainer.checkpoint(), "limited", dataset(), 1).unwrap();
    assert_eq!(resumed.options().epochs, trainer.options().epochs);
}

#[test]
fn frozen_layers_stay_and_the_others_learn() {
    let options = TrainOptions {
        epochs: 1,
        freeze: Freeze::parse("2, model.23.cv2").unwrap(),
        ..options()
    };
    let mut trainer = Trainer::new(options.clone(), dataset(), None).unwrap();
    let before = trainer.checkpoint().state;
    run(&mut trainer, None);
    let after = trainer.checkpoint().state;
    let tables = crate::models::tables(trainer.spec());
    let mut seen = [0, 0];
    for tensor in &tables.parameters {
        let range = tensor.range();
        let is_same = before.parameters[range.clone()] == after.parameters[range];
        let is_frozen = options.freeze.holds(&tensor.name);
        assert!(is_same || !is_frozen, "{} changed", tensor.name);
        seen[usize::from(is_same)] += 1;
    }
    assert!(seen[0] > 100 && seen[1] > 10, "{seen:?}");
    for tensor in tables
        .buffers
        .iter()
        .filter(|tensor| options.freeze.holds(&tensor.name))
    {
        let range = tensor.range();
        assert_eq!(before.buffers[range.clone()], after.buffers[range]);
    }
}

#[test]
fn one_picture_of_one_class_and_pictures_without_objects_can_be_trained_on() {
    let whole = dataset();
    let mut one = Dataset {
        classes: vec!["a".into()],
        train: whole.train[..1].to_vec(),
        val: whole.val[..1].to_vec(),
        ..Dataset::default()
    };
    for sample in one.train.iter_mut().chain(&mut one.val) {
        for label in &mut sample.labels {
            label.class = 0;
        }
    }
    let mut empty = one.clone();
    empty.train[0].labels.clear();
    empty.val[0].labels.clear();
    for dataset in [one, empty] {
        let options = TrainOptions {
            epochs: 2,
            ..options()
        };
        let mut trainer = Trainer::new(options, Arc::new(dataset), None).unwrap();
        let (ending, recorded) = run(&mut trainer, None);
        assert_eq!(ending, Ending::Completed);
        assert!(
            recorded
                .epochs
                .iter()
                .all(|epoch| epoch.validation.is_some())
        );
        assert!(recorded.notes.is_empty(), "{:?}", recorded.notes);
    }
}

#[test]
fn classes_beyond_the_data_set_are_refused_and_one_class_takes_them_all() {
    let mut few = (*dataset()).clone();
    few.classes.truncate(1);
    let few = Arc::new(few);
    let error = Trainer::new(options(), Arc::clone(&few), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("class 1 is not in the data set, which has 1"),
        "{error}"
    );
    let single = TrainOptions {
        single_cls: true,
        epochs: 1,
        ..options()
    };
    let mut trainer = Trainer::new(single, few, None).unwrap();
    let (_, recorded) = run(&mut trainer, None);
    let checkpoint = Checkpoint::from_bytes(&recorded.last, "last").unwrap();
    assert_eq!(checkpoint.header.classes, ["item"]);
}

#[test]
fn an_odd_side_is_rounded_and_broken_pictures_are_named_once() {
    let mut broken = (*dataset()).clone();
    broken.train[3].source = crate::data::Source::Bytes((*b"\xFF\xD8\xFFoops").into());
    let options = TrainOptions {
        imgsz: 50,
        epochs: 2,
        ..options()
    };
    let mut trainer = Trainer::new(options, Arc::new(broken), None).unwrap();
    let (_, recorded) = run(&mut trainer, None);
    assert_eq!(recorded.notes.len(), 2, "{:?}", recorded.notes);
    assert!(recorded.notes[0].contains("imgsz 50") && recorded.notes[0].contains("64 is taken"));
    assert!(recorded.notes[1].starts_with("images/train/000003.jpg: damaged JPEG"));
    assert!(
        recorded
            .epochs
            .iter()
            .all(|epoch| (0.0..=1.0).contains(&epoch.data_wait_share))
    );
}

#[test]
fn ten_thousand_objects_in_a_picture_are_trained_on_and_validated() {
    let mut crowded = (*dataset()).clone();
    for samples in [&mut crowded.train, &mut crowded.val] {
        samples.truncate(1);
        samples[0].labels = (0..10_000u32)
            .map(|index| {
                let place = |step: u32| (step as f32 + 0.5) / 100.0;
                let (x, y) = (place(index % 100), place(index / 100));
                crate::data::Label::boxed(index % 2, [x, y, 0.012, 0.012])
            })
            .collect();
    }
    let mut options = TrainOptions {
        epochs: 1,
        batch: 1,
        imgsz: 320,
        ..options()
    };
    options.augmentation = crate::data::Augmentation::NONE;
    let mut trainer = Trainer::new(options, Arc::new(crowded), None).unwrap();
    let (ending, recorded) = run(&mut trainer, None);
    assert_eq!(ending, Ending::Completed);
    assert!(
        recorded.steps[0].objects > 5000,
        "{}",
        recorded.steps[0].objects
    );
    let losses = &recorded.steps[0].losses;
    assert!(losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    assert!(recorded.epochs[0].validation.is_some());
}

#[test]
fn a_folder_for_each_class_is_trained_on_and_its_table_has_accuracies() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    for (split, count) in [("train", 4u8), ("val", 2)] {
        for (class, level) in [("dark", 20u8), ("light", 220)] {
            let place = data.join(split).join(class);
            std::fs::create_dir_all(&place).unwrap();
            for index in 0..count {
                let picture = image::RgbImage::from_pixel(48, 40, image::Rgb([level + index; 3]));
                picture.save(place.join(format!("{index}.png"))).unwrap();
            }
        }
    }
    let mut options = TrainOptions {
        model: "yolo11n-cls".into(),
        data,
        epochs: 2,
        batch: 4,
        imgsz: 40,
        ..options()
    };
    options.augmentation.auto_augment = crate::data::augment::AutoAugment::None;
    let target = folder.path().join("run");
    let mut recorder = Recorder::default();
    let done = run_folder(options, &target, &StopHandle::default(), &mut recorder).unwrap();
    assert_eq!(done.ending, Ending::Completed);
    assert!(
        recorder.notes[0].contains("imgsz 40"),
        "{:?}",
        recorder.notes
    );
    let accuracy = done.validation.unwrap().scores().accuracy.unwrap();
    assert_eq!(
        accuracy[1], 1.0,
        "two classes are both among the first five"
    );
    let results = std::fs::read_to_string(target.join("results.csv")).unwrap();
    let columns =
        "epoch,time,train/loss,metrics/accuracy_top1,metrics/accuracy_top5,val/loss,lr/pg0";
    assert!(results.starts_with(columns), "{results}");
    let arguments = std::fs::read_to_string(target.join("args.yaml")).unwrap();
    assert!(arguments.contains("imgsz: 64"), "{arguments}");
}

#[test]
fn where_decoded_pictures_are_kept_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let trained = |cache| {
        let options = TrainOptions {
            epochs: 1,
            cache,
            cache_folder: folder.path().to_owned(),
            ..options()
        };
        let mut trainer = Trainer::new(options, dataset(), None).unwrap();
        let (_, recorded) = run(&mut trainer, None);
        assert!(recorded.notes.is_empty(), "{:?}", recorded.notes);
        let mut checkpoint = without_time(&recorded.last);
        checkpoint.header.options.cache = CacheKind::None;
        checkpoint
    };
    let wanted = trained(CacheKind::None);
    assert_eq!(trained(CacheKind::Ram), wanted);
    assert_eq!(trained(CacheKind::Disk), wanted, "written");
    assert_eq!(trained(CacheKind::Disk), wanted, "read back");
    assert!(std::fs::read_dir(folder.path()).unwrap().count() > 1);
}

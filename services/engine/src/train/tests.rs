//! Runs: what they learn, how they resume to the bit, and how they fail.

use std::sync::Arc;

use super::*;
use crate::checkpoint::Checkpoint;
use crate::data::Dataset;
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
            error,
            Error::NotFinite {
                limit: NOT_FINITE_MAX,
                ..
            }
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

//! What workers and leases may and may not do to a run.

use super::super::run::tests::queued;
use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(seconds)
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn beginning(fence: i64) -> Begin {
    Begin {
        attempt_id: Id::new(at(fence)),
        fence,
        worker_id: Id::from_bytes([7; 16]),
        device: "two threads".into(),
        device_kind: "cpu/avx2/f32".into(),
    }
}

fn recording(fence: i64, step: i64, committed: u64) -> Record {
    Record {
        checkpoint_id: Id::new(at(step)),
        fence,
        epoch: 1,
        step,
        committed: seconds(committed),
        metrics: Metrics::from([("train/box_loss".into(), 0.5)]),
    }
}

fn finishing(fence: i64, outcome: Outcome) -> Finish {
    let weights = Artifact {
        kind: "weights".into(),
        file_name: "best.safetensors".into(),
        digest: "d".into(),
        size_bytes: 3,
    };
    Finish {
        model_id: Id::new(at(1)),
        fence,
        outcome,
        cause: String::new(),
        committed: seconds(20),
        metrics: Metrics::new(),
        artifacts: vec![weights],
        epochs_done: 3,
    }
}

fn checkpoint(fence: i64, step: i64) -> Checkpoint {
    Checkpoint {
        id: Id::new(at(step)),
        run_id: Id::new(at(0)),
        fence,
        epoch: 1,
        step,
        digest: "d".into(),
        size_bytes: 1,
        is_best: false,
        created_at: at(0),
    }
}

/// A run that trains under fence 1 since second 0, with ten seconds committed.
fn training() -> Run {
    let mut run = queued();
    leased(&mut run, Leased { fence: 1 }, at(0));
    begin(&mut run, beginning(1), None, None, at(0)).unwrap();
    report_phase(&mut run, 1, Move::Train).unwrap();
    record(&mut run, &recording(1, 100, 10), at(30)).unwrap();
    run
}

#[test]
fn a_life_without_trouble_ends_with_a_model() {
    let mut run = training();
    assert_eq!((run.state, run.committed), (State::Training, seconds(10)));
    report_phase(&mut run, 1, Move::Validate).unwrap();
    let facts = finish(&mut run, &finishing(1, Outcome::Completed), at(40)).unwrap();
    assert_eq!(facts[0], Fact::Completed);
    assert!(matches!(facts[1], Fact::ModelCreated(model) if Some(model) == run.model_id));
    assert_eq!((run.state, run.committed), (State::Completed, seconds(20)));
    assert_eq!(run.finished_at, Some(at(40)));
    assert!(run.is_bit_exact);
}

#[test]
fn beginning_twice_under_one_lease_is_one_attempt() {
    let mut run = queued();
    assert_eq!(
        begin(&mut run, beginning(1), None, None, at(0)).unwrap(),
        [Fact::Started]
    );
    let before = run.clone();
    assert_eq!(
        begin(&mut run, beginning(1), None, None, at(5)).unwrap(),
        []
    );
    assert_eq!(run, before);
    let stranger = Begin {
        worker_id: Id::from_bytes([8; 16]),
        ..beginning(1)
    };
    let refused = begin(&mut run, stranger, None, None, at(5));
    assert!(matches!(refused, Err(Error::StaleFence { .. })));
}

#[test]
fn a_smaller_fence_is_refused_everywhere_once_a_higher_one_is_known() {
    let mut run = training();
    leased(&mut run, Leased { fence: 2 }, at(60));
    assert_eq!(run.state, State::Provisioning);
    assert_eq!(run.attempt.as_ref().unwrap().outcome, Some(Outcome::Lost));
    let before = run.clone();
    let is_stale = |outcome: Result<Vec<Fact>, Error>| {
        matches!(
            outcome,
            Err(Error::StaleFence {
                given: 1,
                newest: 2
            })
        )
    };
    assert!(is_stale(begin(&mut run, beginning(1), None, None, at(60))));
    assert!(is_stale(
        report_phase(&mut run, 1, Move::Train).map(|()| Vec::new())
    ));
    assert!(is_stale(record(&mut run, &recording(1, 200, 11), at(60))));
    assert!(is_stale(finish(
        &mut run,
        &finishing(1, Outcome::Completed),
        at(60)
    )));
    assert_eq!(run, before);
    // Under the newer lease nothing was begun yet.
    let early = record(&mut run, &recording(2, 200, 11), at(60));
    assert!(matches!(early, Err(Error::AttemptNotBegun(2))));
    begin(&mut run, beginning(2), None, None, at(61)).unwrap();
    assert_eq!(run.state, State::Preparing);
    assert!(!run.takes_telemetry(1) && run.takes_telemetry(2));
}

#[test]
fn a_lost_worker_sends_the_run_back_with_what_was_committed() {
    let mut run = training();
    let lost = Requeued {
        fence: 1,
        cause: QueueCause::WorkerLost,
    };
    let facts = requeued(&mut run, lost, at(90)).unwrap();
    assert_eq!(facts, [Fact::Queued(QueueCause::WorkerLost)]);
    assert_eq!((run.state, run.committed), (State::Queued, seconds(10)));
    assert!(matches!(
        record(&mut run, &recording(1, 200, 11), at(91)),
        Err(Error::StaleFence { .. })
    ));
    assert!(!run.takes_telemetry(1));
    assert_eq!(requeued(&mut run, lost, at(92)).unwrap(), [], "told twice");
    let resume = checkpoint(1, 100);
    begin(
        &mut run,
        beginning(2),
        Some(&resume),
        Some("cpu/avx2/f32"),
        at(95),
    )
    .unwrap();
    let attempt = run.attempt.clone().unwrap();
    assert_eq!(
        (attempt.start_step, attempt.resumed_from),
        (Some(100), Some(resume.id))
    );
    record(&mut run, &recording(2, 150, 4), at(100)).unwrap();
    assert_eq!(run.committed, seconds(14), "the sum over attempts");
    assert!(run.is_bit_exact);
}

#[test]
fn another_device_kind_is_not_bit_exact_unless_it_starts_anew() {
    let resume = checkpoint(1, 100);
    let mut run = training();
    let other = Begin {
        device_kind: "cuda/h200/bf16".into(),
        ..beginning(2)
    };
    begin(
        &mut run,
        other.clone(),
        Some(&resume),
        Some("cpu/avx2/f32"),
        at(60),
    )
    .unwrap();
    assert!(!run.is_bit_exact);
    let back = checkpoint(2, 150);
    let kind = Some("cpu/avx2/f32");
    begin(&mut run, beginning(3), Some(&back), kind, at(61)).unwrap();
    assert!(!run.is_bit_exact, "once inexact stays inexact");
    begin(&mut run, beginning(4), None, None, at(62)).unwrap();
    assert!(run.is_bit_exact);
}

#[test]
fn committed_time_never_falls_nor_outruns_the_clock() {
    let mut run = training();
    let before = run.clone();
    let fell = record(&mut run, &recording(1, 200, 9), at(40));
    assert!(matches!(fell, Err(Error::CommittedFell { .. })));
    let too_long = record(&mut run, &recording(1, 200, 500), at(40));
    assert!(matches!(too_long, Err(Error::CommittedTooLong { .. })));
    let backwards = record(&mut run, &recording(1, 99, 12), at(40));
    assert!(matches!(backwards, Err(Error::Field { .. })));
    assert_eq!(run, before);
    record(&mut run, &recording(1, 200, 10), at(40)).unwrap();
    assert_eq!(run.committed, seconds(10), "no time, no charge");
}

#[test]
fn what_was_wished_decides_how_an_attempt_ends() {
    let pause = || {
        Some(Wish::Pause {
            cause: "balance".into(),
        })
    };
    let cases = [
        (Outcome::Paused, None, State::Paused),
        (Outcome::Paused, pause(), State::Paused),
        (Outcome::Paused, Some(Wish::Cancel), State::Cancelled),
        (Outcome::Cancelled, Some(Wish::Cancel), State::Cancelled),
        (Outcome::Cancelled, None, State::Cancelled),
        (Outcome::Drained, None, State::Queued),
        (Outcome::Drained, pause(), State::Paused),
        (Outcome::Drained, Some(Wish::Cancel), State::Cancelled),
        (Outcome::Failed, pause(), State::Failed),
        (Outcome::Completed, Some(Wish::Cancel), State::Completed),
    ];
    for (outcome, wish, state) in cases {
        let mut run = Run {
            wish: wish.clone(),
            ..training()
        };
        let facts = finish(&mut run, &finishing(1, outcome), at(40)).unwrap();
        assert_eq!(run.state, state, "{outcome} {wish:?}");
        assert!(!facts.is_empty() && run.wish.is_none());
        assert_eq!(run.finished_at.is_some(), state.is_final());
        if wish == pause() && state == State::Paused {
            assert_eq!(run.cause, "balance");
        }
        let again = finish(&mut run, &finishing(1, outcome), at(41));
        assert!(
            matches!(again, Err(Error::StaleFence { .. })),
            "ended attempts write nothing"
        );
    }
}

#[test]
fn a_wish_is_done_at_once_when_the_worker_is_lost() {
    let lost = Requeued {
        fence: 1,
        cause: QueueCause::WorkerLost,
    };
    let mut run = Run {
        wish: Some(Wish::Cancel),
        ..training()
    };
    assert_eq!(requeued(&mut run, lost, at(90)).unwrap(), [Fact::Cancelled]);
    let mut run = Run {
        wish: Some(Wish::Pause {
            cause: "cap".into(),
        }),
        ..training()
    };
    assert_eq!(requeued(&mut run, lost, at(90)).unwrap(), [Fact::Paused]);
    assert_eq!((run.state, run.cause.as_str()), (State::Paused, "cap"));
}

#[test]
fn a_lease_that_comes_after_the_pause_is_worthless() {
    let mut run = queued();
    pause(&mut run, "user".into()).unwrap();
    leased(&mut run, Leased { fence: 1 }, at(1));
    assert_eq!(run.state, State::Paused);
    let refused = begin(&mut run, beginning(1), None, None, at(2));
    assert!(matches!(refused, Err(Error::StaleFence { .. })));
}

#[test]
fn a_lease_is_taken_note_of_once_and_in_any_order() {
    let mut run = queued();
    begin(&mut run, beginning(2), None, None, at(0)).unwrap();
    let before = run.clone();
    leased(&mut run, Leased { fence: 2 }, at(1));
    leased(&mut run, Leased { fence: 1 }, at(1));
    let stale = Requeued {
        fence: 1,
        cause: QueueCause::WorkerLost,
    };
    assert_eq!(requeued(&mut run, stale, at(1)).unwrap(), []);
    assert_eq!(run, before);
}

#[test]
fn a_completed_attempt_brings_weights_under_plain_names() {
    let mut run = training();
    let mut bare = finishing(1, Outcome::Completed);
    bare.artifacts.clear();
    assert!(matches!(
        finish(&mut run, &bare, at(40)),
        Err(Error::WeightsMissing)
    ));
    for name in ["", "../x", "a/b", "a\\b", ".hidden", "a\nb"] {
        let mut finishing = finishing(1, Outcome::Completed);
        finishing.artifacts[0].file_name = name.into();
        let refused = finish(&mut run, &finishing, at(40)).unwrap_err();
        assert!(
            refused.to_string().starts_with("artifacts[0].file_name"),
            "{name:?} {refused}"
        );
    }
    let mut odd = finishing(1, Outcome::Completed);
    odd.artifacts[0].kind = "virus".into();
    assert!(
        finish(&mut run, &odd, at(40))
            .unwrap_err()
            .to_string()
            .contains("is one of weights")
    );
}

#[test]
fn only_the_scheduler_can_call_an_attempt_lost() {
    assert!(Outcome::of_worker("lost").is_err());
    assert!(Outcome::of_worker("").is_err());
    assert_eq!(Outcome::of_worker("drained").unwrap(), Outcome::Drained);
}

#[test]
fn phases_only_go_forward() {
    let mut run = training();
    report_phase(&mut run, 1, Move::Train).unwrap();
    let back = report_phase(&mut run, 1, Move::Prepare);
    assert!(matches!(back, Err(Error::WrongState { .. })));
    report_phase(&mut run, 1, Move::Validate).unwrap();
    assert!(report_phase(&mut run, 1, Move::Train).is_err());
}

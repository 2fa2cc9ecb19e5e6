//! What people and money do to a run: hold, stop, resume, run dry.

use kit::Amount;
use kit::time::Timestamp;

use super::attempt::{cancel, pause};
use super::run::{Fact, QueueCause, Run, Wish};
use super::state::{Move, State, next};
use crate::error::Error;

/// How somebody wants a run to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopKind {
    /// For good.
    Cancel,
    /// To be resumed.
    Pause,
}

/// What becomes of a run that was left `created` by an interrupted start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Hold its money again, which is harmless, and queue it.
    Finish,
    /// Give back what may be held and fail it.
    Abandon,
}

/// Queues a run whose money is held. One that is queued already stays as it is.
pub fn held(run: &mut Run) -> Result<Vec<Fact>, Error> {
    run.state = next(run.state, Move::Hold)?;
    run.cause.clear();
    Ok(vec![Fact::Queued(QueueCause::Start)])
}

/// Fails a run whose money could not be held.
pub fn refused(run: &mut Run, cause: String, now: Timestamp) -> Result<Vec<Fact>, Error> {
    run.state = next(run.state, Move::Fail)?;
    run.cause = cause;
    run.finished_at = Some(now);
    Ok(vec![Fact::Failed])
}

/// Decides about a run that stuck at `created`.
///
/// With an idempotency key its caller can come back for it, so it is finished. Without one the
/// caller saw an error and may have started another: training both would cost twice.
pub fn recover(run: &Run) -> Recovery {
    if run.idempotency_key.is_empty() {
        Recovery::Abandon
    } else {
        Recovery::Finish
    }
}

/// Stops a run: at once where no worker is at it, else by asking the worker.
pub fn stop(run: &mut Run, kind: StopKind, now: Timestamp) -> Result<Vec<Fact>, Error> {
    match (kind, run.state) {
        (StopKind::Cancel, State::Cancelled) | (StopKind::Pause, State::Paused) => Ok(Vec::new()),
        (StopKind::Cancel, state) if state.is_active() => {
            if run.wish == Some(Wish::Cancel) {
                return Ok(Vec::new());
            }
            run.wish = Some(Wish::Cancel);
            Ok(vec![Fact::CancelRequested])
        }
        (StopKind::Pause, state) if state.is_active() => ask_to_pause(run, "user"),
        (StopKind::Cancel, _) => cancel(run, now),
        (StopKind::Pause, _) => pause(run, "user".to_owned()),
    }
}

/// Pauses a run that used up its money, or asks its worker to.
pub fn exhausted(run: &mut Run, cause: &str) -> Result<Vec<Fact>, Error> {
    if run.state.is_active() {
        return ask_to_pause(run, cause);
    }
    if next(run.state, Move::Pause).is_err() {
        return Ok(Vec::new());
    }
    pause(run, cause.to_owned())
}

/// Refuses to resume a run that isn't paused, or that has reached its cap and gets no higher one.
pub fn check_resume(run: &Run, cost_cap: Amount) -> Result<(), Error> {
    next(run.state, Move::Resume)?;
    let cap = run.effective_cap();
    if !cost_cap.is_zero() && cost_cap < cap {
        let rule = format!("is 0 or not below the {cap} credits that it may cost already");
        return Err(Error::field("cost_cap_micros", rule));
    }
    if run.cause == "cap" && cost_cap <= cap {
        return Err(Error::CostCapReached(cap));
    }
    Ok(())
}

/// Puts a paused run back into the queue, at the price it had. A higher cap replaces the lower one.
pub fn resume(run: &mut Run, cost_cap: Amount) -> Result<Vec<Fact>, Error> {
    check_resume(run, cost_cap)?;
    run.state = next(run.state, Move::Resume)?;
    run.cause.clear();
    if !cost_cap.is_zero() {
        run.cost_cap = cost_cap;
    }
    Ok(vec![Fact::Queued(QueueCause::Resume)])
}

/// The first wish stands: ending outranks pausing, and a second pause has nothing to add.
fn ask_to_pause(run: &mut Run, cause: &str) -> Result<Vec<Fact>, Error> {
    if run.wish.is_some() {
        return Ok(Vec::new());
    }
    run.wish = Some(Wish::Pause {
        cause: cause.to_owned(),
    });
    Ok(vec![Fact::PauseRequested(cause.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::super::run::tests::queued;
    use super::*;

    fn in_state(state: State) -> Run {
        Run { state, ..queued() }
    }

    /// A cap that differs by this much from what the run may cost.
    fn run_cap(difference: i64) -> Amount {
        Amount::from_micros(queued().effective_cap().micros() + difference)
    }

    #[test]
    fn a_held_run_is_queued_once() {
        let mut run = in_state(State::Created);
        assert_eq!(held(&mut run).unwrap(), [Fact::Queued(QueueCause::Start)]);
        assert_eq!(run.state, State::Queued);
        assert!(matches!(held(&mut run), Err(Error::WrongState { .. })));
    }

    #[test]
    fn a_run_without_a_worker_stops_at_once_and_one_with_a_worker_is_asked() {
        for state in State::ALL {
            let mut run = in_state(state);
            let outcome = stop(&mut run, StopKind::Cancel, Timestamp::EPOCH);
            match state {
                State::Completed | State::Failed => {
                    assert!(matches!(outcome, Err(Error::RunEnded(_))), "{state}");
                }
                State::Cancelled => assert_eq!(outcome.unwrap(), []),
                state if state.is_active() => {
                    assert_eq!(outcome.unwrap(), [Fact::CancelRequested]);
                    assert_eq!(run.state, state);
                    assert_eq!(
                        stop(&mut run, StopKind::Cancel, Timestamp::EPOCH).unwrap(),
                        []
                    );
                }
                _ => {
                    assert_eq!(outcome.unwrap(), [Fact::Cancelled], "{state}");
                    assert_eq!(run.state, State::Cancelled);
                    assert!(run.finished_at.is_some());
                }
            }
        }
    }

    #[test]
    fn pausing_follows_the_same_rule() {
        for state in State::ALL {
            let mut run = in_state(state);
            let outcome = stop(&mut run, StopKind::Pause, Timestamp::EPOCH);
            match state {
                State::Created => assert!(matches!(outcome, Err(Error::WrongState { .. }))),
                State::Paused => assert_eq!(outcome.unwrap(), []),
                state if state.is_final() => assert!(matches!(outcome, Err(Error::RunEnded(_)))),
                state if state.is_active() => {
                    assert_eq!(outcome.unwrap(), [Fact::PauseRequested("user".into())]);
                }
                _ => {
                    assert_eq!(outcome.unwrap(), [Fact::Paused]);
                    assert_eq!((run.state, run.cause.as_str()), (State::Paused, "user"));
                }
            }
        }
    }

    #[test]
    fn ending_outranks_pausing() {
        let mut run = in_state(State::Training);
        stop(&mut run, StopKind::Cancel, Timestamp::EPOCH).unwrap();
        assert_eq!(
            stop(&mut run, StopKind::Pause, Timestamp::EPOCH).unwrap(),
            []
        );
        assert_eq!(run.wish, Some(Wish::Cancel));
        let mut run = in_state(State::Training);
        stop(&mut run, StopKind::Pause, Timestamp::EPOCH).unwrap();
        let facts = stop(&mut run, StopKind::Cancel, Timestamp::EPOCH).unwrap();
        assert_eq!(facts, [Fact::CancelRequested]);
    }

    #[test]
    fn an_empty_balance_pauses_and_a_reached_cap_stays_paused() {
        let mut run = in_state(State::Queued);
        assert_eq!(exhausted(&mut run, "balance").unwrap(), [Fact::Paused]);
        assert_eq!(
            resume(&mut run, Amount::ZERO).unwrap(),
            [Fact::Queued(QueueCause::Resume)]
        );
        let mut run = in_state(State::Training);
        assert_eq!(
            exhausted(&mut run, "cap").unwrap(),
            [Fact::PauseRequested("cap".into())]
        );
        assert_eq!(exhausted(&mut run, "cap").unwrap(), []);
        let mut run = in_state(State::Completed);
        assert_eq!(exhausted(&mut run, "cap").unwrap(), []);
        let mut run = in_state(State::Paused);
        run.cause = "cap".into();
        assert!(matches!(
            resume(&mut run, Amount::ZERO),
            Err(Error::CostCapReached(_))
        ));
        assert_eq!(run.state, State::Paused);
        assert!(matches!(
            resume(&mut run, run_cap(-1)),
            Err(Error::Field { .. })
        ));
        assert!(matches!(
            resume(&mut run, run_cap(0)),
            Err(Error::CostCapReached(_))
        ));
        resume(&mut run, run_cap(1)).unwrap();
        assert_eq!((run.state, run.cost_cap), (State::Queued, run_cap(1)));
        assert!(matches!(
            resume(&mut run, Amount::ZERO),
            Err(Error::WrongState { .. })
        ));
    }

    #[test]
    fn an_interrupted_start_is_finished_only_for_a_caller_who_can_come_back() {
        let mut run = in_state(State::Created);
        assert_eq!(recover(&run), Recovery::Abandon);
        run.idempotency_key = "k".into();
        assert_eq!(recover(&run), Recovery::Finish);
        let facts = refused(&mut run, "no credit".into(), Timestamp::EPOCH).unwrap();
        assert_eq!((facts, run.state), (vec![Fact::Failed], State::Failed));
    }
}

//! Jobs and leases: the table of what may follow what, and the fencing rules.

use std::time::Duration;

use kit::Timestamp;
use kit::id::{Id, Job as JobMarker, Lease as LeaseMarker, Run, Worker, Workspace};

use crate::error::Error;

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Queued,
    Leased,
    Ended,
}

impl State {
    /// Returns how it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Leased => "leased",
            Self::Ended => "ended",
        }
    }

    /// Parses how it is stored.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Queued, Self::Leased, Self::Ended]
            .into_iter()
            .find(|state| state.as_str() == text)
    }
}

/// What the worker of a leased job is asked to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Run,
    Pause,
    Cancel,
    Drain,
}

impl Wish {
    /// Returns how it is stored.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Pause => "pause",
            Self::Cancel => "cancel",
            Self::Drain => "drain",
        }
    }

    /// Parses how it is stored.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Run, Self::Pause, Self::Cancel, Self::Drain]
            .into_iter()
            .find(|wish| wish.as_str() == text)
    }

    /// A cancel outranks a pause, which outranks a drain: a later, weaker wish doesn't undo a stronger one.
    pub fn strengthen(self, other: Self) -> Self {
        let strength = |wish: Self| match wish {
            Self::Run => 0,
            Self::Drain => 1,
            Self::Pause => 2,
            Self::Cancel => 3,
        };
        if strength(other) > strength(self) {
            other
        } else {
            self
        }
    }
}

/// A run as the scheduler sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: Id<JobMarker>,
    pub run_id: Id<Run>,
    pub workspace_id: Id<Workspace>,
    pub gpu_type: String,
    pub state: State,
    /// The highest fence that was granted or told; the next lease gets one more.
    pub fence: i64,
    pub wish: Wish,
    pub queued_at: Timestamp,
    /// What is trained, in the contract's encoding; the scheduler reads it to learn from what was reached.
    pub spec: Vec<u8>,
    /// Set while leased.
    pub lease: Option<Lease>,
}

/// The right of one worker to train one run until the deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub id: Id<LeaseMarker>,
    pub worker_id: Id<Worker>,
    pub fence: i64,
    pub deadline: Timestamp,
}

/// What a queued run says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued {
    pub run_id: Id<Run>,
    pub workspace_id: Id<Workspace>,
    pub gpu_type: String,
    /// The highest fence the run has seen.
    pub fence: i64,
    /// What is trained, in the contract's encoding.
    pub spec: Vec<u8>,
}

/// Takes a queued run into the queue. `None` means that the fact is old news: a repetition, or overtaken by a
/// lease of a higher fence.
pub fn enqueue(
    job: Option<Job>,
    queued: &Queued,
    new_id: Id<JobMarker>,
    now: Timestamp,
) -> Option<Job> {
    let Some(job) = job else {
        return Some(Job {
            id: new_id,
            run_id: queued.run_id,
            workspace_id: queued.workspace_id,
            gpu_type: queued.gpu_type.clone(),
            state: State::Queued,
            fence: queued.fence,
            wish: Wish::Run,
            queued_at: now,
            spec: queued.spec.clone(),
            lease: None,
        });
    };
    let is_old = queued.fence < job.fence;
    let is_repetition = job.state == State::Queued;
    if is_old || is_repetition {
        return None;
    }
    Some(Job {
        state: State::Queued,
        fence: queued.fence,
        gpu_type: queued.gpu_type.clone(),
        wish: Wish::Run,
        queued_at: now,
        lease: None,
        ..job
    })
}

/// Grants a waiting job to a worker.
pub fn lease(
    job: Job,
    lease_id: Id<LeaseMarker>,
    worker_id: Id<Worker>,
    now: Timestamp,
    duration: Duration,
) -> Result<Job, Error> {
    if job.state != State::Queued {
        return Err(Error::JobNotWaiting { run_id: job.run_id });
    }
    let fence = job.fence + 1;
    let lease = Lease {
        id: lease_id,
        worker_id,
        fence,
        deadline: now + duration,
    };
    Ok(Job {
        state: State::Leased,
        fence,
        lease: Some(lease),
        ..job
    })
}

/// Moves a lease's deadline. Refused when the lease isn't this job's any more, so that a worker that was taken
/// for lost learns it.
pub fn extend(
    job: Job,
    lease_id: Id<LeaseMarker>,
    fence: i64,
    now: Timestamp,
    duration: Duration,
) -> Result<Job, Error> {
    match &job.lease {
        Some(lease) if lease.id == lease_id && lease.fence == fence => {
            let lease = Lease {
                deadline: now + duration,
                ..lease.clone()
            };
            Ok(Job {
                lease: Some(lease),
                ..job
            })
        }
        _ => Err(Error::LeaseLost {
            lease_id,
            fence,
            newest: job.fence,
        }),
    }
}

/// Puts a leased job back into the queue; its place is the one it had.
pub fn requeue(job: Job) -> Option<Job> {
    (job.state == State::Leased).then_some(Job {
        state: State::Queued,
        lease: None,
        ..job
    })
}

/// Ends a job for good, or until its run is queued again. An ending that was told before the job was queued is
/// old news: it came late, after the run had been resumed.
pub fn end(job: Job, told_at: Timestamp) -> Option<Job> {
    let is_old = told_at < job.queued_at;
    (job.state != State::Ended && !is_old).then_some(Job {
        state: State::Ended,
        lease: None,
        ..job
    })
}

/// Asks the worker of a job for something; a job that waits keeps the wish for its next worker.
pub fn wish(job: Job, wish: Wish) -> Option<Job> {
    let stronger = job.wish.strengthen(wish);
    (job.state != State::Ended && stronger != job.wish).then_some(Job {
        wish: stronger,
        ..job
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn queued(fence: i64) -> Queued {
        Queued {
            run_id: Id::from_bytes([1; 16]),
            workspace_id: Id::from_bytes([2; 16]),
            gpu_type: "cpu".into(),
            fence,
            spec: Vec::new(),
        }
    }

    fn waiting() -> Job {
        enqueue(None, &queued(0), Id::from_bytes([3; 16]), at(0)).unwrap()
    }

    fn leased(job: Job, byte: u8) -> Job {
        lease(
            job,
            Id::from_bytes([byte; 16]),
            Id::from_bytes([9; 16]),
            at(1),
            MINUTE,
        )
        .unwrap()
    }

    #[test]
    fn every_lease_of_a_run_has_a_higher_fence() {
        let first = leased(waiting(), 4);
        let second = leased(requeue(first.clone()).unwrap(), 5);
        assert_eq!((first.fence, second.fence), (1, 2));
        let ended = end(second, at(4)).unwrap();
        let again = enqueue(Some(ended), &queued(2), Id::from_bytes([7; 16]), at(5)).unwrap();
        assert_eq!(leased(again, 6).fence, 3);
    }

    #[test]
    fn a_lease_that_was_given_to_somebody_else_cannot_be_extended() {
        let first = leased(waiting(), 4);
        let lost = first.lease.clone().unwrap();
        let second = leased(requeue(first.clone()).unwrap(), 5);
        let refused = extend(second.clone(), lost.id, lost.fence, at(9), MINUTE);
        assert!(
            matches!(refused, Err(Error::LeaseLost { newest: 2, .. })),
            "{refused:?}"
        );
        let own = second.lease.clone().unwrap();
        let extended = extend(second, own.id, own.fence, at(9), MINUTE).unwrap();
        assert_eq!(extended.lease.unwrap().deadline, at(69));
        assert!(extend(end(first, at(8)).unwrap(), lost.id, 1, at(9), MINUTE).is_err());
    }

    #[test]
    fn old_news_does_not_queue_a_job_again() {
        assert_eq!(
            enqueue(Some(waiting()), &queued(0), Id::from_bytes([8; 16]), at(3)),
            None
        );
        let running = leased(requeue(leased(waiting(), 4)).unwrap(), 5);
        assert_eq!(
            enqueue(Some(running), &queued(1), Id::from_bytes([8; 16]), at(3)),
            None
        );
    }

    #[test]
    fn a_drained_run_waits_again_although_its_lease_was_not_given_back() {
        let running = leased(waiting(), 4);
        let again = enqueue(Some(running), &queued(1), Id::from_bytes([8; 16]), at(3)).unwrap();
        assert_eq!(
            (again.state, again.lease, again.wish),
            (State::Queued, None, Wish::Run)
        );
    }

    #[test]
    fn a_late_ending_does_not_end_a_resumed_run() {
        let paused = end(leased(waiting(), 4), at(4)).unwrap();
        let resumed = enqueue(Some(paused), &queued(1), Id::from_bytes([8; 16]), at(6)).unwrap();
        assert_eq!(end(resumed.clone(), at(4)), None);
        assert_eq!(end(resumed, at(7)).unwrap().state, State::Ended);
    }

    #[test]
    fn a_weaker_wish_does_not_undo_a_stronger_one() {
        let running = leased(waiting(), 4);
        let cancelled = wish(running, Wish::Cancel).unwrap();
        assert_eq!(wish(cancelled.clone(), Wish::Pause), None);
        assert_eq!(cancelled.wish, Wish::Cancel);
        assert_eq!(wish(end(cancelled, at(5)).unwrap(), Wish::Cancel), None);
    }

    #[test]
    fn a_requeued_job_keeps_its_place() {
        let running = leased(waiting(), 4);
        assert_eq!(requeue(running).unwrap().queued_at, at(0));
        assert_eq!(requeue(waiting()), None);
        assert!(
            lease(
                leased(waiting(), 4),
                Id::from_bytes([5; 16]),
                Id::from_bytes([9; 16]),
                at(1),
                MINUTE
            )
            .is_err()
        );
    }
}

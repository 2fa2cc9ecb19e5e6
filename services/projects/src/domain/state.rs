//! Where a run stands and every step it may take: one table.
//!
//! ```text
//! created → queued → provisioning → preparing → training → validating → completed
//!             ↑  ↖───────┴──────────────┴───────────┴──────────┘ requeue (device lost, drained)
//!             └ resume ─ paused          cancelled, failed: from any state that isn't final
//! ```

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Recorded; the money isn't held yet.
    Created,
    /// Paid for and waiting for a device.
    Queued,
    /// A device is granted; its worker has not begun.
    Provisioning,
    /// The worker fetches data and builds the plan.
    Preparing,
    /// The worker trains.
    Training,
    /// The final validation and the exports.
    Validating,
    /// Ended well; it has a model.
    Completed,
    /// Without a device; resumes where it was.
    Paused,
    /// Ended by somebody.
    Cancelled,
    /// Can't go on.
    Failed,
}

/// What moves a run from one state to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// Its money is held.
    Hold,
    /// A device was granted.
    Lease,
    /// A worker began an attempt.
    Begin,
    /// The worker fetches and builds.
    Prepare,
    /// The worker trains.
    Train,
    /// The worker validates the result.
    Validate,
    /// The worker is done.
    Complete,
    /// The device was lost or taken back.
    Requeue,
    /// It gives its device back and keeps its checkpoint.
    Pause,
    /// A paused run goes on.
    Resume,
    /// Somebody ends it.
    Cancel,
    /// It can't go on.
    Fail,
}

use Move::{
    Begin, Cancel, Complete, Fail, Hold, Lease, Pause, Prepare, Requeue, Resume, Train, Validate,
};
use State::{
    Cancelled, Completed, Created, Failed, Paused, Preparing, Provisioning, Queued, Training,
    Validating,
};

/// Every step a run may take; what isn't here is refused.
///
/// `Lease` and `Begin` may meet a run that is under way: a newer lease replaces a worker that was
/// lost before its loss is heard of. `Begin` may meet one that is queued: the worker can be faster
/// than the fact that tells of its lease.
pub const TABLE: &[(State, Move, State)] = &[
    (Created, Hold, Queued),
    (Created, Cancel, Cancelled),
    (Created, Fail, Failed),
    (Queued, Lease, Provisioning),
    (Queued, Begin, Preparing),
    (Queued, Pause, Paused),
    (Queued, Cancel, Cancelled),
    (Queued, Fail, Failed),
    (Provisioning, Lease, Provisioning),
    (Provisioning, Begin, Preparing),
    (Provisioning, Requeue, Queued),
    (Provisioning, Pause, Paused),
    (Provisioning, Cancel, Cancelled),
    (Provisioning, Fail, Failed),
    (Preparing, Lease, Provisioning),
    (Preparing, Begin, Preparing),
    (Preparing, Prepare, Preparing),
    (Preparing, Train, Training),
    (Preparing, Validate, Validating),
    (Preparing, Complete, Completed),
    (Preparing, Requeue, Queued),
    (Preparing, Pause, Paused),
    (Preparing, Cancel, Cancelled),
    (Preparing, Fail, Failed),
    (Training, Lease, Provisioning),
    (Training, Begin, Preparing),
    (Training, Train, Training),
    (Training, Validate, Validating),
    (Training, Complete, Completed),
    (Training, Requeue, Queued),
    (Training, Pause, Paused),
    (Training, Cancel, Cancelled),
    (Training, Fail, Failed),
    (Validating, Lease, Provisioning),
    (Validating, Begin, Preparing),
    (Validating, Validate, Validating),
    (Validating, Complete, Completed),
    (Validating, Requeue, Queued),
    (Validating, Pause, Paused),
    (Validating, Cancel, Cancelled),
    (Validating, Fail, Failed),
    (Paused, Resume, Queued),
    (Paused, Cancel, Cancelled),
];

/// Returns where a step leads, or why it can't be taken.
pub fn next(state: State, step: Move) -> Result<State, Error> {
    let edge = TABLE
        .iter()
        .find(|(from, by, _)| *from == state && *by == step);
    match edge {
        Some((_, _, target)) => Ok(*target),
        None if state.is_final() => Err(Error::RunEnded(state)),
        None => Err(Error::WrongState { state, step }),
    }
}

impl State {
    /// Every state, in the order of the proto's numbers from 1.
    pub const ALL: [Self; 10] = [
        Created,
        Queued,
        Provisioning,
        Preparing,
        Training,
        Validating,
        Completed,
        Paused,
        Cancelled,
        Failed,
    ];

    /// Tells whether nothing leads away from it.
    pub const fn is_final(self) -> bool {
        matches!(self, Completed | Cancelled | Failed)
    }

    /// Tells whether a worker is at it.
    pub const fn is_active(self) -> bool {
        matches!(self, Preparing | Training | Validating)
    }

    /// Returns its name, as it is stored and shown.
    pub const fn name(self) -> &'static str {
        match self {
            Created => "created",
            Queued => "queued",
            Provisioning => "provisioning",
            Preparing => "preparing",
            Training => "training",
            Validating => "validating",
            Completed => "completed",
            Paused => "paused",
            Cancelled => "cancelled",
            Failed => "failed",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|state| state.name() == text);
        known.ok_or_else(|| format!("'{text}' is no state of a run"))
    }
}

impl fmt::Display for Move {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Hold => "be queued for the first time",
            Lease => "get a device",
            Begin => "begin an attempt",
            Prepare => "go back to preparing",
            Train => "train",
            Validate => "validate",
            Complete => "complete",
            Requeue => "go back to the queue",
            Pause => "pause",
            Resume => "resume",
            Cancel => "be cancelled",
            Fail => "fail",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOVES: [Move; 12] = [
        Hold, Lease, Begin, Prepare, Train, Validate, Complete, Requeue, Pause, Resume, Cancel,
        Fail,
    ];

    /// One row a state, one column a move in the order of `MOVES`: the first letters of the
    /// target, `.` for a refusal. Written by hand, so that a slip in the table shows.
    const GRID: [(State, &str); 10] = [
        (Created, "Q . . . . . . . . . C F"),
        (Queued, ". Pv Pp . . . . . Pz . C F"),
        (Provisioning, ". Pv Pp . . . . Q Pz . C F"),
        (Preparing, ". Pv Pp Pp T V Cm Q Pz . C F"),
        (Training, ". Pv Pp . T V Cm Q Pz . C F"),
        (Validating, ". Pv Pp . . V Cm Q Pz . C F"),
        (Completed, ". . . . . . . . . . . ."),
        (Paused, ". . . . . . . . . Q C ."),
        (Cancelled, ". . . . . . . . . . . ."),
        (Failed, ". . . . . . . . . . . ."),
    ];

    fn target(letters: &str) -> Option<State> {
        Some(match letters {
            "Q" => Queued,
            "Pv" => Provisioning,
            "Pp" => Preparing,
            "T" => Training,
            "V" => Validating,
            "Cm" => Completed,
            "Pz" => Paused,
            "C" => Cancelled,
            "F" => Failed,
            _ => return None,
        })
    }

    #[test]
    fn every_edge_leads_where_it_should_and_every_other_step_is_refused() {
        let mut edges = 0;
        for (state, row) in GRID {
            let cells: Vec<_> = row.split(' ').collect();
            assert_eq!(cells.len(), MOVES.len(), "{state}");
            for (step, cell) in MOVES.into_iter().zip(cells) {
                match (next(state, step), target(cell)) {
                    (Ok(found), Some(expected)) => {
                        assert_eq!(found, expected, "{state} {step:?}");
                        edges += 1;
                    }
                    (Err(Error::RunEnded(found)), None) => {
                        assert!(state.is_final() && found == state, "{state} {step:?}");
                    }
                    (
                        Err(Error::WrongState {
                            state: found,
                            step: tried,
                        }),
                        None,
                    ) => {
                        assert!(!state.is_final(), "{state} {step:?}");
                        assert_eq!((found, tried), (state, step));
                    }
                    (found, expected) => panic!("{state} {step:?}: {found:?}, not {expected:?}"),
                }
            }
        }
        assert_eq!(edges, TABLE.len(), "an edge stands in the table twice");
    }

    #[test]
    fn every_state_can_be_reached_and_only_final_ones_are_dead_ends() {
        for state in State::ALL {
            let is_entered = TABLE
                .iter()
                .any(|(from, _, to)| *to == state && *from != state);
            assert_eq!(is_entered, state != Created, "{state}");
            let is_left = TABLE
                .iter()
                .any(|(from, _, to)| *from == state && *to != state);
            assert_eq!(is_left, !state.is_final(), "{state}");
            assert_eq!(state.name().parse(), Ok(state));
        }
    }
}

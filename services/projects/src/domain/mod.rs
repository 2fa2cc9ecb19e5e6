//! What a run, its attempts, checkpoints and metrics are, and every decision about them. Pure:
//! no I/O, no clock, no SQL, no proto.

mod attempt;
mod checkpoint;
mod compare;
mod device;
mod project;
mod run;
mod series;
mod state;
mod stop;
mod thin;

pub use attempt::{
    Begin, Finish, Leased, Outcome, Record, Requeued, begin, finish, leased, record, report_phase,
    requeued,
};
pub use checkpoint::{Checkpoint, retired};
pub use compare::{Comparison, MetricSummary, compare, higher_is_better};
pub use device::{Device, choose_device};
pub use project::{DEFAULT_PROJECT, Project, check_name, check_text};
pub(crate) use run::is_metric_name;
pub use run::{
    Artifact, Attempt, Estimate, Fact, Metrics, Model, QueueCause, Run, TrainSpec, Wish,
    artifact_kinds,
};
pub use series::{Line, Point, Reading, Superseded, merge};
pub use state::{Move, State, TABLE, next};
pub use stop::{Recovery, StopKind, check_resume, exhausted, held, recover, refused, resume, stop};
pub use thin::thin;

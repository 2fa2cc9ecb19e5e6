//! Training runs.
//!
//! For callers with a data set in hand (the worker):
//!
//! * `Trainer::new(options, dataset, pretrained) -> Result<Trainer>` begins a run (`import::read` brings weights), `Trainer::resume(checkpoint, place,
//!   dataset, threads)` continues one from `Checkpoint::from_bytes`;
//! * `trainer.run(&stop, &mut progress) -> Result<Ending>` trains until the end, or until `StopHandle::stop` from
//!   another thread: it finishes the step, hands a checkpoint to `Progress::on_checkpoint` and returns
//!   `Ending::Stopped`. `StopHandle::request_checkpoint` asks for one in between; each epoch gives one;
//! * `Progress` hears start, steps, epochs, checkpoints (bytes of a file) and notes; an error from it ends the run.
//!
//! For callers with a folder (the command line): [`run_folder`] and [`resume_folder`].
//!
//! **Invariant**: a run that was interrupted anywhere and continued from its checkpoint ends with the same weights,
//! to the bit, as one that was not, whatever the number of threads.

mod columns;
mod diagnose;
mod folder;
mod freeze;
#[cfg(test)]
mod learning;
mod networks;
mod options;
mod prepare;
mod report;
mod results;
mod row;
mod session;
#[cfg(test)]
mod tasks;
#[cfg(test)]
mod tests;
mod trainer;

pub use columns::Columns;
pub use folder::{FolderRun, resume_folder, run_folder};
pub use freeze::Freeze;
pub(crate) use networks::Networks;
pub use options::TrainOptions;
pub(crate) use report::finite;
pub use report::{EpochReport, Progress, Reason, Scores, Started, StepReport, StopHandle};
pub use results::results;
pub use row::Row;
pub use trainer::{Ending, NOT_FINITE_MAX, Trainer};

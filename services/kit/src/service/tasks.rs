//! Supervision inside a process: a task that fails takes its service down, and the supervisor
//! starts it again.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::server::STOP_TIMEOUT;
use crate::fault::{Fault, Kind};

/// How long tasks may take to stop: a little longer than the calls they answer.
const TASK_STOP_TIMEOUT: Duration = STOP_TIMEOUT.saturating_add(Duration::from_secs(5));

/// The tasks of one service. They stop together.
///
/// ```no_run
/// # async fn serve(context: kit::service::Context, store: kit::store::Store) -> Result<(), kit::Fault> {
/// let mut tasks = kit::service::Tasks::new(context.shutdown());
/// tasks.spawn("relay", {
///     let (bus, stop) = (context.bus().clone(), context.shutdown().clone());
///     async move {
///         kit::bus::relay(bus, store, stop).await;
///         Ok(())
///     }
/// });
/// tasks.run().await
/// # }
/// ```
pub struct Tasks {
    set: JoinSet<(&'static str, Result<(), Fault>)>,
    shutdown: CancellationToken,
}

impl Tasks {
    /// Returns an empty set that stops when told so here.
    pub fn new(shutdown: &CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            shutdown: shutdown.clone(),
        }
    }

    /// Starts a task. It should run until the shutdown: an earlier end is a failure.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), Fault>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Waits until told to stop or until a task fails; then stops the others.
    pub async fn run(mut self) -> Result<(), Fault> {
        let mut outcome = Ok(());
        while let Some(ended) = self.set.join_next().await {
            let failure = match ended {
                Ok((_, Ok(()))) if self.shutdown.is_cancelled() => None,
                Ok((name, Ok(()))) => Some(Fault::new(
                    Kind::Internal,
                    "TASK_ENDED",
                    "kit",
                    format!("the task {name} ended by itself"),
                )),
                Ok((name, Err(fault))) => {
                    tracing::error!(task = name, error = fault.chain(), "a task failed");
                    Some(fault)
                }
                Err(error) => {
                    tracing::error!(%error, "a task panicked");
                    Some(Fault::internal(error))
                }
            };
            if let Some(fault) = failure
                && outcome.is_ok()
            {
                outcome = Err(fault);
            }
            self.shutdown.cancel();
            let rest = async { while self.set.join_next().await.is_some() {} };
            if tokio::time::timeout(TASK_STOP_TIMEOUT, rest).await.is_err() {
                tracing::warn!("gave up on tasks that did not stop in time");
                self.set.abort_all();
            }
        }
        outcome
    }
}

/// Cancels the token when the process is asked to stop (SIGTERM or SIGINT).
pub fn shutdown_on_signal(shutdown: &CancellationToken) -> Result<(), Fault> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(Fault::internal)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Fault::internal)?;
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        shutdown.cancel();
    });
    Ok(())
}

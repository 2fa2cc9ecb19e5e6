//! Who follows a run learns here, within the process, that it changed. Followers of other
//! processes see it when they next look; nothing relies on this being told.

use kit::id::{Id, Run};
use tokio::sync::broadcast;

/// Changes that may wait for a slow follower before it is told to look at everything.
const CHANGES_MAX: usize = 1024;

/// Tells which runs changed.
pub struct Changes(broadcast::Sender<Id<Run>>);

/// Hears which runs change.
pub struct Watch {
    run: Id<Run>,
    changes: broadcast::Receiver<Id<Run>>,
}

impl Changes {
    /// Returns a place to tell and hear of changes.
    pub fn new() -> Self {
        Self(broadcast::Sender::new(CHANGES_MAX))
    }

    /// Tells that a run changed.
    pub fn notify(&self, run: Id<Run>) {
        // Fails only when nobody follows.
        let _ = self.0.send(run);
    }

    /// Hears of the changes of one run from now on.
    pub fn watch(&self, run: Id<Run>) -> Watch {
        Watch {
            run,
            changes: self.0.subscribe(),
        }
    }
}

impl Watch {
    /// Waits until the run may have changed.
    pub async fn changed(&mut self) {
        loop {
            match self.changes.recv().await {
                Ok(run) if run != self.run => {}
                // Who missed changes may have missed one of this run.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => return,
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

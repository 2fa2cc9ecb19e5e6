//! Every way a worker gives up on an attempt.

use kit::fault::Fault;

/// Why an attempt ends early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The lease went to somebody else, or the run ended: drop everything.
    #[error("the lease was lost")]
    LeaseLost,
    /// The run can't be trained: told to the owner.
    #[error("{0}")]
    Run(String),
    /// Another service said no for good.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Self {
        Self::Run(error.to_string())
    }
}

impl Error {
    /// Returns the reasons with which the fleet says that this worker has no business with the run any more.
    pub fn is_fenced(fault: &Fault) -> bool {
        ["LEASE_LOST", "UNKNOWN_LEASE", "STALE_FENCE"]
            .iter()
            .any(|reason| fault.is(reason))
    }
}

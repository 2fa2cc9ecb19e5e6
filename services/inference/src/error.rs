//! Every way inference says no. Each reason has a heading in `errors.md`.

use kit::fault::{Fault, Kind};

/// A refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no endpoint '{0}'")]
    NotFound(String),
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: String },
    #[error("model {model_id} has no weights to deploy")]
    NoWeights { model_id: String },
    #[error("endpoint '{name}' doesn't answer yet: {why}")]
    NotReady { name: String, why: String },
    #[error("the picture can't be read: {0}")]
    ImageUnreadable(String),
    #[error("{waiting} predictions wait already")]
    Busy { waiting: usize },
    #[error(transparent)]
    Engine(#[from] engine::Error),
    #[error(transparent)]
    Store(#[from] kit::store::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let new = |kind, reason| Fault::new(kind, reason, "endpoints", message.clone());
        match error {
            Error::NotFound(_) => new(Kind::NotFound, "NOT_FOUND"),
            Error::Invalid { field, rule } => {
                new(Kind::Invalid, "REQUEST_INVALID").violation(field, rule)
            }
            Error::NoWeights { .. } => new(Kind::Precondition, "MODEL_WITHOUT_WEIGHTS"),
            Error::NotReady { .. } => new(Kind::Precondition, "ENDPOINT_NOT_READY"),
            Error::ImageUnreadable(_) => new(Kind::Invalid, "IMAGE_UNREADABLE"),
            Error::Busy { .. } => {
                new(Kind::Exhausted, "ENDPOINT_BUSY").retry_after(std::time::Duration::from_secs(1))
            }
            Error::Engine(_) => new(Kind::Invalid, "PREDICTION_REFUSED"),
            Error::Store(error) => error.into(),
            Error::Fault(fault) => fault,
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}

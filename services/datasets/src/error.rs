//! Every way the datasets service says no. Each reason has a heading in `errors.md`.

use kit::fault::{Fault, Kind};

/// A refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no {what} '{id}'")]
    NotFound { what: &'static str, id: String },
    #[error("{field}: {rule}")]
    Invalid { field: &'static str, rule: String },
    #[error("there is a dataset '{name}' already: import into it, or choose another name")]
    NameTaken { name: String },
    #[error("the part begins at byte {offset}, the upload goes on at byte {expected}")]
    WrongOffset { offset: i64, expected: i64 },
    #[error("the upload has {received} of {size} bytes: send the rest first")]
    UploadIncomplete { received: i64, size: i64 },
    #[error("the upload expired: begin again")]
    UploadExpired,
    #[error(transparent)]
    Store(#[from] kit::store::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let new = |kind, reason| Fault::new(kind, reason, "datasets", message.clone());
        match error {
            Error::NotFound { what, .. } => new(Kind::NotFound, "NOT_FOUND").with("what", what),
            Error::Invalid { field, rule } => {
                new(Kind::Invalid, "REQUEST_INVALID").violation(field, rule)
            }
            Error::NameTaken { name } => {
                new(Kind::Conflict, "DATASET_NAME_TAKEN").with("name", name)
            }
            Error::WrongOffset { expected, .. } => {
                new(Kind::Conflict, "UPLOAD_OFFSET_WRONG").with("received_bytes", expected)
            }
            Error::UploadIncomplete { received, .. } => {
                new(Kind::Precondition, "UPLOAD_INCOMPLETE").with("received_bytes", received)
            }
            Error::UploadExpired => new(Kind::Precondition, "UPLOAD_EXPIRED"),
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

//! Every way the engine says no.

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refusal of the engine. Messages name the thing and the rule.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model name is not in the catalogue.
    #[error("unknown model '{name}': {known}")]
    UnknownModel { name: String, known: String },
    /// An argument breaks a rule.
    #[error("{argument}: {rule}")]
    Argument {
        argument: &'static str,
        rule: String,
    },
    /// The threads could not be started.
    #[error("threads: {0}")]
    Threads(#[from] crate::parallel::Error),
    /// An argument that was given by name can't be set.
    #[error("{name}: {rule}")]
    Setting { name: String, rule: String },
    /// The plan needs more memory than the device has.
    #[error(
        "batch {batch} needs {needed_bytes} bytes and the device has {available_bytes}; the largest batch that fits is {largest_batch}"
    )]
    OutOfMemory {
        batch: usize,
        needed_bytes: u64,
        available_bytes: u64,
        largest_batch: usize,
    },
    /// A data set breaks a rule; `place` is a file, or a file and a line.
    #[error("{place}: {rule}")]
    Data { place: String, rule: String },
    /// A checkpoint can't be used.
    #[error("checkpoint {place}: {rule}")]
    Checkpoint { place: String, rule: String },
    /// A file of weights can't be used.
    #[error("weights {place}: {rule}")]
    Weights { place: String, rule: String },
    /// The loss stopped being a number.
    #[error(
        "the loss was not finite for {limit} steps in a row, last at step {step}; first not finite: {first}"
    )]
    NotFinite {
        step: u64,
        limit: u32,
        /// The tensor or layer that broke first.
        first: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// The file system refused.
    #[error("{place}: {source}")]
    Io {
        place: String,
        source: std::io::Error,
    },
}

impl Error {
    /// Returns a closure that turns an `std::io::Error` at `place` into an engine error.
    pub fn io(place: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let place = place.into();
        move |source| Self::Io { place, source }
    }
}

//! The bus: facts that must arrive exactly once, and telemetry that may be thinned.
//!
//! A fact is a protobuf message with a name. It is told inside the transaction that made it true
//! ([`Tx::tell`](crate::store::Tx::tell)), relayed to the stream `FACTS` ([`relay`]) and heard by
//! durable consumers ([`Bus::consume`]) in the transaction of its effect.

mod connection;
mod consumer;
mod envelope;
mod follow;
mod name;
mod outbox;
mod telemetry;

use std::time::Duration;

use crate::fault::{Fault, Kind};

pub(crate) use connection::version;
pub use connection::{Bus, NATS_VERSION_MIN};
pub use consumer::{DELIVERIES_MAX, HANDLER_TIMEOUT, Told};
pub use envelope::{Envelope, descriptors, install_descriptors};
pub use follow::{Cursor, Followed, Following};
pub(crate) use name::template;
pub use name::{Fact, filter, subject, telemetry_subject};
pub use outbox::{relay, relay_once};
pub use telemetry::Sample;

/// The stream of facts; its sequence is the cursor of all who follow.
pub const FACTS: &str = "FACTS";
/// The stream of facts that a consumer could not take.
pub const FACTS_DEAD: &str = "FACTS_DEAD";
/// The stream of metrics, logs and samples.
pub const TELEMETRY: &str = "TELEMETRY";

/// What the subject of every fact begins with.
pub const FACTS_ROOT: &str = "fovea.v1";
/// What the subject of every dead fact begins with; the consumer and the old subject follow.
pub const DEAD_ROOT: &str = "fovea.dead.v1";
/// What the subject of all telemetry begins with.
pub const TELEMETRY_ROOT: &str = "fovea.telemetry.v1";

/// How long facts stay in their stream.
pub const FACTS_KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// The largest fact: ids and a few values.
pub const FACT_BYTES_MAX: i32 = 256 << 10;
/// How much the stream of dead facts may hold.
pub const DEAD_BYTES_MAX: i64 = 128 << 20;
/// How long the server itself refuses a fact that it has.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// How long telemetry stays in its stream.
pub const TELEMETRY_KEPT_FOR: Duration = Duration::from_secs(2 * 3600);

/// The largest message of telemetry.
pub const SAMPLE_BYTES_MAX: i32 = 1 << 20;

/// Why the bus could not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A server that lacks what we need.
    #[error(
        "nats-server {found} is too old, {minimum} or newer is needed: run scripts/setup.sh, \
         which installs it, or set fleet.nats_url to a newer one"
    )]
    ServerTooOld {
        /// The server's version.
        found: String,
        /// The first version that will do.
        minimum: &'static str,
    },
    /// Nobody answers.
    #[error(
        "no NATS server answers at {url} (fleet.nats_url): start one, or run scripts/setup.sh and \
         'fovea up', which starts its own"
    )]
    Unreachable {
        /// The address, without its password.
        url: String,
    },
    /// The server said no.
    #[error("{action}")]
    Nats {
        /// What we wanted.
        action: String,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A message whose name no subject can be made of.
    #[error("'{0}' is no fact: expected fovea.<domain>.v1.<Entity><PastParticiple>")]
    BadName(String),
    /// A message that the process's descriptors don't know.
    #[error("no descriptor of '{0}': call kit::bus::install_descriptors at the start")]
    NoDescriptor(String),
    /// An envelope or message that can't be read or written.
    #[error("{what}: {problem}")]
    Malformed {
        /// What it was to be.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    pub(crate) fn nats(
        action: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Nats {
            action: action.into(),
            source: source.into(),
        }
    }

    pub(crate) fn malformed(what: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        Self::Malformed {
            what: what.into(),
            problem: problem.to_string(),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match &error {
            Error::ServerTooOld { .. } => {
                Fault::new(Kind::Precondition, "NATS_TOO_OLD", "kit", message)
            }
            Error::Unreachable { .. } => {
                Fault::new(Kind::Unavailable, "NATS_UNREACHABLE", "kit", message)
            }
            Error::Nats { .. } => {
                let message = "the bus does not answer";
                Fault::new(Kind::Unavailable, "BUS_UNAVAILABLE", "kit", message)
                    .caused_by(error)
                    .retry_after(Duration::from_secs(1))
            }
            _ => Fault::internal(error),
        }
    }
}

//! How every service says no: one closed set of kinds, a stable reason, and the same answer on
//! every road (`google.rpc` details in a gRPC status here, problem+json at the gateway).
//!
//! A service's own `Error` becomes a `Fault` in one `From`, and a status in another:
//!
//! ```
//! use kit::fault::{Fault, Kind};
//!
//! #[derive(Debug, thiserror::Error)]
//! enum Error {
//!     #[error("balance is {balance}, the hold needs {needed}")]
//!     BalanceTooLow { balance: kit::Amount, needed: kit::Amount },
//!     #[error(transparent)]
//!     Other(#[from] Fault),
//! }
//!
//! impl From<Error> for Fault {
//!     fn from(error: Error) -> Self {
//!         let message = error.to_string();
//!         let (kind, reason) = match error {
//!             Error::BalanceTooLow { .. } => (Kind::Precondition, "BALANCE_TOO_LOW"),
//!             Error::Other(fault) => return fault,
//!         };
//!         Fault::new(kind, reason, "billing", message)
//!     }
//! }
//!
//! impl From<Error> for tonic::Status {
//!     fn from(error: Error) -> Self {
//!         Fault::from(error).into()
//!     }
//! }
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::error::Error as StdError;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt};

/// What sort of no it is. The set is closed: a caller can handle all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The request itself is wrong; sending it again changes nothing.
    Invalid,
    /// Nobody knows who is calling.
    Unauthenticated,
    /// The caller may not do this.
    Denied,
    /// There is no such thing, or none that the caller may know of.
    NotFound,
    /// It is there already, or somebody else was faster.
    Conflict,
    /// The thing is in a state that does not allow this.
    Precondition,
    /// A limit or quota is used up.
    Exhausted,
    /// A part that is needed does not answer; try again.
    Unavailable,
    /// It took longer than the caller's deadline.
    Timeout,
    /// Our own bug or broken store; its text stays inside.
    Internal,
}

impl Kind {
    /// Returns the gRPC code.
    pub const fn code(self) -> Code {
        match self {
            Self::Invalid => Code::InvalidArgument,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::Denied => Code::PermissionDenied,
            Self::NotFound => Code::NotFound,
            Self::Conflict => Code::AlreadyExists,
            Self::Precondition => Code::FailedPrecondition,
            Self::Exhausted => Code::ResourceExhausted,
            Self::Unavailable => Code::Unavailable,
            Self::Timeout => Code::DeadlineExceeded,
            Self::Internal => Code::Internal,
        }
    }

    /// Returns the kind of a gRPC code, also of those that only foreign servers send.
    pub const fn from_code(code: Code) -> Self {
        match code {
            Code::InvalidArgument | Code::OutOfRange => Self::Invalid,
            Code::Unauthenticated => Self::Unauthenticated,
            Code::PermissionDenied => Self::Denied,
            Code::NotFound | Code::Unimplemented => Self::NotFound,
            Code::AlreadyExists | Code::Aborted => Self::Conflict,
            Code::FailedPrecondition => Self::Precondition,
            Code::ResourceExhausted => Self::Exhausted,
            Code::Unavailable => Self::Unavailable,
            Code::DeadlineExceeded | Code::Cancelled => Self::Timeout,
            Code::Ok | Code::Unknown | Code::Internal | Code::DataLoss => Self::Internal,
        }
    }

    /// Returns the HTTP status.
    pub const fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Denied => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::Precondition => 412,
            Self::Exhausted => 429,
            Self::Unavailable => 503,
            Self::Timeout => 504,
            Self::Internal => 500,
        }
    }

    /// Returns a few words for people: the `title` of problem+json.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Invalid => "Invalid request",
            Self::Unauthenticated => "Not signed in",
            Self::Denied => "Not allowed",
            Self::NotFound => "Not found",
            Self::Conflict => "Conflict",
            Self::Precondition => "Not in this state",
            Self::Exhausted => "Limit reached",
            Self::Unavailable => "Unavailable",
            Self::Timeout => "Timed out",
            Self::Internal => "Internal error",
        }
    }

    /// Tells whether the same request may succeed later.
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout | Self::Exhausted)
    }
}

/// A no with everything the caller needs to mend it.
///
/// The fields are those of [`Detail`]: a fault is one pointer, so that a `Result` stays small.
pub struct Fault(Box<Detail>);

/// The fields of a [`Fault`].
#[derive(Debug)]
pub struct Detail {
    /// What sort of no it is.
    pub kind: Kind,
    /// The stable name of the rule that said no: `BALANCE_TOO_LOW`.
    pub reason: Cow<'static, str>,
    /// The domain that owns the reason: `billing`.
    pub domain: Cow<'static, str>,
    /// For people: lower case, no full stop, names the thing and the rule.
    pub message: String,
    /// For programs: ids and values, by name.
    pub metadata: BTreeMap<String, String>,
    /// What is wrong with which field.
    pub violations: Vec<Violation>,
    /// When it makes sense to try again.
    pub retry_after: Option<Duration>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// One field of a request that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field's path as the proto names it: `splits[1].ratio`.
    pub field: String,
    /// The rule.
    pub description: String,
}

impl Violation {
    /// Returns the field as a JSON pointer: `/splits/1/ratio`.
    pub fn pointer(&self) -> String {
        let steps = self
            .field
            .split(['.', '['])
            .map(|step| step.trim_end_matches(']'));
        steps
            .filter(|step| !step.is_empty())
            .fold(String::new(), |path, step| {
                path + "/" + &step.replace('~', "~0").replace('/', "~1")
            })
    }
}

const INTERNAL_MESSAGE: &str = "internal error; the service's log says more";

impl Fault {
    /// Returns a fault with the least it must say.
    pub fn new(
        kind: Kind,
        reason: impl Into<Cow<'static, str>>,
        domain: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self(Box::new(Detail {
            kind,
            reason: reason.into(),
            domain: domain.into(),
            message: message.into(),
            metadata: BTreeMap::new(),
            violations: Vec::new(),
            retry_after: None,
            source: None,
        }))
    }

    /// Returns the fault of our own bug or broken store; `error` is logged, never shown.
    pub fn internal(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        let mut fault = Self::new(Kind::Internal, "INTERNAL", "kit", error.to_string());
        fault.source = Some(error);
        fault
    }

    /// Returns the fault of one field that breaks a rule.
    pub fn invalid_field(
        reason: &'static str,
        domain: &'static str,
        field: impl Into<String>,
        rule: impl Into<String>,
    ) -> Self {
        let (field, rule) = (field.into(), rule.into());
        Self::new(Kind::Invalid, reason, domain, format!("{field}: {rule}")).violation(field, rule)
    }

    /// Adds a value for programs.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl fmt::Display) -> Self {
        self.metadata.insert(name.into(), value.to_string());
        self
    }

    /// Adds a field that breaks a rule.
    #[must_use]
    pub fn violation(mut self, field: impl Into<String>, rule: impl Into<String>) -> Self {
        self.violations.push(Violation {
            field: field.into(),
            description: rule.into(),
        });
        self
    }

    /// Says when it makes sense to try again.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }

    /// Keeps the error this comes from, for the log.
    #[must_use]
    pub fn caused_by(mut self, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(error.into());
        self
    }

    /// Tells whether the reason is this one.
    pub fn is(&self, reason: &str) -> bool {
        self.reason == reason
    }

    /// Returns the fault that a status carries, so that a reason survives the wire.
    pub fn from_status(status: &Status) -> Self {
        let details = status.get_error_details();
        let kind = Kind::from_code(status.code());
        let (reason, domain, metadata) = match details.error_info() {
            Some(info) => (
                info.reason.clone(),
                info.domain.clone(),
                info.metadata.clone(),
            ),
            None => (
                format!("GRPC_{}", screaming(status.code())),
                "grpc".into(),
                HashMap::new(),
            ),
        };
        let mut fault = Self::new(kind, reason, domain, status.message());
        fault.metadata = metadata.into_iter().collect();
        fault.retry_after = details.retry_info().and_then(|info| info.retry_delay);
        let violations = details
            .bad_request()
            .map_or(&[][..], |bad| &bad.field_violations);
        fault.violations = violations
            .iter()
            .map(|v| Violation {
                field: v.field.clone(),
                description: v.description.clone(),
            })
            .collect();
        fault
    }

    /// Returns the message and all that caused it, for a log line.
    pub fn chain(&self) -> String {
        chain(self)
    }
}

/// Returns an error's text and those of all that caused it, for a log line.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let line = error.to_string();
        // Many errors repeat their source in their own text.
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        next = error.source();
    }
    text
}

/// The code's name as google.rpc writes it: `INVALID_ARGUMENT`.
fn screaming(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

impl Deref for Fault {
    type Target = Detail;

    fn deref(&self) -> &Detail {
        &self.0
    }
}

impl DerefMut for Fault {
    fn deref_mut(&mut self) -> &mut Detail {
        &mut self.0
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, out)
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|error| error as &(dyn StdError + 'static))
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::from_status(&status)
    }
}

impl From<Fault> for Status {
    /// Hides the text of an internal fault and logs it: here and nowhere else.
    fn from(fault: Fault) -> Self {
        let mut details = ErrorDetails::new();
        let is_internal = fault.kind == Kind::Internal;
        if is_internal {
            tracing::error!(
                error.type = %fault.reason,
                domain = %fault.domain,
                error = fault.chain(),
                "a call failed inside"
            );
        }
        let Detail {
            kind,
            reason,
            domain,
            message,
            metadata,
            violations,
            retry_after,
            ..
        } = *fault.0;
        let metadata = if is_internal {
            HashMap::new()
        } else {
            metadata.into_iter().collect()
        };
        details.set_error_info(reason, domain, metadata);
        if !violations.is_empty() {
            let violations = violations.into_iter();
            details.set_bad_request(
                violations
                    .map(|v| FieldViolation::new(v.field, v.description))
                    .collect::<Vec<_>>(),
            );
        }
        if let Some(delay) = retry_after {
            details.set_retry_info(Some(delay));
        }
        let message = if is_internal {
            INTERNAL_MESSAGE.to_owned()
        } else {
            message
        };
        Status::with_error_details(kind.code(), message, details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 10] = [
        Kind::Invalid,
        Kind::Unauthenticated,
        Kind::Denied,
        Kind::NotFound,
        Kind::Conflict,
        Kind::Precondition,
        Kind::Exhausted,
        Kind::Unavailable,
        Kind::Timeout,
        Kind::Internal,
    ];

    #[test]
    fn a_kind_survives_its_code() {
        for kind in KINDS {
            assert_eq!(Kind::from_code(kind.code()), kind);
        }
    }

    #[test]
    fn a_fault_survives_the_wire() {
        let fault = Fault::new(
            Kind::Precondition,
            "BALANCE_TOO_LOW",
            "billing",
            "balance is 1",
        )
        .with("needed", 2)
        .violation("splits[1].ratio", "must be above zero")
        .retry_after(Duration::from_millis(1500));
        let back = Fault::from_status(&Status::from(fault));
        assert_eq!(back.kind, Kind::Precondition);
        assert!(back.is("BALANCE_TOO_LOW"));
        assert_eq!(back.domain, "billing");
        assert_eq!(back.message, "balance is 1");
        assert_eq!(back.metadata["needed"], "2");
        assert_eq!(back.violations[0].pointer(), "/splits/1/ratio");
        assert_eq!(back.retry_after, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn an_internal_fault_hides_its_text() {
        let cause = std::io::Error::other("password=hunter2");
        let fault = Fault::internal(cause).with("table", "accounts");
        assert!(fault.chain().contains("hunter2"));
        let status = Status::from(fault);
        assert_eq!(status.code(), Code::Internal);
        let shown = format!("{status:?}{:?}", status.get_error_details());
        assert!(
            !shown.contains("hunter2") && !shown.contains("accounts"),
            "{shown}"
        );
    }

    #[test]
    fn a_foreign_status_still_has_a_reason() {
        let fault = Fault::from(Status::deadline_exceeded("too slow"));
        assert_eq!(fault.kind, Kind::Timeout);
        assert!(fault.is("GRPC_DEADLINE_EXCEEDED"));
    }
}

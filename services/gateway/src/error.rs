//! Every way the gateway itself says no. What services say passes through as they said it.

use std::time::Duration;

use kit::fault::{Fault, Kind};

use crate::http::json::{Place, Refusal};

/// A refusal of the gateway.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call carries no key and no session.
    #[error("no credentials: send 'authorization: Bearer <key>' or sign in")]
    CredentialsMissing,
    /// The `authorization` header is not `Bearer <key>`.
    #[error("the authorization header must read 'Bearer <key>'")]
    CredentialsMalformed,
    /// Nobody knows the key or session.
    #[error("this key or session is unknown, revoked or expired")]
    CredentialsInvalid,
    /// One address failed to authenticate too often.
    #[error("too many failed sign-ins from this address; the limit is {limit} a minute")]
    TooManyFailures { limit: u32, retry_after: Duration },
    /// A browser's session was used from another site.
    #[error("a session is only taken from this site's own pages; send a matching origin header")]
    CrossOrigin,
    /// The caller's role is too low.
    #[error("{method} needs the role {needed}; this caller is {role}")]
    RoleTooLow {
        method: String,
        needed: String,
        role: String,
    },
    /// The RPC is for workers, operators or services.
    #[error("{method} is for {audience}; this caller is {role}")]
    NotForCaller {
        method: String,
        audience: &'static str,
        role: String,
    },
    /// There is no such RPC.
    #[error("'{path}' is no method of this API")]
    MethodUnknown { path: String },
    /// There is no such address.
    #[error("there is nothing at '{path}'")]
    RouteUnknown { path: String },
    /// The address exists, for other methods.
    #[error("'{path}' answers {allowed}, not {verb}")]
    VerbNotAllowed {
        path: String,
        verb: String,
        allowed: String,
    },
    /// The body is not what its type says.
    #[error("the body is not JSON: {0}")]
    BodyMalformed(String),
    /// The body or query breaks rules, each named with its place.
    #[error("{}", summary(.0))]
    RequestInvalid(Vec<Refusal>),
    /// The body is in a format that this address does not take.
    #[error("content-type '{given}' is not taken here; expected {expected}")]
    MediaTypeUnsupported {
        given: String,
        expected: &'static str,
    },
    /// The body is larger than its limit.
    #[error("the body is larger than {limit} bytes")]
    BodyTooLarge { limit: u64 },
    /// The body did not arrive whole.
    #[error("the body ended early or stood still: {0}")]
    BodyIncomplete(String),
    /// A part of an upload lacks its range, or its range is impossible.
    #[error("content-range must read 'bytes <first>-<last>/<size>': {0}")]
    RangeInvalid(String),
    /// A part of an upload does not begin where the last one ended.
    #[error("the next part of this upload starts at byte {expected}, not {given}")]
    OffsetMismatch { expected: u64, given: u64 },
    /// The cursor of a stream is no number.
    #[error("cursor '{0}' is no sequence number")]
    CursorInvalid(String),
    /// The workspace holds its share of streams.
    #[error("this workspace has {limit} streams open, which is the limit")]
    TooManyStreams { limit: usize },
    /// The gateway has more requests in flight than it takes.
    #[error("the gateway is at its limit of requests in flight")]
    Overloaded,
    /// A service does not answer.
    #[error("the {0} service does not answer")]
    ServiceUnavailable(&'static str),
    /// A service took too long.
    #[error("the {service} service took longer than {} s", .limit.as_secs())]
    ServiceTimeout {
        service: &'static str,
        limit: Duration,
    },
    /// A service said no.
    #[error("{0}")]
    Relayed(Fault),
    /// Something in this process said no.
    #[error(transparent)]
    Other(#[from] Fault),
}

impl Error {
    /// Returns the HTTP status where it is finer than the kind's.
    pub fn http_status(&self) -> Option<u16> {
        Some(match self {
            Self::VerbNotAllowed { .. } => 405,
            Self::MediaTypeUnsupported { .. } => 415,
            Self::BodyTooLarge { .. } => 413,
            _ => return None,
        })
    }

    fn kind_and_reason(&self) -> (Kind, &'static str) {
        match self {
            Self::CredentialsMissing => (Kind::Unauthenticated, "CREDENTIALS_MISSING"),
            Self::CredentialsMalformed => (Kind::Unauthenticated, "CREDENTIALS_MALFORMED"),
            Self::CredentialsInvalid => (Kind::Unauthenticated, "CREDENTIALS_INVALID"),
            Self::TooManyFailures { .. } => (Kind::Exhausted, "TOO_MANY_FAILURES"),
            Self::CrossOrigin => (Kind::Denied, "CROSS_ORIGIN"),
            Self::RoleTooLow { .. } => (Kind::Denied, "ROLE_TOO_LOW"),
            Self::NotForCaller { .. } => (Kind::Denied, "NOT_FOR_CALLER"),
            Self::MethodUnknown { .. } => (Kind::NotFound, "METHOD_UNKNOWN"),
            Self::RouteUnknown { .. } => (Kind::NotFound, "ROUTE_UNKNOWN"),
            Self::VerbNotAllowed { .. } => (Kind::Invalid, "VERB_NOT_ALLOWED"),
            Self::BodyMalformed(_) => (Kind::Invalid, "BODY_MALFORMED"),
            Self::RequestInvalid(_) => (Kind::Invalid, "REQUEST_INVALID"),
            Self::MediaTypeUnsupported { .. } => (Kind::Invalid, "MEDIA_TYPE_UNSUPPORTED"),
            Self::BodyTooLarge { .. } => (Kind::Invalid, "BODY_TOO_LARGE"),
            Self::BodyIncomplete(_) => (Kind::Invalid, "BODY_INCOMPLETE"),
            Self::RangeInvalid(_) => (Kind::Invalid, "RANGE_INVALID"),
            Self::OffsetMismatch { .. } => (Kind::Conflict, "OFFSET_MISMATCH"),
            Self::CursorInvalid(_) => (Kind::Invalid, "CURSOR_INVALID"),
            Self::TooManyStreams { .. } => (Kind::Exhausted, "TOO_MANY_STREAMS"),
            Self::Overloaded => (Kind::Unavailable, "OVERLOADED"),
            Self::ServiceUnavailable(_) => (Kind::Unavailable, "SERVICE_UNAVAILABLE"),
            Self::ServiceTimeout { .. } => (Kind::Timeout, "SERVICE_TIMEOUT"),
            Self::Relayed(fault) | Self::Other(fault) => (fault.kind, "OTHER"),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let (kind, reason) = error.kind_and_reason();
        let message = error.to_string();
        let fault = Self::new(kind, reason, crate::NAME, message);
        match error {
            Error::Relayed(fault) | Error::Other(fault) => fault,
            Error::TooManyFailures { retry_after, .. } => fault.retry_after(retry_after),
            Error::Overloaded | Error::ServiceUnavailable(_) => {
                fault.retry_after(Duration::from_secs(1))
            }
            Error::OffsetMismatch { expected, given } => {
                fault.with("expected", expected).with("given", given)
            }
            Error::BodyTooLarge { limit } => fault.with("limit_bytes", limit),
            Error::RoleTooLow { needed, .. } => fault.with("role", needed),
            _ => fault,
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        match error {
            // The one code that no kind stands for; clients of gRPC know what it means.
            Error::MethodUnknown { .. } => Self::unimplemented(error.to_string()),
            error => Fault::from(error).into(),
        }
    }
}

fn summary(refusals: &[Refusal]) -> String {
    let Some(first) = refusals.first() else {
        return "the request is invalid".to_owned();
    };
    let place = match &first.place {
        Place::Pointer(pointer) if pointer.is_empty() => "the body".to_owned(),
        Place::Pointer(pointer) => format!("field '{pointer}'"),
        Place::Parameter(name) => format!("query parameter '{name}'"),
    };
    match refusals.len() - 1 {
        0 => format!("{place} {}", first.rule),
        more => format!("{place} {}; {more} more in 'errors'", first.rule),
    }
}

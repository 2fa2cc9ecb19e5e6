//! Refusals as RFC 9457 problem documents.

use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use kit::fault::{Fault, Kind};
use serde_json::{Value, json};

use super::json::{Place, Refusal};
use crate::error::Error;

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A refusal on its way out.
#[derive(Debug)]
pub struct Problem {
    fault: Fault,
    status: StatusCode,
    errors: Vec<Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Problem {
    /// Adds a header to the answer.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: impl Into<HeaderValue>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the HTTP status.
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns the document.
    pub fn document(&self) -> Value {
        let mut document = json!({
            "type": type_of(&self.fault.reason),
            "title": self.fault.kind.title(),
            "status": self.status.as_u16(),
            "detail": self.fault.message,
            "reason": self.fault.reason,
            "domain": self.fault.domain,
        });
        if let Some(trace) = trace_id() {
            document["instance"] = trace.into();
        }
        if !self.errors.is_empty() {
            document["errors"] = self.errors.clone().into();
        }
        if !self.fault.metadata.is_empty() {
            document["metadata"] = json!(self.fault.metadata);
        }
        document
    }
}

/// Returns the id of the current trace, by which its lines and spans are found.
fn trace_id() -> Option<String> {
    let traceparent = kit::telemetry::current_traceparent()?;
    traceparent.split('-').nth(1).map(str::to_owned)
}

/// Returns the address of a reason's description: `/errors/balance-too-low`.
pub fn type_of(reason: &str) -> String {
    format!("/errors/{}", reason.to_ascii_lowercase().replace('_', "-"))
}

impl Problem {
    /// Returns what a service said, whose own log has the inside of it.
    pub fn relayed(fault: Fault) -> Self {
        let errors = fault.violations.iter();
        let errors = errors
            .map(|v| json!({"pointer": v.pointer(), "detail": v.description}))
            .collect();
        Self {
            status: status_of(fault.kind.http_status()),
            errors,
            headers: Vec::new(),
            fault,
        }
    }
}

impl From<Fault> for Problem {
    fn from(fault: Fault) -> Self {
        // The way through a status logs what is internal and hides its text: in one place for all.
        Self::relayed(match fault.kind {
            Kind::Internal => Fault::from_status(&fault.into()),
            _ => fault,
        })
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = error.http_status();
        let errors = match &error {
            Error::RequestInvalid(refusals) => refusals.iter().map(place).collect(),
            _ => Vec::new(),
        };
        let allow = match &error {
            Error::VerbNotAllowed { allowed, .. } => HeaderValue::from_str(allowed).ok(),
            _ => None,
        };
        let mut problem = match error {
            Error::Relayed(fault) => Self::relayed(fault),
            error => Self::from(Fault::from(error)),
        };
        if let Some(status) = status {
            problem.status = status_of(status);
        }
        if !errors.is_empty() {
            problem.errors = errors;
        }
        problem.headers.extend(allow.map(|value| (ALLOW, value)));
        problem
    }
}

fn place(refusal: &Refusal) -> Value {
    match &refusal.place {
        Place::Pointer(pointer) => json!({"pointer": pointer, "detail": refusal.rule}),
        Place::Parameter(name) => json!({"parameter": name, "detail": refusal.rule}),
    }
}

fn status_of(code: u16) -> StatusCode {
    StatusCode::from_u16(code).expect("invariant: kinds have valid HTTP statuses")
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let document = self.document().to_string();
        let mut response = (self.status, document).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, MEDIA_TYPE);
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(delay) = self.fault.retry_after {
            let seconds = delay.as_millis().div_ceil(1000).max(1);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds as u64));
        }
        for (name, value) in self.headers {
            headers.insert(name, value);
        }
        response
    }
}

//! Spans and durations of gRPC calls, on both sides.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::metrics::{Side, record_call};
use super::trace;
use crate::time::Stopwatch;

const TRACEPARENT: &str = "traceparent";
/// Stands for methods that don't exist: anybody can make up any number of them.
const OTHER: &str = "_OTHER";

/// Measures the calls a server answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerLayer;

/// See [`ServerLayer`].
#[derive(Clone, Debug)]
pub struct ServerTelemetry<S>(S);

impl<S> Layer<S> for ServerLayer {
    type Service = ServerTelemetry<S>;

    fn layer(&self, inner: S) -> ServerTelemetry<S> {
        ServerTelemetry(inner)
    }
}

impl<S> Service<Request<Body>> for ServerTelemetry<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let span = call_span(&method, "server");
        let parent = request
            .headers()
            .get(TRACEPARENT)
            .and_then(|value| value.to_str().ok());
        if let Some(parent) = parent {
            trace::follow_traceparent(&span, parent);
        }
        let measured = Measured::start(Side::Server, method, span.clone());
        let answer = span.in_scope(|| self.0.call(request)).instrument(span);
        Box::pin(async move { answer.await.map(|response| measured.watch(response)) })
    }
}

/// Measures the calls a client makes, and sends the trace along.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientLayer;

/// See [`ClientLayer`].
#[derive(Clone, Debug)]
pub struct ClientTelemetry<S>(S);

impl<S> Layer<S> for ClientLayer {
    type Service = ClientTelemetry<S>;

    fn layer(&self, inner: S) -> ClientTelemetry<S> {
        ClientTelemetry(inner)
    }
}

impl<S> Service<Request<Body>> for ClientTelemetry<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Send,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let span = call_span(&method, "client");
        let context = trace::traceparent(&span).and_then(|context| context.parse().ok());
        if let Some(context) = context {
            request.headers_mut().insert(TRACEPARENT, context);
        }
        let measured = Measured::start(Side::Client, method, span.clone());
        let answer = span.in_scope(|| self.0.call(request)).instrument(span);
        Box::pin(async move { answer.await.map(|response| measured.watch(response)) })
    }
}

fn call_span(method: &str, kind: &'static str) -> Span {
    tracing::info_span!(
        "rpc",
        otel.name = method,
        otel.kind = kind,
        otel.status_code = Empty,
        rpc.system.name = "grpc",
        rpc.method = method,
        rpc.status_code = Empty,
        error.r#type = Empty,
    )
}

/// One call being measured; what is dropped without an end was cancelled.
struct Measured {
    side: Side,
    method: String,
    span: Span,
    stopwatch: Stopwatch,
    code: Option<Code>,
}

impl Measured {
    fn start(side: Side, method: String, span: Span) -> Self {
        Self {
            side,
            method,
            span,
            stopwatch: Stopwatch::start(),
            code: None,
        }
    }

    /// Waits for the code, which comes with the head of an answer without a body and else last.
    fn watch(mut self, response: Response<Body>) -> Response<Body> {
        self.note(response.headers());
        response.map(|body| {
            Body::new(Watched {
                body,
                measured: self,
            })
        })
    }

    fn note(&mut self, headers: &HeaderMap) {
        if let Some(status) = Status::from_header_map(headers) {
            self.code = Some(status.code());
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        let code = self.code.unwrap_or(Code::Cancelled);
        let name = name_of(code);
        self.span.record("rpc.status_code", name);
        if matches!(
            code,
            Code::Internal | Code::Unknown | Code::DataLoss | Code::Unavailable
        ) {
            self.span.record("otel.status_code", "ERROR");
            self.span.record("error.type", name);
        }
        let method = if code == Code::Unimplemented {
            OTHER
        } else {
            self.method.as_str()
        };
        record_call(self.side, method, name, self.stopwatch.elapsed());
    }
}

struct Watched {
    body: Body,
    measured: Measured,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.measured.note(trailers);
                }
            }
            Poll::Ready(Some(Err(status))) => self.measured.code = Some(status.code()),
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

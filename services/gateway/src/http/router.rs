//! All routes. What is not listed here is an RPC: gRPC by its content type, else REST by the
//! annotations of the contract.

use std::sync::LazyLock;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, Method as Verb, StatusCode};
use kit::time::Stopwatch;
use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::problem::Problem;
use super::{blobs, body, errors, live, openapi, page, session, transcode, uploads};
use crate::contract::{Contract, Found};
use crate::error::Error;
use crate::gateway::Shared;
use crate::grpc;

/// Seconds: from an embedded file to a part of an upload.
const DURATION_BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0];

/// How long answers took to begin; streams go on after that.
static REQUESTS: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    kit::telemetry::meter(crate::NAME)
        .f64_histogram("http.server.request.duration")
        .with_unit("s")
        .with_description("requests answered")
        .with_boundaries(DURATION_BUCKETS.to_vec())
        .build()
});

/// Returns the whole public door.
pub fn router(gateway: Shared) -> Router {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .build_v1()
        .expect("invariant: the descriptors of the contract are sound");
    Router::new()
        .route("/", get(page::index))
        .route("/assets/{name}", get(page::asset))
        .route("/sign-in", get(session::link))
        .route("/healthz", get(healthz))
        .route("/errors/{reason}", get(errors::describe))
        .route("/v1/openapi.json", get(openapi))
        .route("/v1/session", post(session::create).delete(session::end))
        .route(
            "/v1/uploads/{upload_id}",
            put(uploads::put)
                .head(uploads::head)
                .fallback(transcode::call),
        )
        .route("/v1/blobs/{*key}", get(blobs::get).put(blobs::put))
        .route("/v1/events", get(live::facts))
        .route("/v1/runs/{run_id}/live", get(live::run))
        .route_service("/grpc.reflection.v1.ServerReflection/{method}", reflection)
        .fallback(rpc)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(gateway.clone(), limited))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(protected))
        .layer(from_fn(observed))
        .with_state(gateway)
}

/// Calls an RPC in one of its two forms.
async fn rpc(state: State<Shared>, request: Request) -> Response {
    if grpc::is_grpc(request.headers()) {
        grpc::call(state, request).await
    } else {
        transcode::call(state, request).await
    }
}

/// Answers for the listener: what is behind it has health of its own.
async fn healthz(State(gateway): State<Shared>) -> Response {
    if gateway.context.shutdown().is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping\n").into_response();
    }
    (StatusCode::OK, "ok\n").into_response()
}

async fn openapi() -> Response {
    Json(openapi::document()).into_response()
}

async fn not_allowed(request: Request) -> Response {
    let error = Error::VerbNotAllowed {
        path: request.uri().path().to_owned(),
        verb: request.method().to_string(),
        allowed: "other methods".to_owned(),
    };
    Problem::from(error).into_response()
}

/// Refuses what is above the limit of requests in flight; streams count until they begin.
async fn limited(State(gateway): State<Shared>, request: Request, next: Next) -> Response {
    match gateway.enter() {
        Ok(_place) => next.run(request).await,
        Err(error) if grpc::is_grpc(request.headers()) => tonic::Status::from(error).into_http(),
        Err(error) => Problem::from(error).into_response(),
    }
}

fn panicked(cause: Box<dyn std::any::Any + Send>) -> Response {
    let text = cause
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without words".to_owned());
    Problem::from(kit::Fault::internal(text)).into_response()
}

async fn protected(request: Request, next: Next) -> Response {
    let is_grpc = grpc::is_grpc(request.headers());
    let mut response = next.run(request).await;
    if !is_grpc {
        for (name, value) in page::protective_headers() {
            response.headers_mut().entry(name).or_insert(value);
        }
    }
    response
}

/// Puts each request into a span and writes one line about it.
async fn observed(request: Request, next: Next) -> Response {
    let route = route(&request);
    let verb = request.method().clone();
    let span = span(&request, &route);
    let stopwatch = Stopwatch::start();
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    let took = stopwatch.elapsed();
    let labels = [
        KeyValue::new("http.request.method", known(&verb)),
        KeyValue::new("http.route", route.clone()),
        KeyValue::new("http.response.status_code", i64::from(status.as_u16())),
    ];
    REQUESTS.record(took.as_secs_f64(), &labels);
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("error.type", status.as_str());
    }
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    span.in_scope(|| {
        tracing::info!(
            http.request.method = %verb,
            http.route = route,
            http.response.status_code = status.as_u16(),
            took_ms,
            "answered {verb} {route} with {status}"
        );
    });
    response
}

fn span(request: &Request, route: &str) -> Span {
    let text = |name| body::text(request.headers(), name).unwrap_or_default();
    let verb = request.method();
    let span = tracing::info_span!(
        "request",
        otel.name = format!("{verb} {route}"),
        otel.kind = "server",
        http.request.method = %verb,
        http.route = route,
        http.response.status_code = Empty,
        server.address = text(HOST),
        user_agent.original = text(USER_AGENT),
        error.r#type = Empty,
    );
    if let Some(parent) = traceparent(request.headers()) {
        kit::telemetry::follow_traceparent(&span, parent);
    }
    span
}

/// Names the route and not the path: paths are endless, and hold ids.
fn route(request: &Request) -> String {
    let path = request.uri().path();
    if let Some(matched) = request.extensions().get::<MatchedPath>() {
        return matched.as_str().to_owned();
    }
    if grpc::is_grpc(request.headers()) {
        return match Contract::get().rpc(path) {
            Some(method) => method.path.clone(),
            None => "_OTHER".to_owned(),
        };
    }
    match Contract::get().rest(request.method(), path) {
        Found::Rpc(_, binding, _) => binding.template.text().to_owned(),
        Found::OtherVerbs(_) | Found::Nothing => "_OTHER".to_owned(),
    }
}

/// Anybody can make up any number of methods.
fn known(verb: &Verb) -> &'static str {
    match *verb {
        Verb::GET => "GET",
        Verb::HEAD => "HEAD",
        Verb::POST => "POST",
        Verb::PUT => "PUT",
        Verb::DELETE => "DELETE",
        _ => "_OTHER",
    }
}

fn traceparent(headers: &HeaderMap) -> Option<&str> {
    headers
        .get("traceparent")
        .and_then(|value| value.to_str().ok())
}

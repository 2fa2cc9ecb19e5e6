//! Server-sent events: the facts of a workspace, and one run as it trains.

use std::convert::Infallible;

use axum::extract::{Path, Request, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt, stream};
use http::HeaderName;
use http::request::Parts;
use kit::auth::Caller;
use prost_reflect::{DynamicMessage, Value};
use tonic::Streaming;

use super::json::{self, Place, Refusal};
use super::problem::Problem;
use super::{body, transcode};
use crate::authenticate::unavailable_or;
use crate::contract::Contract;
use crate::domain;
use crate::error::Error;
use crate::events::{self, Start};
use crate::gateway::{Gateway, Shared, StreamGuard};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const SUBSCRIBE: &str = "/fovea.events.v1.EventService/Subscribe";
const FOLLOW_RUN: &str = "/fovea.runs.v1.RunService/FollowRun";
/// What a quiet stream says; a comment would not reach the page's script.
const HEARTBEAT: &str = "heartbeat";

/// `GET /v1/events`: streams the caller's facts.
pub async fn facts(State(gateway): State<Shared>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    match follow_facts(&gateway, &parts).await {
        Ok(events) => stream_out(&gateway, events),
        Err(error) => Problem::from(error).into_response(),
    }
}

/// `GET /v1/runs/{id}/live`: streams a run's telemetry.
pub async fn run(
    State(gateway): State<Shared>,
    Path(run_id): Path<String>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    match follow_run(&gateway, run_id, &parts).await {
        Ok(events) => stream_out(&gateway, events),
        Err(error) => Problem::from(error).into_response(),
    }
}

fn stream_out(gateway: &Gateway, events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let heartbeat = Event::default().event(HEARTBEAT).data("{}");
    // Said at once, so that a reader knows that it is connected before anything happens.
    let first = stream::once(std::future::ready(heartbeat.clone()));
    let events = first.chain(events).map(Ok::<_, Infallible>);
    let alive = KeepAlive::new()
        .interval(gateway.config.heartbeat)
        .event(heartbeat);
    let headers = [("x-accel-buffering", "no"), ("cache-control", "no-store")];
    (headers, Sse::new(events).keep_alive(alive)).into_response()
}

async fn follow_facts(
    gateway: &Shared,
    parts: &Parts,
) -> Result<impl Stream<Item = Event> + Send + use<>, Error> {
    let caller = admitted(gateway, parts, SUBSCRIBE).await?;
    let query = query(parts, &["types", "after_sequence"])?;
    let start = match cursor(parts, &query, "after_sequence")? {
        Some(sequence) => Start::After(sequence),
        None => Start::Now,
    };
    let types = query.into_iter().filter(|(name, _)| name == "types");
    let types = types.flat_map(|(_, value)| {
        let names = value.split(',').map(|name| name.trim().to_owned());
        names.collect::<Vec<_>>()
    });
    let facts = events::follow(gateway, &caller, types.collect(), start)?;
    Ok(facts.map(|fact| {
        let event = Event::default().id(fact.sequence.to_string());
        event.data(String::from_utf8_lossy(&fact.event))
    }))
}

async fn follow_run(
    gateway: &Shared,
    run_id: String,
    parts: &Parts,
) -> Result<impl Stream<Item = Event> + Send + use<>, Error> {
    let caller = admitted(gateway, parts, FOLLOW_RUN).await?;
    let query = query(parts, &["cursor"])?;
    let cursor = cursor(parts, &query, "cursor")?.unwrap_or(0);
    let method = Contract::get().rpc(FOLLOW_RUN);
    let method = method.expect("invariant: the contract has FollowRun");
    let mut request = DynamicMessage::new(method.input());
    request.set_field_by_name("run_id", Value::String(run_id));
    let cursor = i64::try_from(cursor).unwrap_or(i64::MAX);
    request.set_field_by_name("cursor", Value::I64(cursor));
    let guard = gateway.open_stream(&caller)?;
    let answers = transcode::server_streaming(gateway, method, &caller, request).await?;
    let following = Following {
        answers,
        owner: method.owner,
        has_ended: false,
        _guard: guard,
    };
    let stop = gateway.context.shutdown().clone().cancelled_owned();
    Ok(stream::unfold(following, Following::next).take_until(stop))
}

/// A run that is being followed.
struct Following {
    answers: Streaming<DynamicMessage>,
    owner: &'static str,
    has_ended: bool,
    _guard: StreamGuard,
}

impl Following {
    /// Returns the next event: a piece of telemetry, or the `end` or `problem` that comes last.
    async fn next(mut self) -> Option<(Event, Self)> {
        if self.has_ended {
            return None;
        }
        let event = match self.answers.message().await {
            Ok(Some(piece)) => event_of(&piece),
            Ok(None) => {
                self.has_ended = true;
                Event::default().event("end").data("{}")
            }
            Err(status) => {
                self.has_ended = true;
                let problem = Problem::from(unavailable_or(status, self.owner));
                Event::default()
                    .event("problem")
                    .data(problem.document().to_string())
            }
        };
        Some((event, self))
    }
}

/// Names the event after the field of the oneof that is set; its data is that message.
fn event_of(piece: &DynamicMessage) -> Event {
    let cursor = piece.get_field_by_name("cursor");
    let cursor = cursor.and_then(|value| value.as_i64()).unwrap_or_default();
    let event = Event::default().id(cursor.to_string());
    let content = piece.fields().find_map(|(field, value)| {
        let message = value.as_message()?;
        let bytes = json::written(message).ok()?;
        Some((field.name().to_owned(), String::from_utf8(bytes).ok()?))
    });
    match content {
        Some((name, data)) => event.event(name).data(data),
        // A kind of telemetry that this gateway does not know yet: only its cursor counts.
        None => event.event(HEARTBEAT).data("{}"),
    }
}

async fn admitted(gateway: &Gateway, parts: &Parts, path: &str) -> Result<Caller, Error> {
    let method = Contract::get().rpc(path);
    let method = method.expect("invariant: the contract has this method");
    let caller = gateway.authenticator.caller(parts).await?;
    domain::admit(method, caller.identity().role)?;
    Ok(caller)
}

fn query(parts: &Parts, known: &[&str]) -> Result<Vec<(String, String)>, Error> {
    let pairs = transcode::pairs(&parts.uri)?;
    let unknown = pairs
        .iter()
        .filter(|(name, _)| !known.contains(&name.as_str()));
    let refusals: Vec<_> = unknown
        .map(|(name, _)| Refusal {
            place: Place::Parameter(name.clone()),
            rule: format!("is unknown; expected '{}'", known.join("' or '")),
        })
        .collect();
    if refusals.is_empty() {
        Ok(pairs)
    } else {
        Err(Error::RequestInvalid(refusals))
    }
}

/// Returns where to go on: the header wins, because a browser that reconnects sends both.
fn cursor(parts: &Parts, query: &[(String, String)], name: &str) -> Result<Option<u64>, Error> {
    let header = body::text(&parts.headers, LAST_EVENT_ID).filter(|text| !text.is_empty());
    let parameter = query.iter().find(|(key, _)| key == name);
    let Some(text) = header.or(parameter.map(|(_, value)| value.as_str())) else {
        return Ok(None);
    };
    let sequence = text.parse();
    sequence
        .map(Some)
        .map_err(|_| Error::CursorInvalid(text.chars().take(40).collect()))
}

//! gRPC: calls passed on by path, without decoding them, and the one service that the gateway
//! answers itself.

use std::convert::Infallible;
use std::pin::Pin;

use axum::extract::{Request, State};
use axum::response::Response;
use futures::{Stream, StreamExt};
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_TYPE, COOKIE, FORWARDED, HOST, PROXY_AUTHORIZATION,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName};
use kit::auth::{Caller, HEADER as IDENTITY};
use proto::fovea::events::v1::event_service_server::{EventService, EventServiceServer};
use proto::fovea::events::v1::{SubscribeRequest, SubscribeResponse};
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt};

use crate::authenticate::unavailable_or;
use crate::contract::{Contract, Method};
use crate::domain;
use crate::error::Error;
use crate::events::{self, Start};
use crate::gateway::Shared;

/// What is a matter between the client and this listener, or a credential.
const STAYS_HERE: [HeaderName; 8] = [
    AUTHORIZATION,
    COOKIE,
    PROXY_AUTHORIZATION,
    CONNECTION,
    TRANSFER_ENCODING,
    UPGRADE,
    HOST,
    FORWARDED,
];
/// Headers that only services may set.
const OWN_PREFIX: &str = "fovea-";

/// Tells whether a request is gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
    kind.is_some_and(|kind| {
        let rest = kind.strip_prefix("application/grpc");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
    })
}

/// Answers a gRPC call: checks the caller and passes it on.
pub async fn call(State(gateway): State<Shared>, request: Request) -> Response {
    match forward(gateway, request).await {
        Ok(response) => response.map(axum::body::Body::new),
        Err(error) => Status::from(error).into_http(),
    }
}

async fn forward(gateway: Shared, request: Request) -> Result<http::Response<Body>, Error> {
    let (mut parts, body) = request.into_parts();
    let unknown = || Error::MethodUnknown {
        path: parts.uri.path().to_owned(),
    };
    let method = Contract::get().rpc(parts.uri.path()).ok_or_else(unknown)?;
    let caller = gateway.authenticator.caller(&parts).await?;
    domain::admit(method, caller.identity().role)?;
    strip(&mut parts.headers);
    parts.extensions.clear();
    let request = http::Request::from_parts(parts, Body::new(body));
    if method.owner == crate::NAME {
        return Ok(answer_here(gateway, caller, request).await);
    }
    pass_on(&gateway, method, &caller, request).await
}

async fn pass_on(
    gateway: &Shared,
    method: &'static Method,
    caller: &Caller,
    mut request: http::Request<Body>,
) -> Result<http::Response<Body>, Error> {
    let identity = gateway.signed(caller.identity());
    request.headers_mut().insert(IDENTITY, identity);
    let mut channel = gateway.channel(method.owner);
    let answer = match channel.ready().await {
        Ok(ready) => ready.call(request).await,
        Err(error) => Err(error),
    };
    answer.map_err(|error| unavailable_or(Status::from_error(error.into()), method.owner))
}

/// Removes what must not travel on, above all an identity that the client made up.
fn strip(headers: &mut HeaderMap) {
    let foreign: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            name.as_str().starts_with(OWN_PREFIX)
                || name.as_str().starts_with("x-forwarded-")
                || STAYS_HERE.contains(name)
        })
        .cloned()
        .collect();
    for name in foreign {
        headers.remove(name);
    }
}

async fn answer_here(
    gateway: Shared,
    caller: Caller,
    mut request: http::Request<Body>,
) -> http::Response<Body> {
    request.extensions_mut().insert(caller);
    let answer: Result<_, Infallible> = EventServiceServer::new(Events { gateway })
        .oneshot(request)
        .await;
    match answer {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// `EventService`, over the stream of facts.
struct Events {
    gateway: Shared,
}

#[tonic::async_trait]
impl EventService for Events {
    type SubscribeStream = Pin<Box<dyn Stream<Item = Result<SubscribeResponse, Status>> + Send>>;

    async fn subscribe(
        &self,
        request: tonic::Request<SubscribeRequest>,
    ) -> Result<tonic::Response<Self::SubscribeStream>, Status> {
        let caller = request.extensions().get::<Caller>();
        let caller = caller.cloned().ok_or(Error::CredentialsMissing)?;
        let request = request.into_inner();
        let start = match u64::try_from(request.after_sequence) {
            Ok(0) => Start::Now,
            Ok(sequence) => Start::After(sequence),
            Err(_) => return Err(Error::CursorInvalid(request.after_sequence.to_string()).into()),
        };
        let facts = events::follow(&self.gateway, &caller, request.types, start)?;
        let answers = facts.map(|fact| {
            Ok(SubscribeResponse {
                sequence: i64::try_from(fact.sequence).unwrap_or(i64::MAX),
                event: fact.event,
                r#type: fact.name,
                subject: fact.subject,
            })
        });
        Ok(tonic::Response::new(Box::pin(answers)))
    }
}

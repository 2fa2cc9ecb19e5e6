//! Every unary RPC with a `google.api.http` option as REST: one handler for all of them.

use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Buf, BufMut, Bytes};
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, StatusCode, Uri};
use kit::auth::{Caller, HEADER as IDENTITY};
use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor, Value};
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::body;
use super::json::{self, Place, Refusal};
use super::predict;
use super::problem::Problem;
use crate::authenticate::unavailable_or;
use crate::contract::{Body, Contract, Found, Method};
use crate::domain;
use crate::error::Error;
use crate::gateway::{Gateway, Shared};

/// The largest answer of a service.
const ANSWER_BYTES_MAX: usize = 16 << 20;
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Answers a REST call.
pub async fn call(State(gateway): State<Shared>, request: Request) -> Response {
    match answer(&gateway, request).await {
        Ok(message) => respond(&message).into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

async fn answer(gateway: &Gateway, request: Request) -> Result<DynamicMessage, Error> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let (method, binding, values) = match Contract::get().rest(&parts.method, &path) {
        Found::Rpc(method, binding, values) => (method, binding, values),
        Found::OtherVerbs(verbs) => {
            let names: Vec<_> = verbs.iter().map(|verb| verb.as_str()).collect();
            return Err(Error::VerbNotAllowed {
                path,
                verb: parts.method.to_string(),
                allowed: names.join(", "),
            });
        }
        Found::Nothing => return Err(Error::RouteUnknown { path }),
    };
    let caller = gateway.authenticator.caller(&parts).await?;
    domain::admit(method, caller.identity().role)?;
    let message = match binding.body {
        Body::Whole if predict::is_picture(method, &parts.headers) => {
            predict::read(gateway, method, &values, &parts, body).await?
        }
        Body::Whole => read_body(gateway, method, &values, &parts, body).await?,
        Body::Absent => read_query(method, &values, &parts.uri)?,
    };
    unary(gateway, method, &caller, message).await
}

/// Writes a message as the answer of a call.
pub fn respond(message: &DynamicMessage) -> Result<Response, Problem> {
    let written = json::written(message);
    let bytes = written.map_err(|error| Problem::from(kit::Fault::internal(error)))?;
    Ok((StatusCode::OK, [(CONTENT_TYPE, JSON)], bytes).into_response())
}

fn read_query(
    method: &Method,
    values: &[(&str, String)],
    uri: &Uri,
) -> Result<DynamicMessage, Error> {
    let mut message = from_path(method, values);
    let taken: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    json::read_query(&mut message, &pairs(uri)?, &taken).map_err(Error::RequestInvalid)?;
    Ok(message)
}

async fn read_body(
    gateway: &Gateway,
    method: &Method,
    values: &[(&str, String)],
    parts: &Parts,
    body: axum::body::Body,
) -> Result<DynamicMessage, Error> {
    if let Some((name, _)) = pairs(&parts.uri)?.first() {
        return Err(Error::RequestInvalid(vec![Refusal {
            place: Place::Parameter(name.clone()),
            rule: "is unknown; this call takes its fields in the body".to_owned(),
        }]));
    }
    let kind = body::media_type(&parts.headers);
    let limit = gateway
        .config
        .json_bytes_max
        .max(predict::json_limit(gateway, method));
    let bytes = body::whole(
        &parts.headers,
        body,
        limit,
        gateway.config.body_idle_timeout,
    )
    .await?;
    if !bytes.is_empty() && !is_json(&kind) {
        return Err(Error::MediaTypeUnsupported {
            given: kind,
            expected: predict::media_types(method),
        });
    }
    // No body stands for a message with nothing set, as gRPC has it.
    let json = match bytes.is_empty() {
        true => serde_json::Value::Object(serde_json::Map::new()),
        false => serde_json::from_slice(&bytes)
            .map_err(|error| Error::BodyMalformed(error.to_string()))?,
    };
    let mut message = json::read(&method.input(), &json).map_err(Error::RequestInvalid)?;
    for (name, value) in values {
        let given = message.get_field_by_name(name);
        let given = given.as_deref().and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != value {
            return Err(Error::RequestInvalid(vec![Refusal {
                place: Place::Pointer(format!("/{name}")),
                rule: "is another than in the path".to_owned(),
            }]));
        }
        message.set_field_by_name(name, Value::String(value.clone()));
    }
    Ok(message)
}

/// Returns the request with what the path says.
pub fn from_path(method: &Method, values: &[(&str, String)]) -> DynamicMessage {
    let mut message = DynamicMessage::new(method.input());
    for (name, value) in values {
        message.set_field_by_name(name, Value::String(value.clone()));
    }
    message
}

/// Returns the query's parameters, decoded and in order.
pub fn pairs(uri: &Uri) -> Result<Vec<(String, String)>, Error> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
    pairs.map(|Query(pairs)| pairs).map_err(|error| {
        Error::RequestInvalid(vec![Refusal {
            place: Place::Parameter(String::new()),
            rule: error.body_text(),
        }])
    })
}

fn is_json(kind: &str) -> bool {
    kind.is_empty() || kind == "application/json" || kind.ends_with("+json")
}

/// Calls an RPC as this caller.
pub async fn unary(
    gateway: &Gateway,
    method: &'static Method,
    caller: &Caller,
    message: DynamicMessage,
) -> Result<DynamicMessage, Error> {
    let limit = gateway.config.request_timeout;
    let mut request = sealed(gateway, caller, message);
    request.set_timeout(limit);
    let mut client = client(gateway, method);
    let calling = async {
        client.ready().await.map_err(ready_failed)?;
        let path = method
            .path
            .parse()
            .expect("invariant: a path of the contract");
        client
            .unary(request, path, Json::new(method.output()))
            .await
    };
    let timeout = || Error::ServiceTimeout {
        service: method.owner,
        limit,
    };
    let answer = tokio::time::timeout(limit, calling);
    let answer = answer.await.map_err(|_| timeout())?;
    match answer.map_err(|status| unavailable_or(status, method.owner)) {
        Ok(answer) => Ok(answer.into_inner()),
        Err(Error::ServiceTimeout { .. }) => Err(timeout()),
        Err(error) => Err(error),
    }
}

/// Calls an RPC that answers with a stream.
pub async fn server_streaming(
    gateway: &Gateway,
    method: &'static Method,
    caller: &Caller,
    message: DynamicMessage,
) -> Result<tonic::Streaming<DynamicMessage>, Error> {
    let request = sealed(gateway, caller, message);
    let mut client = client(gateway, method);
    let calling = async {
        client.ready().await.map_err(ready_failed)?;
        let path = method
            .path
            .parse()
            .expect("invariant: a path of the contract");
        let codec = Json::new(method.output());
        client.server_streaming(request, path, codec).await
    };
    let answer = calling.await;
    let answer = answer.map_err(|status| unavailable_or(status, method.owner))?;
    Ok(answer.into_inner())
}

fn client(gateway: &Gateway, method: &Method) -> Grpc<kit::service::Channel> {
    Grpc::new(gateway.channel(method.owner)).max_decoding_message_size(ANSWER_BYTES_MAX)
}

fn ready_failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Status {
    Status::from_error(error.into())
}

fn sealed(
    gateway: &Gateway,
    caller: &Caller,
    message: DynamicMessage,
) -> tonic::Request<DynamicMessage> {
    let mut request = tonic::Request::new(message);
    let identity = gateway.signed(caller.identity());
    let identity = tonic::metadata::MetadataValue::try_from(identity.as_bytes())
        .expect("invariant: a token is base64 and dots");
    request.metadata_mut().insert(IDENTITY, identity);
    request
}

/// The codec of messages that are known by descriptor only.
struct Json {
    output: MessageDescriptor,
}

impl Json {
    fn new(output: MessageDescriptor) -> Self {
        Self { output }
    }
}

impl Codec for Json {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Outgoing;
    type Decoder = Incoming;

    fn encoder(&mut self) -> Outgoing {
        Outgoing
    }

    fn decoder(&mut self) -> Incoming {
        Incoming(self.output.clone())
    }
}

struct Outgoing;

impl Encoder for Outgoing {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(
        &mut self,
        message: DynamicMessage,
        target: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        let bytes = Bytes::from(message.encode_to_vec());
        target.put(bytes);
        Ok(())
    }
}

struct Incoming(MessageDescriptor);

impl Decoder for Incoming {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let bytes = source.copy_to_bytes(source.remaining());
        let message = DynamicMessage::decode(self.0.clone(), bytes);
        message
            .map(Some)
            .map_err(|error| kit::Fault::internal(error).into())
    }
}

//! A gateway with services behind it that a test answers for.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use gateway::contract::{Contract, Method};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kit::auth::{Identity, Principal, Role};
use kit::id::{Id, Workspace};
use kit::service::Context;
use kit::testing::{TestFleet, TestNats, wait_for};
use kit::{Fault, Kind};
use prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use serde_json::Value as Json;
use tokio::net::TcpListener;
use tonic::service::Routes;

/// Who holds which key.
pub const KEYS: [(&str, u8, Role); 7] = [
    ("fv_viewer", 1, Role::Viewer),
    ("fv_editor", 1, Role::Editor),
    ("fv_owner", 1, Role::Owner),
    ("fv_worker", 1, Role::Worker),
    ("fv_operator", 1, Role::Operator),
    ("fv_other", 2, Role::Owner),
    ("fs_session", 1, Role::Owner),
];
const BEHIND: [&str; 6] = [
    "accounts",
    "datasets",
    "projects",
    "billing",
    "scheduler",
    "inference",
];

const HANGS: &str = "HANGS";

/// A call that reached a service.
#[derive(Debug, Clone)]
pub struct Call {
    pub name: String,
    pub identity: Identity,
    pub message: DynamicMessage,
    pub headers: HeaderMap,
}

pub type Answers = Result<Vec<DynamicMessage>, Fault>;
type Answerer = Arc<dyn Fn(&Call) -> Answers + Send + Sync>;

/// The gateway under test and all around it.
pub struct World {
    pub address: SocketAddr,
    pub gateway: Context,
    pub fleet: TestFleet,
    pub calls: Arc<Mutex<Vec<Call>>>,
    contexts: Vec<Context>,
    pub nats: TestNats,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl World {
    /// Starts a gateway whose services answer every call with an empty message.
    pub async fn start() -> Self {
        Self::answering("", |call| Ok(vec![call.empty()])).await
    }

    /// Starts a gateway with more configuration, whose services answer as told.
    pub async fn answering(
        section: &str,
        answer: impl Fn(&Call) -> Answers + Send + Sync + 'static,
    ) -> Self {
        kit::bus::install_descriptors(proto::pool().clone());
        let nats = TestNats::start().await;
        let fleet = TestFleet::with(&nats, "sqlite", section);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let answer: Answerer = Arc::new(answer);
        let mut contexts = Vec::new();
        for service in BEHIND {
            let context = fleet.context(service).await;
            let fake = Fake {
                calls: calls.clone(),
                answer: answer.clone(),
            };
            let router = axum::Router::new().fallback(answer_call).with_state(fake);
            let serving = context.clone();
            tokio::spawn(async move {
                kit::service::serve_grpc(&serving, Routes::from(router), &[proto::DESCRIPTORS])
                    .await
                    .unwrap();
            });
            contexts.push(context);
        }
        let gateway = fleet.context(gateway::NAME).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(gateway::serve_on(gateway.clone(), listener));
        let world = Self {
            address,
            gateway,
            fleet,
            calls,
            contexts,
            nats,
        };
        wait_for("services answer", || async {
            let answer = world.get("/v1/self", "fv_viewer").await;
            (answer.status == StatusCode::OK).then_some(())
        })
        .await;
        for service in BEHIND {
            let address = world.fleet.config().fleet().listen.get(service).unwrap();
            wait_for("a service listens", || async {
                tokio::net::TcpStream::connect(address).await.ok()
            })
            .await;
        }
        world.forget();
        world
    }

    /// Returns the calls of one name that reached a service.
    pub fn calls(&self, name: &str) -> Vec<Call> {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.name == name)
            .cloned()
            .collect()
    }

    /// Stops one of the services behind the gateway.
    pub fn stop(&self, service: &str) {
        let context = self
            .contexts
            .iter()
            .find(|context| context.service() == service);
        context.unwrap().shutdown().cancel();
    }

    pub fn forget(&self) {
        self.calls.lock().unwrap().clear();
    }

    pub async fn get(&self, path: &str, key: &str) -> Answer {
        self.send(self.request("GET", path, key, "")).await
    }

    pub async fn post(&self, path: &str, key: &str, body: &str) -> Answer {
        self.send(self.request("POST", path, key, body.to_owned()))
            .await
    }

    /// Returns a request with a key, or with none where it is empty.
    pub fn request(
        &self,
        verb: &str,
        path: &str,
        key: &str,
        body: impl Into<Bytes>,
    ) -> Request<Full<Bytes>> {
        let mut request = Request::builder()
            .method(verb)
            .uri(format!("http://{}{path}", self.address));
        if !key.is_empty() {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        if matches!(verb, "POST" | "PATCH") {
            request = request.header("content-type", "application/json");
        }
        request.body(Full::new(body.into())).unwrap()
    }

    /// Sends by HTTP/1.1.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        Answer {
            status: head.status,
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    /// Sends by HTTP/2 without TLS.
    pub async fn send_h2(&self, request: Request<Full<Bytes>>) -> Answer {
        let client = Client::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http();
        let (head, body) = client.request(request).await.unwrap().into_parts();
        assert_eq!(head.version, http::Version::HTTP_2);
        Answer {
            status: head.status,
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.gateway.shutdown().cancel();
        for context in &self.contexts {
            context.shutdown().cancel();
        }
    }
}

impl Answer {
    pub fn json(&self) -> Json {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.body)))
    }

    /// Returns the reason of a problem document.
    pub fn reason(&self) -> String {
        let kind = self.header("content-type");
        assert_eq!(kind, "application/problem+json", "{}", self.text());
        let document = self.json();
        assert_eq!(document["status"], self.status.as_u16());
        document["reason"].as_str().unwrap().to_owned()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> String {
        let value = self.headers.get(name);
        value.map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
    }
}

impl Call {
    /// Returns an empty answer to this call.
    pub fn empty(&self) -> DynamicMessage {
        DynamicMessage::new(self.method().output())
    }

    /// Returns the answer to this call that this JSON describes.
    pub fn json(&self, json: Json) -> DynamicMessage {
        gateway::http::json::read(&self.method().output(), &json).unwrap()
    }

    fn method(&self) -> &'static Method {
        let mut methods = Contract::get().methods().iter();
        methods
            .find(|method| method.descriptor.name() == self.name)
            .unwrap()
    }

    /// Returns a text field of the request.
    pub fn text(&self, field: &str) -> String {
        let value = self.message.get_field_by_name(field);
        value.unwrap().as_str().unwrap().to_owned()
    }
}

pub fn workspace(number: u8) -> Id<Workspace> {
    Id::from_bytes([number; 16])
}

pub fn not_found() -> Fault {
    Fault::new(
        Kind::NotFound,
        "RUN_NOT_FOUND",
        "runs",
        "there is no such run",
    )
    .violation("run_id", "names no run")
}

/// Returns what makes a service take a call and never answer it.
pub fn hang() -> Fault {
    Fault::new(Kind::Internal, HANGS, "test", "hangs")
}

#[derive(Clone)]
struct Fake {
    calls: Arc<Mutex<Vec<Call>>>,
    answer: Answerer,
}

/// Answers any RPC of the contract; `Authenticate` and the sessions as `accounts` does.
async fn answer_call(State(fake): State<Fake>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let method = Contract::get().rpc(head.uri.path()).unwrap();
    // Put there by the layer that verifies, which every service has.
    let identity = head.extensions.get::<Identity>().cloned().unwrap();
    let frame = body.collect().await.unwrap().to_bytes();
    let message = DynamicMessage::decode(method.input(), frame.slice(5..)).unwrap();
    let call = Call {
        name: method.descriptor.name().to_owned(),
        identity,
        message,
        headers: head.headers,
    };
    fake.calls.lock().unwrap().push(call.clone());
    let answers = match call.name.as_str() {
        "Authenticate" | "CreateSession" | "EndSession" => accounts(&call),
        _ => (fake.answer)(&call),
    };
    match answers {
        Err(fault) if fault.is(HANGS) => std::future::pending().await,
        Err(fault) => tonic::Status::from(fault).into_http(),
        Ok(messages) => {
            let frames = messages
                .into_iter()
                .map(|message| Ok(Frame::data(framed(&message))));
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            trailers.insert("x-from-service", "yes".parse().unwrap());
            let end = std::iter::once(Ok::<_, tonic::Status>(Frame::trailers(trailers)));
            let body = StreamBody::new(futures::stream::iter(frames.chain(end)));
            Response::builder()
                .header("content-type", "application/grpc")
                .body(Body::new(body))
                .unwrap()
        }
    }
}

fn framed(message: &DynamicMessage) -> Bytes {
    let bytes = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(bytes.len() + 5);
    frame.put_u8(0);
    frame.put_u32(bytes.len() as u32);
    frame.put_slice(&bytes);
    frame.freeze()
}

fn accounts(call: &Call) -> Answers {
    assert_eq!(
        call.identity.principal,
        Principal::Service("gateway".into())
    );
    let refuse = || {
        Fault::new(
            Kind::Unauthenticated,
            "SECRET_UNKNOWN",
            "accounts",
            "unknown",
        )
    };
    match call.name.as_str() {
        "Authenticate" => {
            let secret = call.text("secret");
            let (_, number, role) = KEYS
                .iter()
                .find(|(key, ..)| *key == secret)
                .ok_or_else(refuse)?;
            Ok(vec![call.json(serde_json::json!({
                "workspace_id": workspace(*number).to_string(),
                "principal": Id::<kit::id::Key>::from_bytes([9; 16]).to_string(),
                "role": format!("ROLE_{}", role.name().to_ascii_uppercase()),
            }))])
        }
        "CreateSession" => {
            let is_known =
                call.text("key_secret") == "fv_owner" || call.text("sign_in_token") == "token";
            if !is_known {
                return Err(refuse());
            }
            let json = serde_json::json!({"session_secret": "fs_session", "max_age_seconds": 60});
            Ok(vec![call.json(json)])
        }
        _ => Ok(vec![call.empty()]),
    }
}

/// Returns a scalar of a dynamic message as text, for assertions.
pub fn field(message: &DynamicMessage, name: &str) -> String {
    assert!(
        message.descriptor().get_field_by_name(name).is_some(),
        "{name}"
    );
    match message.get_field_by_name(name).unwrap().into_owned() {
        Value::String(text) => text,
        other => format!("{other:?}"),
    }
}

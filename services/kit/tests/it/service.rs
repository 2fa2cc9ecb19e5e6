//! A service that serves: identities on the wire, faults that survive it, ports, health.

use std::convert::Infallible;
use std::task::{Context as Waker, Poll};

use futures::future::BoxFuture;
use kit::auth::{self, Identity, Principal, Role};
use kit::fault::Kind;
use kit::service::{Channel, Context, Tasks};
use kit::testing::{TestFleet, TestNats, wait_for};
use kit::{Fault, Id};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::facts::{ThingHappened, happened};

const METHOD: &str = "/fovea.tests.v1.ThingService/Happen";

/// Answers who called, or the fault that it was asked for: what a generated server does.
#[derive(Clone)]
struct ThingService;

impl NamedService for ThingService {
    const NAME: &'static str = "fovea.tests.v1.ThingService";
}

impl UnaryService<ThingHappened> for ThingService {
    type Response = ThingHappened;
    type Future = BoxFuture<'static, Result<Response<ThingHappened>, Status>>;

    fn call(&mut self, request: Request<ThingHappened>) -> Self::Future {
        let caller = auth::caller(&request);
        let message = request.into_inner();
        Box::pin(async move {
            let caller = caller?;
            if message.thing_id == "poor" {
                let fault = Fault::new(Kind::Precondition, "BALANCE_TOO_LOW", "billing", "poor");
                return Err(fault.with("needed", message.count).into());
            }
            caller.require(Role::Editor)?;
            Ok(Response::new(happened(
                &caller.principal().to_string(),
                message.count,
            )))
        })
    }
}

impl tower::Service<http::Request<Body>> for ThingService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Waker<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(ThingService, request).await)
        })
    }
}

pub fn serve(context: &Context) -> tokio::task::JoinHandle<Result<(), Fault>> {
    let context = context.clone();
    tokio::spawn(async move {
        let routes = Routes::new(ThingService);
        kit::service::serve_grpc(&context, routes, &[]).await
    })
}

pub async fn call<S>(channel: S, request: Request<ThingHappened>) -> Result<ThingHappened, Fault>
where
    S: tonic::client::GrpcService<Body>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut client = Client::new(channel);
    client
        .ready()
        .await
        .map_err(|error| Fault::internal(error.into()))?;
    let method = http::uri::PathAndQuery::from_static(METHOD);
    let codec = ProstCodec::default();
    let answer = client
        .unary::<ThingHappened, ThingHappened, _>(request, method, codec)
        .await?;
    Ok(answer.into_inner())
}

pub async fn until_served(channel: &Channel) {
    wait_for("the service answers", || async {
        let answer = call(channel.clone(), Request::new(happened("x", 1))).await;
        answer.is_ok().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_calls_another_for_itself_and_for_somebody() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let (billing, projects) = (
        fleet.context("billing").await,
        fleet.context("projects").await,
    );
    serve(&billing);
    let channel = projects.channel("billing").unwrap();
    until_served(&channel).await;

    let own = call(channel.clone(), Request::new(happened("x", 5)))
        .await
        .unwrap();
    assert_eq!(own, happened("service:projects", 5));

    let user = Id::new(fleet.clock().now());
    let member = |role| {
        let workspace = Id::new(fleet.clock().now());
        auth::Caller::new(Identity::member(workspace, Principal::User(user), role))
    };
    let request = auth::act_for(&member(Role::Editor), happened("x", 5));
    assert_eq!(
        call(channel.clone(), request).await.unwrap(),
        happened(&user.to_string(), 5)
    );
    let request = auth::act_for(&member(Role::Viewer), happened("x", 5));
    assert!(
        call(channel.clone(), request)
            .await
            .unwrap_err()
            .is("ROLE_TOO_LOW")
    );

    let fault = call(channel, Request::new(happened("poor", 9)))
        .await
        .unwrap_err();
    assert!(fault.is("BALANCE_TOO_LOW"));
    assert_eq!(fault.metadata["needed"], "9");
    billing.shutdown().cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_an_identity_is_refused_and_health_needs_none() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let billing = fleet.context("billing").await;
    serve(&billing);
    until_served(&billing.channel("billing").unwrap()).await;

    let address = fleet.config().fleet().service_url("billing").unwrap();
    let plain = tonic::transport::Endpoint::from_shared(address)
        .unwrap()
        .connect_lazy();
    let fault = call(plain.clone(), Request::new(happened("x", 1)))
        .await
        .unwrap_err();
    assert!(fault.is("IDENTITY_MISSING"), "{fault:?}");

    let mut foreign = Request::new(happened("x", 1));
    let signer = auth::Signer::ephemeral(fleet.clock().clone());
    let token = signer.sign(&Identity::service("billing"));
    foreign
        .metadata_mut()
        .insert(auth::HEADER, token.parse().unwrap());
    let fault = call(plain.clone(), foreign).await.unwrap_err();
    assert!(fault.is("IDENTITY_INVALID"), "{fault:?}");

    let mut health = tonic_health::pb::health_client::HealthClient::new(plain);
    let answer = health
        .check(tonic_health::pb::HealthCheckRequest::default())
        .await
        .unwrap();
    assert_eq!(
        answer.into_inner().status(),
        tonic_health::ServingStatus::Serving.into()
    );
    billing.shutdown().cancel();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_finds_a_service_that_was_restarted() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let projects = fleet.context("projects").await;
    let channel = projects.channel("billing").unwrap();
    for _ in 0..2 {
        let billing = fleet.context("billing").await;
        let serving = serve(&billing);
        until_served(&channel).await;
        billing.shutdown().cancel();
        serving.await.unwrap().unwrap();
        let fault = call(channel.clone(), Request::new(happened("x", 1)))
            .await
            .unwrap_err();
        assert_eq!(fault.kind, Kind::Unavailable, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named_with_the_key_that_changes_it() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let billing = fleet.context("billing").await;
    let address = fleet.config().fleet().listen.get("billing").unwrap();
    let _taken = std::net::TcpListener::bind(address).unwrap();
    let fault = serve(&billing).await.unwrap().unwrap_err();
    assert!(fault.is("PORT_UNAVAILABLE"));
    for part in [
        &address.to_string(),
        "fleet.listen.billing",
        "FOVEA_FLEET__LISTEN__BILLING",
    ] {
        assert!(fault.message.contains(part), "{}", fault.message);
    }
}

pub async fn get(address: std::net::SocketAddr, path: &'static str) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
        .await
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_health_are_served() {
    let nats = TestNats::start().await;
    let fleet = TestFleet::new(&nats);
    let address = fleet.config().fleet().metrics.get("billing").unwrap();
    let stop = CancellationToken::new();
    let health = || Err("the bus is away".to_owned());
    tokio::spawn(kit::telemetry::serve_metrics(
        "billing",
        address,
        health,
        stop.clone(),
    ));
    let health = wait_for("health is served", || get(address, "/healthz")).await;
    assert!(
        health.starts_with("HTTP/1.0 503") && health.contains("the bus is away"),
        "{health}"
    );
    let metrics = wait_for("metrics are served", || get(address, "/metrics")).await;
    assert!(metrics.starts_with("HTTP/1.0 200"), "{metrics}");
    stop.cancel();
}

#[tokio::test]
async fn a_task_that_fails_stops_the_others() {
    let shutdown = CancellationToken::new();
    let mut tasks = Tasks::new(&shutdown);
    let stopped = shutdown.clone();
    tasks.spawn("steady", async move {
        stopped.cancelled().await;
        Ok(())
    });
    tasks.spawn("weak", async {
        Err(Fault::new(Kind::Internal, "WEAK", "tests", "it broke"))
    });
    assert!(tasks.run().await.unwrap_err().is("WEAK"));
    assert!(shutdown.is_cancelled());

    let shutdown = CancellationToken::new();
    let mut tasks = Tasks::new(&shutdown);
    tasks.spawn("short", async { Ok(()) });
    assert!(tasks.run().await.unwrap_err().is("TASK_ENDED"));

    let shutdown = CancellationToken::new();
    let mut tasks = Tasks::new(&shutdown);
    shutdown.cancel();
    tasks.spawn("told", async { Ok(()) });
    assert!(tasks.run().await.is_ok());
}

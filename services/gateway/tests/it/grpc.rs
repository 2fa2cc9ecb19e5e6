//! A real gRPC client through the door: unary, streaming, faults, trailers.

use kit::testing::wait_for;
use kit::{Fault, Kind};
use proto::fovea::runs::v1::run_service_client::RunServiceClient;
use proto::fovea::runs::v1::{FollowRunRequest, GetRunRequest};
use serde_json::json;
use tonic::Request;
use tonic::transport::Channel;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::support::{World, not_found, workspace};

async fn channel(world: &World) -> Channel {
    let address = format!("http://{}", world.address);
    Channel::from_shared(address)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

fn signed<T>(message: T, key: &str) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {key}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

#[tokio::test]
async fn a_unary_call_passes_with_its_message_its_faults_and_its_trailers() {
    let world = World::answering("", |call| match call.name.as_str() {
        "GetRun" if call.text("run_id") == "run_gone" => Err(not_found()),
        "GetRun" => Ok(vec![call.json(json!({"run": {"id": call.text("run_id")}}))]),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let mut client = RunServiceClient::new(channel(&world).await);
    let request = |id: &str| signed(GetRunRequest { run_id: id.into() }, "fv_viewer");
    let answer = client.get_run(request("run_1")).await.unwrap();
    assert_eq!(answer.metadata().get("x-from-service").unwrap(), "yes");
    assert_eq!(answer.into_inner().run.unwrap().id, "run_1");
    assert_eq!(
        world.calls("GetRun")[0].identity.workspace,
        Some(workspace(1))
    );

    let status = client.get_run(request("run_gone")).await.unwrap_err();
    let fault = Fault::from(status);
    assert_eq!(
        (fault.kind, fault.reason.as_ref()),
        (Kind::NotFound, "RUN_NOT_FOUND")
    );
    assert_eq!(fault.violations[0].field, "run_id");
}

#[tokio::test]
async fn a_server_stream_passes_message_by_message() {
    let world = World::answering("", |call| match call.name.as_str() {
        "FollowRun" => Ok((1..=1000)
            .map(|n| call.json(json!({"cursor": n, "log": {"message": format!("line {n}")}})))
            .collect()),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let mut client = RunServiceClient::new(channel(&world).await);
    let request = FollowRunRequest {
        run_id: "run_1".into(),
        cursor: 7,
    };
    let answer = client
        .follow_run(signed(request, "fv_viewer"))
        .await
        .unwrap();
    let mut stream = answer.into_inner();
    let mut cursors = Vec::new();
    while let Some(piece) = stream.message().await.unwrap() {
        cursors.push(piece.cursor);
    }
    assert_eq!(cursors, (1..=1000).collect::<Vec<_>>());
    let trailers = stream.trailers().await.unwrap().unwrap();
    assert_eq!(trailers.get("x-from-service").unwrap(), "yes");
}

#[tokio::test]
async fn a_service_that_is_away_is_unavailable_and_not_a_hang() {
    let world = World::start().await;
    world.stop("projects");
    let mut client = RunServiceClient::new(channel(&world).await);
    let fault = wait_for("the service is gone", || {
        let mut client = client.clone();
        async move {
            let request = GetRunRequest { run_id: "x".into() };
            client
                .get_run(signed(request, "fv_viewer"))
                .await
                .err()
                .map(Fault::from)
        }
    })
    .await;
    assert!(fault.is("SERVICE_UNAVAILABLE"), "{fault:?}");
    assert_eq!(fault.message, "the projects service does not answer");
    let request = GetRunRequest { run_id: "x".into() };
    assert!(client.get_run(signed(request, "fv_viewer")).await.is_err());
    let answer = world.get("/v1/runs/run_1", "fv_viewer").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (503, "SERVICE_UNAVAILABLE")
    );
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn reflection_describes_the_contract_to_tools() {
    let world = World::start().await;
    let mut client = ServerReflectionClient::new(channel(&world).await);
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let requests = futures::stream::once(async { request });
    let answer = client.server_reflection_info(requests).await.unwrap();
    let answer = answer.into_inner().message().await.unwrap().unwrap();
    assert!(format!("{answer:?}").contains("fovea.runs.v1.RunService"));
}

//! Streams of events: the caller's facts from real NATS, and a run's telemetry.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kit::bus::relay_once;
use kit::store::Store;
use kit::testing::PATIENCE;
use proto::fovea::events::v1::SubscribeRequest;
use proto::fovea::events::v1::event_service_client::EventServiceClient;
use proto::fovea::models::v1::ModelCreated;
use proto::fovea::runs::v1::{RunCancelled, RunPaused};
use serde_json::{Value, json};

use crate::support::{World, workspace};

/// Reads server-sent events as they come.
struct Events {
    body: Incoming,
    text: String,
}

#[derive(Debug, Default, PartialEq)]
struct Event {
    id: String,
    name: String,
    data: Value,
}

impl Events {
    async fn open(request: Request<Full<Bytes>>) -> Self {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let body = answer.into_body();
        Self {
            body,
            text: String::new(),
        }
    }

    /// Returns the next event that is no heartbeat, or none at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let event = self.next_of_any().await?;
            if event.name != "heartbeat" {
                return Some(event);
            }
        }
    }

    async fn next_of_any(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = parse(event);
                self.text = rest.to_owned();
                return Some(event);
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            let frame = frame.expect("an event in time")?.unwrap();
            if let Ok(data) = frame.into_data() {
                self.text.push_str(std::str::from_utf8(&data).unwrap());
            }
        }
    }
}

fn parse(text: &str) -> Event {
    let mut event = Event::default();
    for line in text.lines() {
        match line.split_once(": ").unwrap() {
            ("id", id) => event.id = id.to_owned(),
            ("event", name) => event.name = name.to_owned(),
            ("data", data) => event.data = serde_json::from_str(data).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    event
}

async fn store(world: &World) -> Store {
    world
        .fleet
        .context("projects")
        .await
        .open_store(&[])
        .await
        .unwrap()
}

/// Tells one fact of each kind, in both workspaces, and has them relayed.
async fn tell(world: &World, store: &Store, run: &str) {
    let written = store.write(|tx| async move {
        for number in [2, 1] {
            let run_id = format!("{run}_of_{number}");
            let paused = RunPaused {
                run_id: run_id.clone(),
                cause: "user".into(),
                committed: None,
            };
            tx.tell(Some(workspace(number)), &run_id, &paused).await?;
            let cancelled = RunCancelled {
                run_id: run_id.clone(),
                committed: None,
            };
            tx.tell(Some(workspace(number)), &run_id, &cancelled)
                .await?;
        }
        Ok::<_, kit::store::Error>(())
    });
    written.await.unwrap();
    while relay_once(world.gateway.bus(), store).await.unwrap() > 0 {}
}

#[tokio::test]
async fn facts_of_ones_own_workspace_come_by_sse_and_go_on_from_a_cursor() {
    let world = World::start().await;
    let store = store(&world).await;
    tell(&world, &store, "first").await;
    let path = "/v1/events?types=fovea.runs.&after_sequence=0";
    let mut events = Events::open(world.request("GET", path, "fv_viewer", "")).await;
    let first = events.next().await.unwrap();
    assert_eq!(first.name, "");
    assert_eq!(first.data["type"], "fovea.runs.v1.RunPaused");
    assert_eq!(first.data["subject"], "first_of_1");
    assert_eq!(first.data["data"]["cause"], "user");
    assert_eq!(first.data["specversion"], "1.0");
    let second = events.next().await.unwrap();
    assert_eq!(second.data["type"], "fovea.runs.v1.RunCancelled");
    // Nothing of the other workspace has come, and what comes later is there as well.
    tell(&world, &store, "second").await;
    assert_eq!(events.next().await.unwrap().data["subject"], "second_of_1");

    let mut request = world.request("GET", "/v1/events", "fv_viewer", "");
    request
        .headers_mut()
        .insert("last-event-id", first.id.parse().unwrap());
    let mut again = Events::open(request).await;
    assert_eq!(again.next().await.unwrap(), second);
    let answer = world.get("/v1/events?after_sequence=x", "fv_viewer").await;
    assert_eq!(answer.reason(), "CURSOR_INVALID");
}

#[tokio::test]
async fn facts_come_by_grpc_too_filtered_by_type() {
    let world = World::start().await;
    let store = store(&world).await;
    tell(&world, &store, "first").await;
    let address = format!("http://{}", world.address);
    let mut client = EventServiceClient::connect(address).await.unwrap();
    let subscribe = |types: &[&str], after_sequence| {
        let mut request = tonic::Request::new(SubscribeRequest {
            types: types.iter().map(|name| (*name).to_owned()).collect(),
            after_sequence,
        });
        let key = "Bearer fv_other".parse().unwrap();
        request.metadata_mut().insert("authorization", key);
        request
    };
    let request = subscribe(&["fovea.runs.v1.RunCancelled"], 1);
    let mut facts = client.subscribe(request).await.unwrap().into_inner();
    let fact = facts.message().await.unwrap().unwrap();
    assert_eq!(fact.r#type, "fovea.runs.v1.RunCancelled");
    assert_eq!(fact.subject, "first_of_2");
    assert!(fact.sequence > 1);
    let event: Value = serde_json::from_slice(&fact.event).unwrap();
    assert_eq!(event["workspace"], workspace(2).to_string());
    assert_eq!(event["data"]["run_id"], "first_of_2");
}

#[tokio::test]
async fn a_workspace_holds_no_more_streams_than_its_share() {
    let section = "[gateway]\nstreams_per_workspace = 2";
    let world = World::answering(section, |call| Ok(vec![call.empty()])).await;
    let open = |key| Events::open(world.request("GET", "/v1/events", key, ""));
    let first = open("fv_viewer").await;
    let _second = open("fv_owner").await;
    let answer = world.get("/v1/events", "fv_viewer").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (429, "TOO_MANY_STREAMS")
    );
    let _other = open("fv_other").await;
    drop(first);
    kit::testing::wait_for("the place of a reader that left is free", || async {
        let request = world.request("GET", "/v1/events", "fv_viewer", "");
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request).await.unwrap();
        answer.status().is_success().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_run_is_followed_by_sse_with_its_cursor_and_its_end() {
    let world = World::answering("", |call| match call.name.as_str() {
        "FollowRun" if call.text("run_id") == "run_gone" => Err(crate::support::not_found()),
        "FollowRun" => Ok(vec![
            call.json(
                json!({"cursor": 5, "metrics": {"step": 1, "values": {"train/box_loss": 1.5}}}),
            ),
            call.json(json!({"cursor": 6, "log": {"level": "info", "message": "epoch\n1"}})),
            call.json(json!({"cursor": 7, "sample": {"cpu_utilization": 0.5}})),
            call.json(json!({"cursor": 8, "progress": {"epoch": 1, "epochs": 3}})),
            call.json(json!({"cursor": 9, "run": {"id": "run_1", "state": "RUN_STATE_COMPLETED"}})),
        ]),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let mut request = world.request("GET", "/v1/runs/run_1/live?cursor=1", "fv_viewer", "");
    request
        .headers_mut()
        .insert("last-event-id", "4".parse().unwrap());
    let mut events = Events::open(request).await;
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(event);
    }
    let names: Vec<_> = seen
        .iter()
        .map(|e| (e.id.as_str(), e.name.as_str()))
        .collect();
    let expected = [
        ("5", "metrics"),
        ("6", "log"),
        ("7", "sample"),
        ("8", "progress"),
        ("9", "run"),
        ("", "end"),
    ];
    assert_eq!(names, expected);
    assert_eq!(seen[0].data["values"]["train/box_loss"], 1.5);
    assert_eq!(seen[1].data["message"], "epoch\n1");
    let call = &world.calls("FollowRun")[0];
    assert_eq!(crate::support::field(&call.message, "cursor"), "I64(4)");
    assert_eq!(call.identity.workspace, Some(workspace(1)));
    let answer = world.get("/v1/runs/run_gone/live", "fv_viewer").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (404, "RUN_NOT_FOUND")
    );
}

#[tokio::test]
async fn a_quiet_stream_says_that_it_is_alive() {
    let section = "[gateway]\nheartbeat = '20ms'";
    let world = World::answering(section, |call| Ok(vec![call.empty()])).await;
    let mut events = Events::open(world.request("GET", "/v1/events", "fv_viewer", "")).await;
    for _ in 0..3 {
        assert_eq!(events.next_of_any().await.unwrap().name, "heartbeat");
    }
}

#[tokio::test]
async fn streams_end_when_the_gateway_stops_and_survive_a_restart_of_nats() {
    let mut world = World::start().await;
    let store = store(&world).await;
    let mut events = Events::open(world.request("GET", "/v1/events", "fv_viewer", "")).await;
    assert_eq!(events.next_of_any().await.unwrap().name, "heartbeat");
    tell(&world, &store, "first").await;
    assert_eq!(events.next().await.unwrap().data["subject"], "first_of_1");
    assert_eq!(events.next().await.unwrap().data["subject"], "first_of_1");
    world.nats.restart().await;
    let written = store.write(|tx| async move {
        let created = ModelCreated {
            model_id: "mdl_1".into(),
            ..ModelCreated::default()
        };
        tx.tell(Some(workspace(1)), "mdl_1", &created).await
    });
    written.await.unwrap();
    kit::testing::wait_for("the fact is relayed", || async {
        relay_once(world.gateway.bus(), &store)
            .await
            .ok()
            .filter(|count| *count > 0)
    })
    .await;
    assert_eq!(events.next().await.unwrap().data["subject"], "mdl_1");
    world.gateway.shutdown().cancel();
    let end = tokio::time::timeout(Duration::from_secs(9), events.next()).await;
    assert_eq!(end.expect("the stream ends with the gateway"), None);
}

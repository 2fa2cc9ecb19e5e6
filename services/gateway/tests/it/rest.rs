//! REST: what the transcoder makes of paths, queries and bodies, and of refusals.

use http::StatusCode;
use prost_reflect::ReflectMessage;
use serde_json::json;

use crate::support::{World, field, hang, not_found};

#[tokio::test]
async fn a_call_is_the_same_by_http_1_and_2() {
    let world = World::answering("", |call| match call.name.as_str() {
        "GetRun" => Ok(vec![call.json(json!({"run": {
            "id": call.text("run_id"), "price_per_hour_micros": "360000", "state": "RUN_STATE_TRAINING",
            "committed": "90.500s", "created_at": "2026-01-01T00:00:00Z", "metrics": {"a/b": 0.5},
        }}))]),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let path = "/v1/runs/run%5F1";
    let first = world.get(path, "fv_viewer").await;
    let second = world
        .send_h2(world.request("GET", path, "fv_viewer", ""))
        .await;
    assert_eq!(first.json(), second.json());
    let run = &first.json()["run"];
    assert_eq!(run["id"], "run_1");
    assert_eq!(run["price_per_hour_micros"], "360000");
    assert_eq!(run["state"], "RUN_STATE_TRAINING");
    assert_eq!(run["committed"], "90.500s");
    assert_eq!(run["epochs_done"], 0);
    assert_eq!(run["metrics"], json!({"a/b": 0.5}));
    assert_eq!(first.header("content-type"), "application/json");
    assert_eq!(first.header("x-content-type-options"), "nosniff");
}

#[tokio::test]
async fn paths_queries_and_bodies_fill_the_request() {
    let world = World::start().await;
    let path = "/v1/versions/dsv_1/images?split=SPLIT_VAL&page_size=5&page_token=a%26b";
    let answer = world.get(path, "fv_viewer").await;
    assert_eq!(answer.json(), json!({"images": [], "next_page_token": ""}));
    let call = &world.calls("ListImages")[0];
    assert_eq!(field(&call.message, "version_id"), "dsv_1");
    assert_eq!(field(&call.message, "page_token"), "a&b");
    assert_eq!(field(&call.message, "page_size"), "I32(5)");
    assert_eq!(field(&call.message, "split"), "EnumNumber(2)");

    let answer = world
        .get("/v1/runs:compare?run_ids=a&run_ids=b", "fv_viewer")
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    let call = &world.calls("CompareRuns")[0];
    let field = call
        .message
        .descriptor()
        .get_field_by_name("run_ids")
        .unwrap();
    assert_eq!(call.message.get_field(&field).as_list().unwrap().len(), 2);

    let answer = world
        .post("/v1/runs/run_1:stop", "fv_editor", r#"{"pause": true}"#)
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let call = &world.calls("StopRun")[0];
    assert_eq!(call.text("run_id"), "run_1");
    assert_eq!(crate::support::field(&call.message, "pause"), "Bool(true)");

    let answer = world.post("/v1/runs/run_2:resume", "fv_editor", "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(world.calls("ResumeRun")[0].text("run_id"), "run_2");

    let request = world.request("DELETE", "/v1/datasets/ds_1", "fv_editor", "");
    assert_eq!(world.send(request).await.json(), json!({}));
}

#[tokio::test]
async fn what_is_wrong_is_named_with_its_place_and_reaches_no_service() {
    let world = World::start().await;
    world.forget();
    let body = r#"{"version": "x", "spec": {"epochs": "many"}}"#;
    let answer = world.post("/v1/runs", "fv_editor", body).await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (400, "REQUEST_INVALID")
    );
    let document = answer.json();
    assert_eq!(document["type"], "/errors/request-invalid");
    assert_eq!(document["title"], "Invalid request");
    assert_eq!(document["domain"], "gateway");
    assert_eq!(
        document["errors"],
        json!([
            {"pointer": "/spec/epochs", "detail": "'many' is not a whole number of 32 bits"},
            {"pointer": "/version", "detail": "is no field of StartRunRequest"},
        ])
    );
    let answer = world.get("/v1/runs?pages=1", "fv_viewer").await;
    assert_eq!(answer.json()["errors"][0]["parameter"], "pages");
    let answer = world.post("/v1/runs", "fv_editor", "{\n \"spec\": }").await;
    assert_eq!(answer.reason(), "BODY_MALFORMED");
    assert!(
        answer.text().contains("line 2 column 10"),
        "{}",
        answer.text()
    );
    let answer = world
        .post("/v1/runs/a:stop", "fv_editor", r#"{"run_id": "b"}"#)
        .await;
    assert_eq!(answer.json()["errors"][0]["pointer"], "/run_id");
    let mut request = world.request("POST", "/v1/runs", "fv_editor", "a=b");
    let form = "application/x-www-form-urlencoded".parse().unwrap();
    request.headers_mut().insert("content-type", form);
    let answer = world.send(request).await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (415, "MEDIA_TYPE_UNSUPPORTED")
    );
    let large = format!(r#"{{"name": "{}"}}"#, "x".repeat(5 << 20));
    let answer = world.post("/v1/runs", "fv_editor", &large).await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (413, "BODY_TOO_LARGE")
    );
    assert!(world.calls("StartRun").is_empty() && world.calls("ListRuns").is_empty());
}

#[tokio::test]
async fn a_services_refusal_arrives_whole_as_a_problem_document() {
    let world = World::answering("", |call| match call.name.as_str() {
        "GetRun" => Err(not_found()),
        "GetModel" => Err(kit::Fault::internal("password=hunter2")),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let answer = world.get("/v1/runs/run_1", "fv_viewer").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (404, "RUN_NOT_FOUND")
    );
    let document = answer.json();
    assert_eq!(document["type"], "/errors/run-not-found");
    assert_eq!(document["detail"], "there is no such run");
    assert_eq!(document["domain"], "runs");
    assert_eq!(
        document["errors"],
        json!([{"pointer": "/run_id", "detail": "names no run"}])
    );
    let answer = world.get("/v1/models/mdl_1", "fv_viewer").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (500, "INTERNAL")
    );
    assert!(!answer.text().contains("hunter2"));
}

#[tokio::test]
async fn a_call_that_takes_too_long_times_out_and_says_so() {
    let section = "[gateway]\nrequest_timeout = '500ms'";
    let world = World::answering(section, |call| match call.name.as_str() {
        "GetRun" => Err(hang()),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let answer = world.get("/v1/runs/run_1", "fv_viewer").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (504, "SERVICE_TIMEOUT")
    );
}

#[tokio::test]
async fn predict_takes_the_picture_itself() {
    let world = World::answering("", |call| match call.name.as_str() {
        "Predict" => Ok(vec![
            call.json(json!({"detections": [{"class_name": "RBC"}]})),
        ]),
        _ => Ok(vec![call.empty()]),
    })
    .await;
    let path = "/v1/endpoints/cells:predict?confidence=0.5&max_detections=3";
    let picture = b"\x89PNG and so on".to_vec();
    let mut request = world.request("POST", path, "fv_viewer", picture.clone());
    request
        .headers_mut()
        .insert("content-type", "image/png".parse().unwrap());
    let answer = world.send(request).await;
    assert_eq!(answer.json()["detections"][0]["class_name"], "RBC");
    let call = &world.calls("Predict")[0];
    assert_eq!(call.text("endpoint_id"), "cells");
    assert_eq!(field(&call.message, "confidence"), "F32(0.5)");
    assert_eq!(field(&call.message, "max_detections"), "I32(3)");
    let image = call.message.get_field_by_name("image").unwrap();
    assert_eq!(image.as_bytes().unwrap().as_ref(), picture);

    let json = r#"{"image": "iVBORw==", "iou": 0.7}"#;
    let answer = world
        .post("/v1/endpoints/cells:predict", "fv_viewer", json)
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let image = world.calls("Predict")[1]
        .message
        .get_field_by_name("image")
        .unwrap()
        .into_owned();
    assert_eq!(image.as_bytes().unwrap().as_ref(), b"\x89PNG");
    let answer = world.post(path, "fv_viewer", json).await;
    assert_eq!(answer.json()["errors"][0]["parameter"], "confidence");
}

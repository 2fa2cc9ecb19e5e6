//! Uploads in parts: stored as blobs of the caller's workspace, recorded in order, resumable.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use kit::auth::Role;
use kit::blobs::BlobKey;
use serde_json::{Value, json};

use crate::support::{World, workspace};

const SIZE: u64 = 10;

/// A world whose `datasets` knows the upload `up_1` of ten bytes.
async fn world(section: &str) -> (World, Arc<Mutex<u64>>) {
    let received = Arc::new(Mutex::new(0));
    let known = received.clone();
    let world = World::answering(section, move |call| {
        let mut received = known.lock().unwrap();
        let upload = |received: u64| -> Value {
            json!({"upload": {"id": "up_1", "size_bytes": SIZE, "received_bytes": received}})
        };
        match call.name.as_str() {
            "GetUpload" if call.text("upload_id") == "up_1" => {
                Ok(vec![call.json(upload(*received))])
            }
            "GetUpload" => Err(crate::support::not_found()),
            "RecordUploadPart" => {
                let size = call.message.get_field_by_name("size_bytes").unwrap();
                *received += size.as_i64().unwrap() as u64;
                Ok(vec![call.json(upload(*received))])
            }
            _ => Ok(vec![call.empty()]),
        }
    })
    .await;
    (world, received)
}

fn part(world: &World, key: &str, range: &str, body: &'static [u8]) -> Request<Full<Bytes>> {
    let mut request = world.request("PUT", "/v1/uploads/up_1", key, body);
    if !range.is_empty() {
        request
            .headers_mut()
            .insert("content-range", range.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn parts_become_blobs_of_the_workspace_and_are_recorded_in_order() {
    let (world, _) = world("").await;
    let answer = world
        .send(part(&world, "fv_editor", "bytes 0-5/10", b"hello "))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(answer.json()["upload"]["received_bytes"], "6");
    assert_eq!(answer.header("upload-offset"), "6");

    let request = world.request("HEAD", "/v1/uploads/up_1", "fv_viewer", "");
    let head = world.send(request).await;
    assert_eq!(
        (head.header("upload-offset"), head.header("upload-length")),
        ("6".into(), "10".into())
    );
    let get = world.get("/v1/uploads/up_1", "fv_viewer").await;
    assert_eq!(get.json()["upload"]["received_bytes"], "6");

    let answer = world
        .send(part(&world, "fv_editor", "bytes 6-9/10", b"you!"))
        .await;
    assert_eq!(answer.header("upload-offset"), "10");
    let recorded = world.calls("RecordUploadPart");
    for (call, bytes) in recorded.iter().zip([b"hello ".as_slice(), b"you!"]) {
        let hash = blake3::hash(bytes);
        assert_eq!(call.text("digest"), hash.to_hex().as_str());
        assert_eq!(call.identity.role, Role::Service);
        let party = call.identity.on_behalf_of.as_ref().unwrap();
        assert_eq!(party.workspace, Some(workspace(1)));
        let key = BlobKey::new("datasets", workspace(1), hash);
        assert_eq!(
            &world.gateway.blobs().get(&key, 100).await.unwrap()[..],
            bytes
        );
    }
}

#[tokio::test]
async fn a_part_that_starts_elsewhere_is_told_where_to_go_on() {
    let (world, received) = world("").await;
    *received.lock().unwrap() = 4;
    for (range, body) in [("bytes 0-3/10", b"abcd"), ("bytes 6-9/10", b"abcd")] {
        let answer = world.send(part(&world, "fv_editor", range, body)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.reason().as_str()),
            (409, "OFFSET_MISMATCH")
        );
        assert_eq!(answer.header("upload-offset"), "4");
        assert_eq!(answer.json()["metadata"]["expected"], "4");
    }
    assert!(world.calls("RecordUploadPart").is_empty());
}

#[tokio::test]
async fn a_part_that_is_not_what_it_says_changes_nothing() {
    let (world, _) = world("[gateway]\npart_bytes_max = '8B'").await;
    for (range, reason) in [
        ("", "RANGE_INVALID"),
        ("bytes 0-3", "RANGE_INVALID"),
        ("bytes 0-4/10", "RANGE_INVALID"),
        ("bytes 0-3/11", "RANGE_INVALID"),
        ("bytes 0-8/10", "RANGE_INVALID"),
    ] {
        let answer = world.send(part(&world, "fv_editor", range, b"abcd")).await;
        assert_eq!(answer.reason(), reason, "{range}");
    }
    let answer = world
        .send(part(&world, "fv_editor", "bytes 0-8/10", b"abcdefghi"))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (413, "BODY_TOO_LARGE")
    );
    let answer = world
        .send(part(&world, "fv_viewer", "bytes 0-3/10", b"abcd"))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (403, "ROLE_TOO_LOW")
    );
    let mut request = part(&world, "fv_editor", "bytes 0-3/10", b"abcd");
    *request.uri_mut() = format!("http://{}/v1/uploads/up_2", world.address)
        .parse()
        .unwrap();
    assert_eq!(world.send(request).await.status, StatusCode::NOT_FOUND);
    assert!(world.calls("RecordUploadPart").is_empty());
}

#[tokio::test]
async fn a_part_that_ends_early_is_not_recorded() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (world, _) = world("").await;
    let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let head = "PUT /v1/uploads/up_1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer fv_editor\r\n\
                content-range: bytes 0-9/10\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(b"4\r\nabcd\r\n0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(
        answer.contains("BODY_INCOMPLETE") && answer.contains("4 of 10 bytes"),
        "{answer}"
    );
    assert!(world.calls("RecordUploadPart").is_empty());
}

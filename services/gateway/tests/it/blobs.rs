//! Blobs at signed addresses, on a real store.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use kit::blobs::BlobKey;

use crate::support::{World, workspace};

const HOUR: Duration = Duration::from_secs(3600);

fn with(
    world: &World,
    verb: &str,
    url: &str,
    header: (&'static str, &str),
) -> Request<Full<Bytes>> {
    let mut request = world.request(verb, url, "", "");
    request
        .headers_mut()
        .insert(header.0, header.1.parse().unwrap());
    request
}

async fn stored(world: &World, bytes: &'static [u8]) -> (BlobKey, String) {
    let blobs = world.gateway.blobs().of("datasets");
    let blob = blobs
        .put(workspace(1), Bytes::from_static(bytes))
        .await
        .unwrap();
    let url = blobs
        .sign_get(&blob.key, HOUR, world.gateway.now())
        .await
        .unwrap();
    (blob.key, url)
}

#[tokio::test]
async fn a_signed_address_gives_the_bytes_or_a_range_of_them() {
    let world = World::start().await;
    let (key, url) = stored(&world, b"\x89PNG and nothing else").await;
    let answer = world.get(&url, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    assert_eq!(&answer.body[..], b"\x89PNG and nothing else");
    let etag = format!("\"{}\"", key.hash().to_hex());
    assert_eq!(answer.header("etag"), etag);
    assert_eq!(answer.header("content-type"), "image/png");
    assert_eq!(
        answer.header("content-security-policy"),
        "default-src 'none'; sandbox"
    );

    let answer = world
        .send(with(&world, "GET", &url, ("range", "bytes=1-3")))
        .await;
    assert_eq!(answer.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(&answer.body[..], b"PNG");
    assert_eq!(answer.header("content-range"), "bytes 1-3/21");
    let answer = world
        .send(with(&world, "GET", &url, ("range", "bytes=99-")))
        .await;
    assert_eq!(answer.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(answer.header("content-range"), "bytes */21");
    let answer = world
        .send(with(&world, "GET", &url, ("if-none-match", &etag)))
        .await;
    assert_eq!(
        (answer.status, answer.body.len()),
        (StatusCode::NOT_MODIFIED, 0)
    );
    let answer = world.send(world.request("HEAD", &url, "", "")).await;
    assert_eq!(
        (answer.header("content-length").as_str(), answer.body.len()),
        ("21", 0)
    );
}

#[tokio::test]
async fn an_address_that_was_not_signed_or_has_ended_gives_nothing() {
    let world = World::start().await;
    let (key, url) = stored(&world, b"secret").await;
    for url in [
        format!("/v1/blobs/{key}"),
        url.replace("signature=", "signature=0"),
        url.replace(&workspace(1).to_string(), &workspace(2).to_string()),
        url.replace("datasets", "projects"),
    ] {
        for auth in ["", "fv_owner", "fv_operator"] {
            let answer = world.get(&url, auth).await;
            assert_eq!(answer.reason(), "URL_SIGNATURE_INVALID", "{url}");
            assert!(!answer.text().contains("secret"));
        }
    }
    world.fleet.clock().advance(HOUR + Duration::from_secs(1));
    let answer = world.get(&url, "").await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (403, "URL_EXPIRED")
    );
}

#[tokio::test]
async fn a_signed_put_stores_the_content_it_was_signed_for_and_no_other() {
    let world = World::start().await;
    let blobs = world.gateway.blobs();
    let bytes = Bytes::from_static(b"a checkpoint");
    let key = BlobKey::new("projects", workspace(1), blake3::hash(&bytes));
    let url = blobs
        .sign_put(&key, 20, HOUR, world.gateway.now())
        .await
        .unwrap();

    let answer = world
        .send(world.request("PUT", &url, "", "another one!"))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (400, "BODY_INCOMPLETE")
    );
    assert!(answer.text().contains("digest"), "{}", answer.text());
    let answer = world
        .send(world.request("PUT", &url, "", vec![0; 21]))
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.reason().as_str()),
        (413, "BODY_TOO_LARGE")
    );
    assert!(!blobs.exists(&key).await.unwrap());
    let other = BlobKey::new("projects", workspace(1), blake3::hash(b"another one!"));
    assert!(!blobs.exists(&other).await.unwrap());

    for _ in 0..2 {
        let answer = world
            .send(world.request("PUT", &url, "", bytes.clone()))
            .await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text());
    }
    assert_eq!(blobs.get(&key, 100).await.unwrap(), bytes);
    assert_eq!(world.get(&url, "").await.reason(), "URL_SIGNATURE_INVALID");
}

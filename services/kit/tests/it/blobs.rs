//! Blobs in a folder.

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use kit::auth::Signer;
use kit::blobs::Blobs;
use kit::config::Fleet;
use kit::{Clock, Kind};
use tempfile::TempDir;

use crate::facts::workspace;

fn open(folder: &TempDir) -> Blobs {
    let fleet = Fleet::default().in_folder(folder.path());
    Blobs::open(&fleet, "datasets", &Signer::ephemeral(Clock::system())).unwrap()
}

fn chunks(count: usize) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> + Send {
    stream::iter((0..count).map(|_| Ok(Bytes::from_static(&[7; 1000]))))
}

#[tokio::test]
async fn the_same_content_is_the_same_blob_however_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let (blobs, workspace) = (open(&folder), workspace());
    let streamed = blobs
        .put_stream(workspace, chunks(3000), 3_000_000)
        .await
        .unwrap();
    assert_eq!(streamed.size_bytes, 3_000_000);
    let bytes = blobs.get(&streamed.key, 3_000_000).await.unwrap();
    assert_eq!(blake3::hash(&bytes), streamed.key.hash());
    assert_eq!(blobs.put(workspace, bytes.clone()).await.unwrap(), streamed);
    let file = folder.path().join("copy");
    blobs.get_file(&streamed.key, &file).await.unwrap();
    assert_eq!(blobs.put_file(workspace, &file).await.unwrap(), streamed);
    assert_eq!(
        &blobs.get_range(&streamed.key, 10..14).await.unwrap()[..],
        [7; 4]
    );
    let parts: Vec<_> = blobs
        .get_stream(&streamed.key)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    assert_eq!(parts.concat(), bytes);
    assert_eq!(
        std::fs::read_dir(folder.path().join("run/drafts"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn a_stream_beyond_its_limit_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = open(&folder);
    let fault = blobs
        .put_stream(workspace(), chunks(10), 9999)
        .await
        .unwrap_err();
    assert!(fault.is("BLOB_TOO_LARGE"));
    assert_eq!(
        std::fs::read_dir(folder.path().join("blobs"))
            .unwrap()
            .count(),
        0
    );
    assert_eq!(
        std::fs::read_dir(folder.path().join("run/drafts"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test]
async fn a_clone_is_a_copy_that_lives_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let blobs = open(&folder);
    let (mine, yours) = (workspace(), workspace());
    let blob = blobs
        .put(mine, Bytes::from_static(b"picture"))
        .await
        .unwrap();
    let copy = blobs.copy(&blob, yours).await.unwrap();
    assert_eq!(copy.key.workspace(), yours);
    blobs.delete(&blob.key).await.unwrap();
    blobs.delete(&blob.key).await.unwrap();
    assert_eq!(
        blobs.get(&blob.key, 100).await.unwrap_err().kind,
        Kind::NotFound
    );
    assert_eq!(&blobs.get(&copy.key, 100).await.unwrap()[..], b"picture");
    let other = blobs
        .of("projects")
        .put(mine, Bytes::from_static(b"x"))
        .await
        .unwrap();
    assert_eq!(other.key.service(), "projects");
}

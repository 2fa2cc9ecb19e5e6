//! Which of our blobs are in use, and the protocol by which unused ones go.
//!
//! A blob is touched before its bytes are looked for, referred to when something that needs it is
//! recorded, and doomed before its bytes are removed. Each step takes the blob's row, so nobody
//! can start to use what is being removed; and what was touched lately is not removed at all.

use kit::id::{self, Id};
use kit::params;
use kit::store::{Error, Tx};
use kit::time::Timestamp;

/// Notes that somebody is about to bring or use a blob. Tells whether that is possible: not while
/// its bytes are being removed.
pub async fn touch_blob(
    tx: &Tx,
    workspace: Id<id::Workspace>,
    digest: &str,
) -> Result<bool, Error> {
    refer(tx, workspace, digest, 0).await
}

/// Counts one more thing that needs a blob. Tells whether that is possible.
pub async fn refer_blob(
    tx: &Tx,
    workspace: Id<id::Workspace>,
    digest: &str,
) -> Result<bool, Error> {
    refer(tx, workspace, digest, 1).await
}

async fn refer(
    tx: &Tx,
    workspace: Id<id::Workspace>,
    digest: &str,
    count: i64,
) -> Result<bool, Error> {
    let is_doomed: bool = tx
        .query_one(
            "insert into blobs (workspace_id, digest, reference_count, is_doomed, touched_at)
             values ($1, $2, $3, false, $4)
             on conflict (workspace_id, digest) do update set
                reference_count = blobs.reference_count + excluded.reference_count,
                touched_at = excluded.touched_at
             returning is_doomed",
            params![workspace, digest, count, tx.now()],
        )
        .await?;
    Ok(!is_doomed)
}

/// Counts one thing less that needs a blob.
pub async fn unrefer_blob(
    tx: &Tx,
    workspace: Id<id::Workspace>,
    digest: &str,
) -> Result<(), Error> {
    tx.execute(
        "update blobs set reference_count = reference_count - 1
         where workspace_id = $1 and digest = $2 and reference_count > 0",
        params![workspace, digest],
    )
    .await?;
    Ok(())
}

/// Dooms blobs that nothing has needed since `before`, and returns them with those that were
/// doomed by somebody who did not finish.
pub async fn doom_blobs(
    tx: &Tx,
    before: Timestamp,
    limit: i64,
) -> Result<Vec<(Id<id::Workspace>, String)>, Error> {
    tx.query_all(
        "update blobs set is_doomed = true
         where reference_count = 0 and touched_at < $1 and (workspace_id, digest) in (
            select workspace_id, digest from blobs
            where reference_count = 0 and touched_at < $1 order by touched_at limit $2)
         returning workspace_id, digest",
        params![before, limit],
    )
    .await
}

/// Forgets a doomed blob whose bytes are removed.
pub async fn blob_gone(tx: &Tx, workspace: Id<id::Workspace>, digest: &str) -> Result<(), Error> {
    let text = "delete from blobs where workspace_id = $1 and digest = $2 and is_doomed";
    tx.execute(text, params![workspace, digest]).await.map(drop)
}

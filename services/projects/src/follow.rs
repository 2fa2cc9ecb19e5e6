//! Following a run: what is stored after the cursor, then what comes, until the run ends.
//!
//! A run counts everything that happens to it, and a piece's cursor is its place in that count.
//! Places are committed in their order, so a follower that reads up to the newest place it knows
//! of has all before it: it loses nothing and repeats nothing, whatever restarts. Being told of a
//! change only makes it look sooner. Progress is not stored and has no place of its own.

use std::time::Duration;

use kit::id::{self, Id};
use kit::time::Timestamp;
use prost::Message;
use proto::fovea::runs::v1::FollowRunResponse;
use proto::fovea::runs::v1::follow_run_response::Content;
use proto::fovea::telemetry::v1::Progress;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::commands::{METRICS, Projects, SAMPLES, progress_key};
use crate::domain::{Attempt, Run};
use crate::error::Error;
use crate::grpc::{host_sample, line_message, metric_batch, run_message};
use crate::store;

/// Pieces that may wait for a slow reader.
const PIECES_MAX: usize = 64;
/// How often a follower looks without having been told of a change.
const POLL: Duration = Duration::from_secs(1);
/// Chunks of readings and lines of logs that are read at a time.
const CHUNKS_AT_A_TIME: i64 = 4;
const LINES_AT_A_TIME: usize = 1_000;

/// What a follower gets.
pub type Pieces = mpsc::Receiver<Result<FollowRunResponse, Status>>;

/// Starts to follow a run of this workspace after a cursor.
pub async fn follow(
    projects: &Projects,
    workspace: Id<id::Workspace>,
    id: Id<id::Run>,
    cursor: i64,
    stop: CancellationToken,
) -> Result<Pieces, Error> {
    let locked = projects.run_of(workspace, id).await?;
    if cursor < 0 || cursor > locked.position {
        let rule = format!("is 0 to {}, a cursor that this run gave", locked.position);
        return Err(Error::field("cursor", rule));
    }
    let (pieces, receiver) = mpsc::channel(PIECES_MAX);
    let follower = Follower {
        projects: projects.clone(),
        id,
        cursor,
        pieces,
        progress: vec![],
    };
    tokio::spawn(follower.run(stop));
    Ok(receiver)
}

struct Follower {
    projects: Projects,
    id: Id<id::Run>,
    cursor: i64,
    pieces: mpsc::Sender<Result<FollowRunResponse, Status>>,
    /// The last progress that was sent.
    progress: Vec<u8>,
}

/// Why a follower stops without a fault.
struct Gone;

impl Follower {
    async fn run(mut self, stop: CancellationToken) {
        self.projects.instruments.followers(1);
        let outcome = tokio::select! {
            outcome = self.follow() => outcome,
            () = stop.cancelled() => Ok(Ok(())),
        };
        if let Err(error) = outcome {
            // Who is gone doesn't mind.
            let _ = self.pieces.send(Err(error.into())).await;
        }
        self.projects.instruments.followers(-1);
    }

    async fn follow(&mut self) -> Result<Result<(), Gone>, Error> {
        loop {
            let mut changes = self.projects.changes.watch(self.id);
            let run = match self.catch_up().await? {
                Ok(run) => run,
                Err(Gone) => return Ok(Err(Gone)),
            };
            let now = self.projects.clock.now();
            if has_ended(&run, self.projects.config.follow_linger, now) {
                return Ok(Ok(()));
            }
            tokio::select! {
                () = changes.changed() => {}
                () = tokio::time::sleep(POLL) => {}
                () = self.pieces.closed() => return Ok(Err(Gone)),
            }
        }
    }

    /// Sends all that is stored after the cursor and returns the run as it was meanwhile.
    async fn catch_up(&mut self) -> Result<Result<Run, Gone>, Error> {
        loop {
            let found = store::run(self.projects.store.read(), self.id).await?;
            let found = found.ok_or_else(|| Error::no_run(self.id))?;
            // Everything up to this place is committed and can be seen by what is read now.
            let newest = found.position;
            if self.cursor >= newest {
                return Ok(self.send_progress(&found.run).await.map(|()| found.run));
            }
            let (mut batch, complete) = self.page(&found.run).await?;
            let limit = complete.min(newest);
            if (self.cursor + 1..=limit).contains(&found.changed_position) {
                let attempts = store::attempts(self.projects.store.read(), self.id).await?;
                let run = run_message(&found.run, &attempts);
                batch.push((found.changed_position, Content::Run(run)));
            }
            batch.retain(|(place, _)| *place <= limit);
            batch.sort_by_key(|(place, _)| *place);
            for (place, content) in batch {
                if self.send(place, content).await.is_err() {
                    return Ok(Err(Gone));
                }
            }
            self.cursor = limit;
        }
    }

    /// Reads pieces after the cursor, and the place up to which that is all there is.
    async fn page(&self, run: &Run) -> Result<(Vec<(i64, Content)>, i64), Error> {
        let (projects, after) = (&self.projects, self.cursor);
        let sql = projects.store.read();
        let superseded = projects.superseded(self.id).await?;
        let (metrics, complete_metrics) =
            store::readings_after(sql, self.id, METRICS, after, CHUNKS_AT_A_TIME).await?;
        let (hosts, complete_hosts) =
            store::readings_after(sql, self.id, SAMPLES, after, CHUNKS_AT_A_TIME).await?;
        let (lines, complete_lines) = projects.log_since(run, after, LINES_AT_A_TIME).await?;
        let mut batch = Vec::with_capacity(metrics.len() + hosts.len() + lines.len());
        let current = metrics
            .into_iter()
            .filter(|reading| superseded.keeps(reading.fence, reading.step));
        batch.extend(current.map(|it| (it.position, Content::Metrics(metric_batch(it)))));
        batch.extend(
            hosts
                .into_iter()
                .map(|it| (it.position, Content::Sample(host_sample(it)))),
        );
        batch.extend(
            lines
                .into_iter()
                .map(|it| (it.position, Content::Log(line_message(it)))),
        );
        Ok((
            batch,
            complete_metrics.min(complete_hosts).min(complete_lines),
        ))
    }

    async fn send_progress(&mut self, run: &Run) -> Result<(), Gone> {
        if !run.state.is_active() {
            return Ok(());
        }
        let Some(bytes) = self.projects.cache.get(&progress_key(self.id)).await else {
            return Ok(());
        };
        if bytes == self.progress {
            return Ok(());
        }
        let fence = run.attempt.as_ref().map(|attempt: &Attempt| attempt.fence);
        self.progress = bytes;
        match Progress::decode(self.progress.as_slice()) {
            Ok(progress) if Some(progress.fence) == fence => {
                self.send(self.cursor, Content::Progress(progress)).await
            }
            _ => Ok(()),
        }
    }

    async fn send(&self, cursor: i64, content: Content) -> Result<(), Gone> {
        let piece = FollowRunResponse {
            cursor,
            content: Some(content),
        };
        self.pieces.send(Ok(piece)).await.map_err(|_| Gone)
    }
}

/// Telemetry travels another way than the end of a run and may come a little after it.
fn has_ended(run: &Run, linger: Duration, now: Timestamp) -> bool {
    run.state.is_final() && run.finished_at.is_none_or(|at| now.since(at) >= linger)
}

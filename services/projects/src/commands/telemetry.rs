//! Storing telemetry: metrics and samples in chunks, logs in lines and then segments, progress in
//! the cache.
//!
//! The stream may deliver again and, after a crash, out of order: the store remembers what it has
//! by the place in the stream. A batch that can't be stored is tried again until it can, so that
//! order holds while the process lives.

use std::collections::BTreeMap;
use std::time::Duration;

use kit::bus::Sample;
use kit::id::{self, Id};
use kit::store::{Isolation, Tx};
use kit::time::Timestamp;
use proto::fovea::telemetry::v1::{HostSample, LogEntry, MetricBatch, Progress};
use tokio_util::sync::CancellationToken;

use super::Projects;
use crate::domain::{Line, Metrics, Reading, is_metric_name};
use crate::error::Error;
use crate::grpc::{instant_or, sample_values};
use crate::store::{self, Locked, Segment};

/// Values that one batch of metrics may have.
const VALUES_MAX: usize = 256;
/// Bytes of a line's message; the rest is cut off.
const LINE_BYTES_MAX: usize = 8 << 10;
/// Names of metrics that one run may have.
const NAMES_MAX: usize = 1_000;
/// Lines that one segment may have.
const SEGMENT_LINES_MAX: i64 = 20_000;
/// How long the last progress of a run is of interest.
const PROGRESS_TTL: Duration = Duration::from_secs(120);
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// What a sample says, once it is read.
enum Said {
    Metrics(MetricBatch),
    Log(LogEntry),
    Host(Box<HostSample>),
    Progress(Progress, Vec<u8>),
}

/// Returns the cache's key of a run's last progress.
pub fn progress_key(run: Id<id::Run>) -> String {
    format!("progress/{run}")
}

impl Projects {
    /// Stores a batch of telemetry; returns when it is stored or the service stops.
    pub(crate) async fn keep_telemetry(
        &self,
        samples: Vec<Sample>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let mut by_run: BTreeMap<Id<id::Run>, Vec<Sample>> = BTreeMap::new();
        for sample in samples {
            match sample.id.parse() {
                Ok(run) => by_run.entry(run).or_default().push(sample),
                Err(_) => self.instruments.dropped(1, "subject"),
            }
        }
        for (run, samples) in by_run {
            while let Err(error) = self.keep_of_run(run, &samples).await {
                if stop.is_cancelled() {
                    return Err(error);
                }
                tracing::warn!(fovea.run.id = %run, error = %kit::Fault::from(error).chain(),
                    "could not store telemetry and tries again");
                // Real time: a store that is away doesn't come back by a test's clock.
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        Ok(())
    }

    async fn keep_of_run(&self, id: Id<id::Run>, samples: &[Sample]) -> Result<(), Error> {
        let stored = self
            .store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let new = store::first_seen(&tx, samples).await?;
                let new: Vec<_> = samples
                    .iter()
                    .filter(|sample| new.contains(&sample.sequence))
                    .collect();
                let Some(locked) = store::lock_run(&tx, id, new.len() as i64).await? else {
                    return Ok(Stored {
                        dropped: vec![(new.len(), "run")],
                        ..Stored::default()
                    });
                };
                keep_locked(&tx, locked, &new).await
            })
            .await?;
        for (count, reason) in &stored.dropped {
            self.instruments.dropped(*count, reason);
        }
        if let Some(progress) = &stored.progress {
            self.cache
                .set(&progress_key(id), progress, PROGRESS_TTL)
                .await;
        }
        if let Some(at) = stored.newest {
            let lag = self.clock.now().since(at).as_secs_f64();
            self.instruments.stored(stored.points, stored.lines, lag);
            self.changes.notify(id);
        }
        if stored.lines > 0 {
            self.seal_log(id).await?;
        }
        Ok(())
    }

    /// Turns the tail of a log into a segment once it is long enough.
    async fn seal_log(&self, id: Id<id::Run>) -> Result<(), Error> {
        let tail = store::tail(self.store.read(), id).await?;
        let size = i64::try_from(self.config.log_segment_size).unwrap_or(i64::MAX);
        if tail.length < size && tail.line_count < SEGMENT_LINES_MAX {
            return Ok(());
        }
        let Some(locked) = store::run(self.store.read(), id).await? else {
            return Ok(());
        };
        let lines =
            store::lines_after_sequence(self.store.read(), id, i64::MIN, SEGMENT_LINES_MAX).await?;
        let (Some(first), Some(last)) = (lines.first(), lines.last()) else {
            return Ok(());
        };
        let (bytes, offsets) = store::encode_lines(&lines);
        let workspace = locked.run.workspace_id;
        let digest = blake3::hash(&bytes).to_hex().to_string();
        let positions = lines.iter().map(|line| line.position);
        let segment = &Segment {
            first_sequence: first.sequence,
            last_sequence: last.sequence,
            first_position: positions.clone().min().unwrap_or_default(),
            last_position: positions.max().unwrap_or_default(),
            size_bytes: bytes.len() as i64,
            digest,
            offsets,
        };
        let busy = || Error::BlobBusy(segment.digest.clone());
        self.store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                let is_free = store::touch_blob(&tx, workspace, &segment.digest).await?;
                if is_free { Ok(()) } else { Err(busy()) }
            })
            .await?;
        self.blobs.put(workspace, bytes.into()).await?;
        let count = lines.len();
        self.store
            .write_with(Isolation::ReadCommitted, |tx| async move {
                store::lock_run(&tx, id, 0).await?;
                if !store::replace_by_segment(&tx, id, segment, count).await? {
                    // Another process sealed these lines; what it wrote is as good.
                    return Err(busy());
                }
                let is_free = store::refer_blob(&tx, workspace, &segment.digest).await?;
                if is_free { Ok(()) } else { Err(busy()) }
            })
            .await
    }
}

/// What became of a batch.
#[derive(Default)]
struct Stored {
    points: usize,
    lines: usize,
    dropped: Vec<(usize, &'static str)>,
    progress: Option<Vec<u8>>,
    /// When the stream got the newest of what was taken.
    newest: Option<Timestamp>,
}

async fn keep_locked(tx: &Tx, locked: Locked, samples: &[&Sample]) -> Result<Stored, Error> {
    let Locked {
        mut run, position, ..
    } = locked;
    let mut next = position - samples.len() as i64;
    let mut stored = Stored::default();
    let (mut metrics, mut hosts, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let (mut malformed, mut stale) = (0, 0);
    for sample in samples {
        next += 1;
        let said = match read(sample) {
            Some(said) if sample.workspace == run.workspace_id => said,
            _ => {
                malformed += 1;
                continue;
            }
        };
        if !run.takes_telemetry(said.fence()) {
            stale += 1;
            continue;
        }
        stored.newest = stored.newest.max(Some(sample.stored_at));
        match said {
            Said::Metrics(batch) => metrics.push(reading(batch, next, sample.stored_at)),
            Said::Host(host) => hosts.push(host_reading(&host, next, sample.stored_at)),
            Said::Log(entry) => lines.push(line(entry, next, sample.stored_at)),
            Said::Progress(_, bytes) => stored.progress = Some(bytes),
        }
    }
    stored.dropped = vec![(malformed, "malformed"), (stale, "stale")];
    stored.points = metrics.iter().map(|reading| reading.values.len()).sum();
    stored.lines = lines.len();
    store::append_readings(tx, run.id, METRICS, &metrics).await?;
    store::append_readings(tx, run.id, SAMPLES, &hosts).await?;
    store::append_lines(tx, run.id, &lines).await?;
    // The metrics of a run that has ended are those it ended with.
    if !run.state.is_final() && !metrics.is_empty() {
        for (name, value) in metrics.into_iter().flat_map(|reading| reading.values) {
            if run.metrics.len() < NAMES_MAX || run.metrics.contains_key(&name) {
                run.metrics.insert(name, value);
            }
        }
        store::save_run(tx, &run, None).await?;
    }
    Ok(stored)
}

/// The noun of metrics, as subjects and chunks have it.
pub(crate) const METRICS: &str = "metrics";
/// The noun of host samples.
pub(crate) const SAMPLES: &str = "samples";
/// The noun of logs.
pub(crate) const LOGS: &str = "logs";
/// The noun of progress.
pub(crate) const PROGRESS: &str = "progress";

impl Said {
    const fn fence(&self) -> i64 {
        match self {
            Self::Metrics(batch) => batch.fence,
            Self::Log(entry) => entry.fence,
            Self::Host(host) => host.fence,
            Self::Progress(progress, _) => progress.fence,
        }
    }
}

/// Reads a sample; `None` for what is no telemetry of ours or breaks a limit.
fn read(sample: &Sample) -> Option<Said> {
    match sample.noun.as_str() {
        METRICS => {
            let batch: MetricBatch = sample.decode().ok()?;
            let is_sound = batch.values.len() <= VALUES_MAX
                && batch.values.keys().all(|name| is_metric_name(name));
            is_sound.then_some(Said::Metrics(batch))
        }
        LOGS => {
            let entry: LogEntry = sample.decode().ok()?;
            (entry.sequence > 0).then_some(Said::Log(entry))
        }
        SAMPLES => sample.decode().ok().map(|host| Said::Host(Box::new(host))),
        PROGRESS => {
            let progress = sample.decode().ok()?;
            Some(Said::Progress(progress, sample.payload.to_vec()))
        }
        _ => None,
    }
}

fn reading(batch: MetricBatch, position: i64, stored_at: Timestamp) -> Reading {
    Reading {
        position,
        fence: batch.fence,
        at: instant_or(batch.at, stored_at),
        epoch: batch.epoch,
        step: batch.step,
        values: batch.values.into_iter().collect(),
    }
}

fn host_reading(host: &HostSample, position: i64, stored_at: Timestamp) -> Reading {
    let values: Metrics = sample_values(host);
    let at = instant_or(host.at, stored_at);
    Reading {
        position,
        fence: host.fence,
        at,
        epoch: 0,
        step: 0,
        values,
    }
}

fn line(entry: LogEntry, position: i64, stored_at: Timestamp) -> Line {
    let mut message = entry.message;
    if message.len() > LINE_BYTES_MAX {
        let end = message.floor_char_boundary(LINE_BYTES_MAX);
        message.truncate(end);
    }
    // PostgreSQL has no room for this one character.
    let message = message.replace('\0', "\u{fffd}");
    let level = match entry.level.as_str() {
        level @ ("warn" | "error") => level.to_owned(),
        _ => "info".to_owned(),
    };
    Line {
        sequence: entry.sequence,
        position,
        at: instant_or(entry.at, stored_at),
        level,
        message,
    }
}

//! What this service measures of itself: `fovea.runs.*`.

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};

use crate::domain::Run;

/// The instruments.
pub struct Instruments {
    started: Counter<u64>,
    ended: Counter<u64>,
    committed: Counter<f64>,
    attempts_lost: Counter<u64>,
    stale: Counter<u64>,
    points: Counter<u64>,
    lines: Counter<u64>,
    dropped: Counter<u64>,
    lag: Histogram<f64>,
    followers: UpDownCounter<i64>,
    blobs_removed: Counter<u64>,
}

impl Instruments {
    /// Makes the instruments.
    pub fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, description: &'static str| {
            meter
                .u64_counter(name)
                .with_description(description)
                .build()
        };
        Self {
            started: counter(
                "fovea.runs.started",
                "runs that were queued for the first time",
            ),
            ended: counter("fovea.runs.ended", "runs that ended, by state"),
            committed: meter
                .f64_counter("fovea.runs.committed")
                .with_unit("s")
                .with_description("compute that was committed")
                .build(),
            attempts_lost: counter("fovea.runs.attempts.lost", "attempts whose lease was lost"),
            stale: counter("fovea.runs.fences.stale", "calls refused for a stale fence"),
            points: counter("fovea.runs.telemetry.points", "values of metrics stored"),
            lines: counter("fovea.runs.telemetry.lines", "lines of logs stored"),
            dropped: counter(
                "fovea.runs.telemetry.dropped",
                "telemetry dropped, by reason",
            ),
            lag: meter
                .f64_histogram("fovea.runs.telemetry.lag")
                .with_unit("s")
                .with_description("time from the stream's receipt to the store's commit")
                .with_boundaries(vec![0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0])
                .build(),
            followers: meter
                .i64_up_down_counter("fovea.runs.followers")
                .with_description("streams that follow a run")
                .build(),
            blobs_removed: counter("fovea.runs.blobs.removed", "blobs that nothing needed"),
        }
    }

    /// Counts a run that was queued for the first time.
    pub fn started(&self) {
        self.started.add(1, &[]);
    }

    /// Counts a run that ended.
    pub fn ended(&self, run: &Run) {
        self.ended
            .add(1, &[KeyValue::new("state", run.state.name())]);
    }

    /// Counts committed compute.
    pub fn committed(&self, seconds: f64) {
        self.committed.add(seconds, &[]);
    }

    /// Counts a lost attempt.
    pub fn attempt_lost(&self) {
        self.attempts_lost.add(1, &[]);
    }

    /// Counts a call that was refused for its fence.
    pub fn stale(&self) {
        self.stale.add(1, &[]);
    }

    /// Counts what was stored of a batch of telemetry, and how late.
    pub fn stored(&self, points: usize, lines: usize, lag_seconds: f64) {
        self.points.add(points as u64, &[]);
        self.lines.add(lines as u64, &[]);
        self.lag.record(lag_seconds, &[]);
    }

    /// Counts telemetry that was dropped.
    pub fn dropped(&self, count: usize, reason: &'static str) {
        if count > 0 {
            self.dropped
                .add(count as u64, &[KeyValue::new("reason", reason)]);
        }
    }

    /// Counts followers as they come and go.
    pub fn followers(&self, difference: i64) {
        self.followers.add(difference, &[]);
    }

    /// Counts blobs that were removed.
    pub fn blob_removed(&self) {
        self.blobs_removed.add(1, &[]);
    }
}

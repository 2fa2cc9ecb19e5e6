//! What the scheduler measures about itself.

use std::sync::LazyLock;
use std::time::Duration;

use kit::telemetry::meter;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram};

static WAIT: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    meter("jobs")
        .f64_histogram("fovea.jobs.queue.wait")
        .with_unit("s")
        .with_description("time between a run's queueing and its lease")
        .with_boundaries(vec![
            0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0,
        ])
        .build()
});
static WAITING: LazyLock<Gauge<u64>> = LazyLock::new(|| {
    meter("jobs")
        .u64_gauge("fovea.jobs.waiting")
        .with_description("jobs that wait for a device")
        .build()
});
static WORKERS: LazyLock<Gauge<u64>> = LazyLock::new(|| {
    meter("fleet")
        .u64_gauge("fovea.fleet.workers")
        .with_description("workers heard of within a lease's length")
        .build()
});
static REQUEUED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    meter("jobs")
        .u64_counter("fovea.jobs.requeued")
        .with_description("leases that ended without an ending of their run")
        .build()
});

/// Records how long a job waited for its lease.
pub fn leased(gpu_type: &str, waited: Duration) {
    WAIT.record(
        waited.as_secs_f64(),
        &[KeyValue::new("gpu_type", gpu_type.to_owned())],
    );
}

/// Counts a job that went back to the queue.
pub fn requeued() {
    REQUEUED.add(1, &[]);
}

/// Records how many jobs wait and how many workers are here.
pub fn present(waiting: u64, workers: u64) {
    WAITING.record(waiting, &[]);
    WORKERS.record(workers, &[]);
}

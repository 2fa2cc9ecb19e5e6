//! What inference measures about itself.

use std::sync::LazyLock;
use std::time::Duration;

use kit::telemetry::meter;
use opentelemetry::KeyValue;
use opentelemetry::metrics::Histogram;

static PREDICT: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    meter("endpoints")
        .f64_histogram("fovea.endpoints.predict.duration")
        .with_unit("s")
        .with_description("time of a prediction, waiting included")
        .with_boundaries(vec![
            0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
        ])
        .build()
});

/// Records a prediction.
pub fn predicted(took: Duration, is_refused: bool) {
    let outcome = if is_refused { "refused" } else { "answered" };
    PREDICT.record(took.as_secs_f64(), &[KeyValue::new("outcome", outcome)]);
}

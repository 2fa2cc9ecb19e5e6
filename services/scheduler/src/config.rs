//! The section `[scheduler]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the scheduler can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How often a worker extends its lease. Default 10 s.
    #[serde(with = "kit::config::duration")]
    pub heartbeat: Duration,
    /// How long a worker may be silent before it is shown as suspect. Default 30 s.
    #[serde(with = "kit::config::duration")]
    pub suspect_after: Duration,
    /// How long a lease holds without being extended; then the run goes back to the queue. Default 60 s.
    #[serde(with = "kit::config::duration")]
    pub lease: Duration,
    /// How often overdue leases are looked for. Default 1 s.
    #[serde(with = "kit::config::duration")]
    pub sweep: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(10),
            suspect_after: Duration::from_secs(30),
            lease: Duration::from_secs(60),
            sweep: Duration::from_secs(1),
        }
    }
}

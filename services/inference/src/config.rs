//! The section `[inference]`.

use serde::{Deserialize, Serialize};

/// What inference can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Threads that a prediction uses; 0 takes every core. Default 0.
    pub threads: usize,
    /// Models kept ready in memory; the one unused longest makes room. Default 16.
    pub models_max: usize,
    /// Predictions that may wait for their turn; more are refused. Default 64.
    pub queue_max: usize,
    /// The largest picture that is taken. Default 32MiB.
    #[serde(with = "kit::config::size")]
    pub image_bytes_max: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: 0,
            models_max: 16,
            queue_max: 64,
            image_bytes_max: 32 << 20,
        }
    }
}

//! The section `[worker]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a worker can be told.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where pictures are cached and the worker's id is kept. Default the folder `worker` in `fleet.data`.
    pub folder: Option<PathBuf>,
    /// How much of the disk cached pictures may take. Default 20GiB.
    #[serde(with = "kit::config::size")]
    pub cache_bytes: u64,
    /// Threads that train; 0 takes every core. Default 0.
    pub threads: usize,
    /// Memory that trainings may use, as told to the scheduler; 0 takes four fifths of the machine's. Default 0.
    #[serde(with = "kit::config::size")]
    pub memory_bytes: u64,
    /// How often the machine's load is sampled. Default 5s.
    #[serde(with = "kit::config::duration")]
    pub sample_every: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            folder: None,
            cache_bytes: 20 << 30,
            threads: 0,
            memory_bytes: 0,
            sample_every: Duration::from_secs(5),
        }
    }
}

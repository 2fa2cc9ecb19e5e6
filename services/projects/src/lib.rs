//! Projects, runs and attempts, metrics, logs, checkpoints and models.

pub mod domain;
mod config;
mod error;
pub mod store;

pub use config::Config;
pub use error::Error;

//! The Fovea engine: models, kernels, training, prediction and metrics. It knows no network and no database.
//!
//! A model is described once by its family (`models`), which emits a static graph (`graph`). The graph is
//! planned for one batch and image size (`plan`): every buffer gets an offset in one arena and every
//! operation becomes a launch. `run` replays the launches. Training (`train`) adds data (`data`), a loss
//! (`loss`), an optimiser (`optim`) and metrics (`metrics`); `checkpoint` and `onnx` write what came out.

pub mod bench;
pub mod checkpoint;
pub mod data;
pub mod decode;
pub mod device;
pub mod error;
pub mod graph;
pub mod import;
pub mod loss;
pub mod metrics;
pub mod models;
pub mod network;
pub mod onnx;
pub mod optim;
pub mod plan;
pub mod plots;
pub mod precision;
pub mod predict;
pub mod random;
pub mod train;
pub mod validate;

pub use engine_ops::{self as ops, clock, parallel};
pub use error::{Error, Result};
pub use precision::Precision;

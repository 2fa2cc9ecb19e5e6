//! CUDA: whether it is here (`probe`), the kernels in machine code (`pack`), and the device that runs them.
//!
//! `probe` is the only door: the driver's binding panics where the library or a symbol of it is missing, so
//! nothing here calls it before `probe` has succeeded. All objects of a device live on one thread (`thread`).
//! Memory is arenas whose size is fixed when a plan is made; a step is captured once and then replayed.

pub mod compile;
pub mod control;
mod device;
mod error;
mod memory;
mod pack;
mod probe;
mod table;
mod thread;

pub use device::{Device, Event, Graph, Launched};
pub use error::GpuError;
pub use memory::{Arena, Pinned, Plain};
pub use pack::{ARCHITECTURES, Architecture, Pack};
pub use probe::{Gpu, REQUIRED_SYMBOLS, probe, probe_library};
pub use table::{HEADERS, sources, sources_hash};
pub use thread::DeviceThread;

use std::fmt;

/// What is known about CUDA on this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CudaReport {
    /// Why no GPU can be used, and what would change that.
    Unusable(String),
    /// What can be used, at least one.
    Gpus(Vec<Gpu>),
}

/// Asks for GPUs; never panics.
pub fn cuda() -> CudaReport {
    match probe() {
        Ok(gpus) => CudaReport::Gpus(gpus),
        Err(error) => CudaReport::Unusable(error.to_string()),
    }
}

impl fmt::Display for CudaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(reason) => write!(f, "{reason}"),
            Self::Gpus(gpus) => {
                let names: Vec<_> = gpus.iter().map(ToString::to_string).collect();
                write!(f, "{}", names.join("; "))
            }
        }
    }
}

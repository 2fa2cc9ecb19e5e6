//! Whether CUDA is here. The driver is opened only when its library is present, because the binding panics
//! without it.
#![expect(unsafe_code, reason = "asks the driver's C interface")]

use std::fmt;

use cudarc::driver::result;
use cudarc::driver::sys;

/// One GPU as its driver names it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Gpu {
    pub name: String,
    pub memory_bytes: u64,
}

/// What is known about CUDA on this machine.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CudaReport {
    /// There is no driver library.
    NoDriver,
    /// The driver refused, in its own words.
    Refused(String),
    /// What the driver lists, perhaps nothing.
    Gpus(Vec<Gpu>),
}

/// Asks for GPUs; never panics.
pub fn cuda() -> CudaReport {
    // SAFETY: loads the library if it exists, whose initialisers are the driver's own, and unloads it.
    if !unsafe { sys::is_culib_present() } {
        return CudaReport::NoDriver;
    }
    // A driver too old to have a symbol makes the binding panic.
    match std::panic::catch_unwind(list) {
        Ok(Ok(gpus)) => CudaReport::Gpus(gpus),
        Ok(Err(error)) => CudaReport::Refused(error.to_string()),
        Err(_) => CudaReport::Refused("the driver is too old".into()),
    }
}

fn list() -> Result<Vec<Gpu>, result::DriverError> {
    result::init()?;
    let describe = |ordinal| {
        let device = result::device::get(ordinal)?;
        Ok(Gpu {
            name: result::device::get_name(device)?,
            // SAFETY: the handle came from the driver.
            memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
        })
    };
    (0..result::device::get_count()?).map(describe).collect()
}

impl fmt::Display for CudaReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => write!(f, "no driver on this machine"),
            Self::Refused(reason) => write!(f, "a driver is here but refuses: {reason}"),
            Self::Gpus(gpus) if gpus.is_empty() => write!(f, "a driver is here but no GPU"),
            Self::Gpus(gpus) => {
                let names: Vec<_> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
                write!(f, "{}", names.join(", "))
            }
        }
    }
}

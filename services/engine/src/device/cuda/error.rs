//! Every way a machine can lack a usable GPU, each with what to do about it.

use cudarc::driver::result::DriverError;

/// Why the GPU can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error(
        "no NVIDIA driver on this machine: install one to use a GPU; training runs on the processor"
    )]
    NoLibrary,
    #[error("the NVIDIA driver's library can't be loaded: {reason}; reinstall the driver")]
    LibraryBroken { reason: String },
    #[error("the NVIDIA driver lacks '{symbol}': install driver 525 or newer")]
    MissingSymbol { symbol: &'static str },
    #[error(
        "the NVIDIA driver supports CUDA {found} and 12.0 is needed: install driver 525 or newer"
    )]
    DriverTooOld { found: String },
    #[error(
        "the NVIDIA driver refuses to start ({reason}): run nvidia-smi; after an update restart the machine"
    )]
    InitFailed { reason: String },
    #[error(
        "an NVIDIA driver but no GPU: check nvidia-smi, CUDA_VISIBLE_DEVICES and, in a container, --gpus"
    )]
    NoDevice,
    #[error(
        "{name} has compute capability {found} and 8.0 is needed: use a GPU of the Ampere generation or newer"
    )]
    TooOld { name: String, found: String },
    #[error("GPU {ordinal} is not on this machine, which has {count}")]
    NoSuchDevice { ordinal: usize, count: usize },
    #[error(
        "{name} gives no context ({reason}): another process may use it exclusively, see nvidia-smi"
    )]
    Busy { name: String, reason: String },
    #[error("no kernel pack at {place}: make one with scripts/kernels.sh")]
    NoPack { place: String },
    #[error("kernel pack {place}: {rule}; make it again with scripts/kernels.sh")]
    PackBroken { place: String, rule: String },
    #[error("the kernel '{kernel}' is not in the pack: make it again with scripts/kernels.sh")]
    NoKernel { kernel: String },
    #[error("the driver refuses the kernels for {architecture} ({reason}): update the driver")]
    PackRefused {
        architecture: &'static str,
        reason: String,
    },
    #[error(
        "the GPU has {free_bytes} bytes free and {needed_bytes} are needed: take a smaller batch, or end what else uses it"
    )]
    OutOfMemory { needed_bytes: u64, free_bytes: u64 },
    #[error("the GPU refused {call}: {reason}")]
    Driver { call: &'static str, reason: String },
    #[error("the GPU's thread has ended: start the run again from its last checkpoint")]
    ThreadEnded,
}

impl GpuError {
    /// Returns a closure that says which call a driver's refusal came from.
    pub(super) fn call(call: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Driver {
            call,
            reason: words(&error),
        }
    }
}

/// Returns a driver's error in its own words.
pub(super) fn words(error: &DriverError) -> String {
    let name = error.error_name().map(|text| text.to_string_lossy());
    let text = error.error_string().map(|text| text.to_string_lossy());
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}, {text}"),
        _ => format!("code {}", error.0 as u32),
    }
}

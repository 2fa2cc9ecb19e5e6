//! The only door to CUDA: opens the driver's library, checks what the engine needs of it, lists GPUs.
#![expect(unsafe_code, reason = "opens a C library and asks it")]

use std::ffi::{CStr, CString};
use std::fmt;
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};

use super::error::{GpuError, words};

/// The oldest CUDA a driver may support, as the driver counts: 1000 × major + 10 × minor.
const DRIVER_MIN: i32 = 12_000;
const COMPUTE_MIN: (i32, i32) = (8, 0);
const LIBRARIES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// What the engine calls; the binding panics on one that is missing.
pub const REQUIRED_SYMBOLS: [&str; 43] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];

/// One GPU that can be used, as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Gpu {
    pub ordinal: usize,
    pub name: String,
    pub memory_bytes: u64,
    /// Compute capability.
    pub compute: (i32, i32),
    pub multiprocessors: u32,
    /// Shared memory that a block may ask for.
    pub shared_bytes: u32,
    /// CUDA as the driver supports it.
    pub driver: String,
}

/// Returns the GPUs that can be used, at least one.
pub fn probe() -> Result<Vec<Gpu>, GpuError> {
    static OPENED: OnceLock<Result<(), GpuError>> = OnceLock::new();
    OPENED.get_or_init(|| probe_library(&LIBRARIES)).clone()?;
    start()?;
    let count = result::device::get_count().map_err(GpuError::call("cuDeviceGetCount"))?;
    if count == 0 {
        return Err(GpuError::NoDevice);
    }
    let described: Vec<_> = (0..count).map(describe).collect::<Result<_, _>>()?;
    let is_new = |gpu: &Gpu| gpu.compute >= COMPUTE_MIN;
    match described.iter().find(|gpu| is_new(gpu)) {
        Some(_) => Ok(described.into_iter().filter(is_new).collect()),
        None => Err(GpuError::TooOld {
            name: described[0].name.clone(),
            found: format!("{}.{}", described[0].compute.0, described[0].compute.1),
        }),
    }
}

/// Opens the first of these libraries that exists and looks for the symbols; leaves it open.
pub fn probe_library(names: &[&str]) -> Result<(), GpuError> {
    let mut reason = None;
    for name in names {
        let Ok(path) = CString::new(*name) else {
            continue;
        };
        // SAFETY: loads the driver's library, whose initialisers are its own.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            let text = load_error();
            if !text.contains("No such file") {
                reason.get_or_insert(text);
            }
            continue;
        }
        for symbol in REQUIRED_SYMBOLS {
            let text = CString::new(symbol).unwrap_or_default();
            // SAFETY: the library is open.
            if unsafe { libc::dlsym(library, text.as_ptr()) }.is_null() {
                return Err(GpuError::MissingSymbol { symbol });
            }
        }
        return Ok(());
    }
    Err(
        reason.map_or(GpuError::NoLibrary, |reason| GpuError::LibraryBroken {
            reason,
        }),
    )
}

fn load_error() -> String {
    // SAFETY: the text belongs to the loader and is copied before the next call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason given".into();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

fn start() -> Result<(), GpuError> {
    let mut version = 0;
    // SAFETY: may be called before cuInit.
    let answer = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    answer.map_err(GpuError::call("cuDriverGetVersion"))?;
    if version < DRIVER_MIN {
        return Err(GpuError::DriverTooOld {
            found: cuda_version(version),
        });
    }
    match result::init() {
        Ok(()) => Ok(()),
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Err(GpuError::NoDevice),
        Err(error) => Err(GpuError::InitFailed {
            reason: words(&error),
        }),
    }
}

fn cuda_version(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn describe(ordinal: i32) -> Result<Gpu, GpuError> {
    let describe = || {
        let device = result::device::get(ordinal)?;
        // SAFETY: the handle came from the driver.
        let attribute = |attribute| unsafe { result::device::get_attribute(device, attribute) };
        let mut version = 0;
        // SAFETY: writes one number.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        Ok(Gpu {
            ordinal: ordinal as usize,
            name: result::device::get_name(device)?,
            // SAFETY: the handle came from the driver.
            memory_bytes: unsafe { result::device::total_mem(device) }? as u64,
            compute: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
            shared_bytes: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )? as u32,
            driver: cuda_version(version),
        })
    };
    describe().map_err(GpuError::call("a description of a GPU"))
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {:.1} GB, compute capability {}.{}, driver for CUDA {}",
            self.name,
            self.memory_bytes as f64 / 1e9,
            self.compute.0,
            self.compute.1,
            self.driver
        )
    }
}

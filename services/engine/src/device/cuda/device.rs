//! A device: its context, streams and kernels. Launches go to the compute stream in order; a closure of launches
//! can be captured and then be replayed as one graph.
#![expect(unsafe_code, reason = "hands parameters to the driver's C interface")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::result;
use cudarc::driver::sys::{
    self, CUfunction_attribute_enum, CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use cudarc::driver::{CudaContext, CudaEvent, CudaGraph, CudaStream};

use super::error::{GpuError, words};
use super::memory::{Arena, Pinned, Plain};
use super::pack::{Architecture, Pack};
use super::probe::Gpu;
use crate::ops::cuda::{Kernel, Parameters, Source};

/// Shared memory that a kernel gets without asking.
const SHARED_FREE: u32 = 48 << 10;

/// One GPU, made ready. It stays on the thread that opened it.
pub struct Device {
    gpu: Gpu,
    context: Arc<CudaContext>,
    compute: Arc<CudaStream>,
    copies: Arc<CudaStream>,
    functions: HashMap<&'static str, Function>,
    /// Modules live as long as their functions.
    _modules: Vec<Module>,
    listing: RefCell<Option<Vec<Launched>>>,
}

struct Module {
    context: Arc<CudaContext>,
    handle: sys::CUmodule,
}

struct Function {
    handle: sys::CUfunction,
    kernel: &'static Kernel,
}

/// A launch as it was made, for listings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    pub kernel: &'static str,
    pub grid: [u32; 3],
}

/// Launches that are replayed as one.
pub struct Graph(CudaGraph);

/// A point in a stream's work.
pub struct Event(CudaEvent);

impl Device {
    /// Opens a GPU that `probe` has found and loads every kernel.
    pub fn open(gpu: &Gpu, sources: &[Source], pack: &Pack) -> Result<Self, GpuError> {
        let context = CudaContext::new(gpu.ordinal).map_err(|error| GpuError::Busy {
            name: gpu.name.clone(),
            reason: words(&error),
        })?;
        // SAFETY: streams are ordered by our own events; the binding's would break a capture.
        unsafe { context.disable_event_tracking() };
        let stream = || {
            context
                .new_stream()
                .map_err(GpuError::call("cuStreamCreate"))
        };
        let (compute, copies) = (stream()?, stream()?);
        let mut modules = Vec::new();
        let mut functions = HashMap::new();
        for source in sources {
            let module = load(&context, gpu, source, pack)?;
            for kernel in source.kernels {
                functions.insert(kernel.name, Function::new(&module, gpu, kernel)?);
            }
            modules.push(module);
        }
        Ok(Self {
            gpu: gpu.clone(),
            context,
            compute,
            copies,
            functions,
            _modules: modules,
            listing: RefCell::new(None),
        })
    }

    /// Returns what was opened.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the bytes that are free now.
    pub fn free_bytes(&self) -> Result<u64, GpuError> {
        let (free, _) = self
            .context
            .mem_get_info()
            .map_err(GpuError::call("cuMemGetInfo"))?;
        Ok(free as u64)
    }

    /// Takes device memory. It holds whatever was there.
    pub fn arena(&self, bytes: usize) -> Result<Arena, GpuError> {
        let free_bytes = self.free_bytes()?;
        if bytes as u64 > free_bytes {
            return Err(GpuError::OutOfMemory {
                needed_bytes: bytes as u64,
                free_bytes,
            });
        }
        Arena::new(self.context.clone(), self.compute.clone(), bytes)
    }

    /// Takes host memory that the device can read and write.
    pub fn pinned<T: Plain>(&self, len: usize) -> Result<Pinned<T>, GpuError> {
        Pinned::new(self.context.clone(), len)
    }

    /// Launches a kernel. Parameters are read during the call; what they point to must live until it has run.
    pub fn launch<P: Parameters>(
        &self,
        name: &'static str,
        grid: [u32; 3],
        parameters: &P,
    ) -> Result<(), GpuError> {
        let Some(function) = self.functions.get(name) else {
            return Err(GpuError::NoKernel {
                kernel: name.into(),
            });
        };
        let kernel = function.kernel;
        assert!(
            std::ptr::eq(kernel.parameters, P::LAYOUT) || kernel.parameters.name == P::LAYOUT.name,
            "invariant: {name} takes {}",
            kernel.parameters.name
        );
        let mut pointers = [std::ptr::from_ref(parameters).cast_mut().cast()];
        // SAFETY: the function lives in a module of this device, and takes one struct of this layout.
        let launched = unsafe {
            result::launch_kernel(
                function.handle,
                grid.into(),
                (kernel.block, 1, 1),
                kernel.shared_bytes,
                self.compute.cu_stream(),
                &mut pointers,
            )
        };
        launched.map_err(GpuError::call(name))?;
        if let Some(listing) = self.listing.borrow_mut().as_mut() {
            listing.push(Launched { kernel: name, grid });
        }
        Ok(())
    }

    /// Records what `launches` would do, to be replayed. Nothing in it may allocate or wait.
    pub fn capture(
        &self,
        launches: impl FnOnce(&Self) -> Result<(), GpuError>,
    ) -> Result<Graph, GpuError> {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.compute
            .begin_capture(mode)
            .map_err(GpuError::call("cuStreamBeginCapture"))?;
        let done = launches(self);
        // Ends also when a launch failed, or the stream could never be used again.
        let captured = self.compute.end_capture(CUgraphInstantiate_flags(0));
        done?;
        let graph = captured.map_err(GpuError::call("cuStreamEndCapture"))?;
        let graph = graph.ok_or(GpuError::Driver {
            call: "cuStreamEndCapture",
            reason: "nothing was captured".into(),
        })?;
        graph.upload().map_err(GpuError::call("cuGraphUpload"))?;
        Ok(Graph(graph))
    }

    /// Replays a graph.
    pub fn replay(&self, graph: &Graph) -> Result<(), GpuError> {
        graph.0.launch().map_err(GpuError::call("cuGraphLaunch"))
    }

    /// Makes `launches` and returns what they were.
    pub fn list(
        &self,
        launches: impl FnOnce(&Self) -> Result<(), GpuError>,
    ) -> Result<Vec<Launched>, GpuError> {
        *self.listing.borrow_mut() = Some(Vec::new());
        let done = launches(self);
        let listed = self.listing.borrow_mut().take().unwrap_or_default();
        done.map(|()| listed)
    }

    /// Waits until the compute stream has done all it was given.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.compute
            .synchronize()
            .map_err(GpuError::call("cuStreamSynchronize"))
    }

    /// Marks this point of the compute stream.
    pub fn mark(&self) -> Result<Event, GpuError> {
        let event = self.compute.record_event(None);
        event.map(Event).map_err(GpuError::call("cuEventRecord"))
    }

    /// Waits on the host for a point.
    pub fn wait(&self, event: &Event) -> Result<(), GpuError> {
        event
            .0
            .synchronize()
            .map_err(GpuError::call("cuEventSynchronize"))
    }

    /// Copies from pinned memory on the copy stream, once the compute stream has reached `after`; returns the point
    /// that the compute stream must wait for.
    pub fn copy_beside<T: Plain>(
        &self,
        from: &Pinned<T>,
        arena: &Arena,
        offset: usize,
        after: Option<&Event>,
    ) -> Result<Event, GpuError> {
        if let Some(after) = after {
            let waited = self.copies.wait(&after.0);
            waited.map_err(GpuError::call("cuStreamWaitEvent"))?;
        }
        arena.copy_from(&self.copies, offset, from.as_slice())?;
        let event = self.copies.record_event(None);
        event.map(Event).map_err(GpuError::call("cuEventRecord"))
    }

    /// Lets the compute stream wait for a point of the copy stream.
    pub fn follow(&self, event: &Event) -> Result<(), GpuError> {
        self.compute
            .wait(&event.0)
            .map_err(GpuError::call("cuStreamWaitEvent"))
    }
}

fn load(
    context: &Arc<CudaContext>,
    gpu: &Gpu,
    source: &Source,
    pack: &Pack,
) -> Result<Module, GpuError> {
    let architecture = Architecture::of(gpu.compute);
    let Some(image) = pack.image(source.name, architecture) else {
        return Err(GpuError::NoKernel {
            kernel: source.kernels[0].name.into(),
        });
    };
    // PTX is text and ends with a zero.
    let mut image = image.to_vec();
    image.push(0);
    // SAFETY: the context is current; the image ends with a zero; what is no image the driver
    // refuses.
    let loaded = unsafe { result::module::load_data(image.as_ptr().cast()) };
    match loaded {
        Ok(handle) => Ok(Module {
            context: context.clone(),
            handle,
        }),
        Err(error) => Err(GpuError::PackRefused {
            architecture: architecture.name,
            reason: words(&error),
        }),
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: loaded once, unloaded once; the functions go with the same device.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}

impl Function {
    fn new(module: &Module, gpu: &Gpu, kernel: &'static Kernel) -> Result<Self, GpuError> {
        let absent = || GpuError::NoKernel {
            kernel: kernel.name.into(),
        };
        let name = std::ffi::CString::new(kernel.name).map_err(|_| absent())?;
        // SAFETY: the module is loaded and lives as long as the device.
        let handle =
            unsafe { result::module::get_function(module.handle, name) }.map_err(|_| absent())?;
        if kernel.shared_bytes > SHARED_FREE {
            assert!(
                kernel.shared_bytes <= gpu.shared_bytes,
                "invariant: {} fits the shared memory of {}",
                kernel.name,
                gpu.name
            );
            let attribute =
                CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = kernel.shared_bytes as i32;
            // SAFETY: the handle is that function's.
            unsafe { result::function::set_function_attribute(handle, attribute, bytes) }
                .map_err(GpuError::call("cuFuncSetAttribute"))?;
        }
        Ok(Self { handle, kernel })
    }
}

//! Memory: arenas on the device, taken once and divided by offset, and pinned buffers on the host.
#![expect(
    unsafe_code,
    reason = "memory of the driver behind bounds that are checked here"
)]

use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, result};

use super::error::GpuError;

/// Numbers that any bits are a value of.
pub trait Plain: Copy + Default + 'static {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for i32 {}
impl Plain for f32 {}

/// A piece of device memory; kernels get addresses in it.
pub struct Arena {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    address: u64,
    bytes: usize,
}

impl Arena {
    pub(super) fn new(
        context: Arc<CudaContext>,
        stream: Arc<CudaStream>,
        bytes: usize,
    ) -> Result<Self, GpuError> {
        assert!(bytes > 0, "invariant: an arena is not empty");
        // SAFETY: the context is current on its thread; the memory is read only after it is written.
        let address =
            unsafe { result::malloc_sync(bytes) }.map_err(GpuError::call("cuMemAlloc"))?;
        Ok(Self {
            context,
            stream,
            address,
            bytes,
        })
    }

    /// Returns the address of a range.
    pub fn address(&self, offset: usize, bytes: usize) -> u64 {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "invariant: {bytes} bytes at {offset} lie in an arena of {}",
            self.bytes
        );
        self.address + offset as u64
    }

    /// Writes values; returns when they may be changed again.
    pub fn upload<T: Plain>(&self, offset: usize, values: &[T]) -> Result<(), GpuError> {
        self.copy_from(&self.stream, offset, values)
    }

    pub(super) fn copy_from<T: Plain>(
        &self,
        stream: &CudaStream,
        offset: usize,
        values: &[T],
    ) -> Result<(), GpuError> {
        let address = self.address(offset, size_of_val(values));
        // SAFETY: the range lies in this arena.
        unsafe { result::memcpy_htod_async(address, values, stream.cu_stream()) }
            .map_err(GpuError::call("cuMemcpyHtoD"))
    }

    /// Reads values once the stream has come that far.
    pub fn download<T: Plain>(&self, offset: usize, len: usize) -> Result<Vec<T>, GpuError> {
        let mut values = vec![T::default(); len];
        self.read_into(offset, &mut values)?;
        self.stream
            .synchronize()
            .map_err(GpuError::call("cuStreamSynchronize"))?;
        Ok(values)
    }

    /// Lets the stream write to pinned memory; also within a capture.
    pub fn download_later<T: Plain>(
        &self,
        offset: usize,
        to: &mut Pinned<T>,
    ) -> Result<(), GpuError> {
        self.read_into(offset, to.as_mut_slice())
    }

    fn read_into<T: Plain>(&self, offset: usize, values: &mut [T]) -> Result<(), GpuError> {
        let address = self.address(offset, size_of_val(values));
        // SAFETY: the range lies in this arena; callers wait before they look.
        unsafe { result::memcpy_dtoh_async(values, address, self.stream.cu_stream()) }
            .map_err(GpuError::call("cuMemcpyDtoH"))
    }

    /// Fills a range with a byte.
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<(), GpuError> {
        let address = self.address(offset, bytes);
        // SAFETY: the range lies in this arena.
        unsafe { result::memset_d8_async(address, value, bytes, self.stream.cu_stream()) }
            .map_err(GpuError::call("cuMemsetD8"))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Nothing can be done about a device that is gone: its memory went with it.
        let _ = self.stream.synchronize();
        let _ = self.context.bind_to_thread();
        // SAFETY: taken in `new`, given back once, after all work on it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Host memory that stays in place, so the device can copy by itself. It isn't write-combined: hosts read it fast.
pub struct Pinned<T: Plain> {
    context: Arc<CudaContext>,
    pointer: *mut T,
    len: usize,
    kind: PhantomData<T>,
}

impl<T: Plain> Pinned<T> {
    pub(super) fn new(context: Arc<CudaContext>, len: usize) -> Result<Self, GpuError> {
        assert!(len > 0, "invariant: pinned memory is not empty");
        // SAFETY: the memory is filled before it is seen.
        let pointer = unsafe { result::malloc_host(len * size_of::<T>(), 0) }
            .map_err(GpuError::call("cuMemHostAlloc"))?
            .cast::<T>();
        for index in 0..len {
            // SAFETY: inside what was just taken.
            unsafe { pointer.add(index).write(T::default()) };
        }
        Ok(Self {
            context,
            pointer,
            len,
            kind: PhantomData,
        })
    }

    /// Returns the values. What the device writes shows after a wait.
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: `len` values, initialised.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }

    /// Returns the values to change them.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as for `as_slice`, and the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.len) }
    }
}

impl<T: Plain> Drop for Pinned<T> {
    fn drop(&mut self) {
        let _ = self.context.synchronize();
        // SAFETY: taken in `new`, given back once.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}

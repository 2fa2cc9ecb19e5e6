//! Loads and stores through pointers, for kernels whose rows interleave in memory.
#![expect(
    unsafe_code,
    reason = "kernels address channel ranges of shared buffers"
)]

use super::{BLOCK, Simd};

/// Loads sixteen floats.
///
/// # Safety
/// `source` points to sixteen readable floats.
#[inline(always)]
pub unsafe fn load<S: Simd>(simd: S, source: *const f32) -> S::F16 {
    // SAFETY: the caller's promise; `[f32; 16]` is aligned like `f32`.
    simd.load(unsafe { &*source.cast::<[f32; BLOCK]>() })
}

/// Stores sixteen floats.
///
/// # Safety
/// `target` points to sixteen floats that nobody else touches meanwhile.
#[inline(always)]
pub unsafe fn store<S: Simd>(simd: S, value: S::F16, target: *mut f32) {
    // SAFETY: the caller's promise; `[f32; 16]` is aligned like `f32`.
    simd.store(value, unsafe { &mut *target.cast::<[f32; BLOCK]>() });
}

/// Writes zeros.
///
/// # Safety
/// `target` points to `len` floats that nobody else touches meanwhile.
#[inline(always)]
pub unsafe fn clear(target: *mut f32, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(target, 0, len) };
}

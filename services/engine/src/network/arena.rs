//! The one block of memory a network works in.
#![expect(unsafe_code, reason = "one aligned allocation, handed out in pieces")]

use std::alloc::{Layout, alloc, dealloc};
use std::cell::Cell;
use std::ptr::NonNull;

use crate::plan::Buffer;

/// Alignment of the block: a huge page, so that the system can back it with huge pages.
const ALIGNMENT_BYTES: usize = 2 << 20;

/// Floats, zero at first.
#[derive(Debug)]
pub(super) struct Arena {
    pointer: NonNull<f32>,
    len: usize,
}

// SAFETY: the arena owns its memory; what it hands out borrows it and is `Cell` or guarded by `&mut`.
unsafe impl Send for Arena {}

impl Arena {
    /// Allocates `len` floats and touches them all, or returns none where the system refuses.
    pub fn new(len: usize) -> Option<Self> {
        let len = len.max(1);
        let layout = Self::layout(len)?;
        // SAFETY: the layout is not empty.
        let pointer = NonNull::new(unsafe { alloc(layout) }.cast::<f32>())?;
        advise_huge_pages(pointer, layout.size());
        // SAFETY: the block was just allocated with this length; all-zero bytes are floats.
        unsafe { pointer.write_bytes(0, len) };
        Some(Self { pointer, len })
    }

    fn layout(len: usize) -> Option<Layout> {
        let bytes = len.checked_mul(size_of::<f32>())?;
        Layout::from_size_align(bytes, ALIGNMENT_BYTES).ok()
    }

    /// Returns a buffer's floats, shared.
    pub fn cells(&self, buffer: &Buffer) -> &[Cell<f32>] {
        let floats = self.start(buffer).cast::<Cell<f32>>();
        // SAFETY: `start` has checked the range; a `Cell<f32>` is laid out as its `f32`, and the arena hands
        // out plain references only through the two unsafe functions below.
        unsafe { std::slice::from_raw_parts(floats, buffer.length) }
    }

    /// Returns a buffer's floats to read.
    ///
    /// # Safety
    /// Nobody writes them while the slice lives.
    pub unsafe fn floats(&self, buffer: &Buffer) -> &[f32] {
        // SAFETY: `start` has checked the range; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start(buffer), buffer.length) }
    }

    /// Returns a buffer's floats to write.
    ///
    /// # Safety
    /// Nobody else uses them while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the plan keeps buffers that are in use together apart"
    )]
    pub unsafe fn floats_mut(&self, buffer: &Buffer) -> &mut [f32] {
        // SAFETY: `start` has checked the range; the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start(buffer), buffer.length) }
    }

    fn start(&self, buffer: &Buffer) -> *mut f32 {
        assert!(
            buffer.offset + buffer.length <= self.len,
            "invariant: buffers lie in the arena"
        );
        // SAFETY: the offset lies in the block.
        unsafe { self.pointer.as_ptr().add(buffer.offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let layout = Self::layout(self.len).expect("invariant: it was allocated with this layout");
        // SAFETY: the pointer came from `alloc` with this layout.
        unsafe { dealloc(self.pointer.as_ptr().cast(), layout) };
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(pointer: NonNull<f32>, bytes: usize) {
    // SAFETY: the range was just allocated. A refusal only costs speed.
    let _ = unsafe { libc::madvise(pointer.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: NonNull<f32>, _: usize) {}

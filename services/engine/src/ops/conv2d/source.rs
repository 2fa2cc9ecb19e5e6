//! Reading a source into strips: dense rows with the padding written out, so that every window is inside.
#![expect(
    unsafe_code,
    reason = "sources and strips are addressed by pointer inside a pass"
)]

use super::geometry::IMAGE_STRIP_CHANNELS;
use super::{IMAGE_CHANNELS, Input, Shape};
use crate::ops::simd::{BLOCK, Simd, pointer};
use crate::ops::view::RawView;

/// Where pixels come from, checked and without its bounds.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    View(RawView),
    Bytes(*const u8),
    Floats(*const f32),
}

// SAFETY: sources are only read while a pass borrows them.
unsafe impl Send for Source {}
// SAFETY: as for `Send`.
unsafe impl Sync for Source {}

impl Source {
    /// Drops the bounds of a checked input.
    pub fn new(shape: &Shape, input: Input<'_>) -> Self {
        match input {
            Input::View(view) => Self::View(view.raw(shape.input_pixels(), shape.input.padded())),
            Input::Bytes(bytes) => Self::Bytes(bytes.as_ptr()),
            Input::Floats(floats) => Self::Floats(floats.as_ptr()),
        }
    }

    /// Copies `count` pixels from `pixel` on as dense `channels` floats each.
    ///
    /// # Safety
    /// The pixels lie in the source; `target` has room for them.
    #[inline(always)]
    pub unsafe fn copy<S: Simd>(
        self,
        simd: S,
        pixel: usize,
        count: usize,
        channels: usize,
        target: *mut f32,
    ) {
        // SAFETY: the caller's promise; strips never overlap sources.
        unsafe {
            match self {
                Self::View(view) => {
                    if view.pixel_stride == channels {
                        let source = view.pixel(pixel);
                        for place in (0..count * channels).step_by(BLOCK) {
                            let value = pointer::load(simd, source.add(place));
                            pointer::store(simd, value, target.add(place));
                        }
                        return;
                    }
                    for index in 0..count {
                        let source = view.pixel(pixel + index);
                        let target = target.add(index * channels);
                        for channel in (0..channels).step_by(BLOCK) {
                            let value = pointer::load(simd, source.add(channel));
                            pointer::store(simd, value, target.add(channel));
                        }
                    }
                }
                Self::Bytes(bytes) => {
                    let scale = 1.0 / 255.0;
                    let source = bytes.add(pixel * IMAGE_CHANNELS);
                    for index in 0..count {
                        let source = source.add(index * IMAGE_CHANNELS);
                        let target = target.add(index * IMAGE_STRIP_CHANNELS);
                        for colour in 0..IMAGE_CHANNELS {
                            *target.add(colour) = f32::from(*source.add(colour)) * scale;
                        }
                        *target.add(IMAGE_CHANNELS) = 0.0;
                    }
                }
                Self::Floats(floats) => {
                    let source = floats.add(pixel * IMAGE_CHANNELS);
                    for index in 0..count {
                        let source = source.add(index * IMAGE_CHANNELS);
                        let target = target.add(index * IMAGE_STRIP_CHANNELS);
                        for colour in 0..IMAGE_CHANNELS {
                            *target.add(colour) = *source.add(colour);
                        }
                        *target.add(IMAGE_CHANNELS) = 0.0;
                    }
                }
            }
        }
    }

    /// Copies one block of channels of `count` pixels as dense 16 floats each.
    ///
    /// # Safety
    /// As for `copy`; the source is a view that has the channels.
    #[inline(always)]
    pub unsafe fn copy_block<S: Simd>(
        self,
        simd: S,
        pixel: usize,
        count: usize,
        channel: usize,
        target: *mut f32,
    ) {
        let Self::View(view) = self else {
            unreachable!("invariant: images have one block");
        };
        // SAFETY: the caller's promise; strips never overlap sources.
        unsafe {
            let source = view.pixel(pixel).add(channel);
            for index in 0..count {
                let value = pointer::load(simd, source.add(index * view.pixel_stride));
                pointer::store(simd, value, target.add(index * BLOCK));
            }
        }
    }
}

/// Writes zeros.
///
/// # Safety
/// `target` has room for `len` floats.
#[inline(always)]
pub(super) unsafe fn clear(target: *mut f32, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::write_bytes(target, 0, len) };
}

/// A window of source rows and columns that may reach outside of the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub image: usize,
    pub height: usize,
    pub width: usize,
    pub first_row: isize,
    pub rows: usize,
    pub first_column: isize,
    pub columns: usize,
}

impl Window {
    /// Returns the columns before, inside and after the image, and the first column inside.
    #[inline(always)]
    fn columns(&self) -> (usize, usize, usize, usize) {
        let first = self.first_column.max(0);
        let last = (self.first_column + self.columns as isize).min(self.width as isize);
        let inside = (last - first).max(0) as usize;
        let before = ((first - self.first_column) as usize).min(self.columns);
        (
            before,
            inside,
            self.columns - before - inside,
            first as usize,
        )
    }

    /// Returns the first pixel of a row of the window, if it is in the image.
    #[inline(always)]
    fn line(&self, row: usize) -> Option<usize> {
        let y = self.first_row + row as isize;
        (y >= 0 && y < self.height as isize)
            .then(|| (self.image * self.height + y as usize) * self.width)
    }

    /// Copies the window as `[row][column][channels]`.
    ///
    /// # Safety
    /// The source has the window's image; `target` has room for the window.
    #[inline(always)]
    pub unsafe fn read<S: Simd>(&self, simd: S, source: Source, channels: usize, target: *mut f32) {
        let (before, inside, after, first) = self.columns();
        for row in 0..self.rows {
            // SAFETY: the caller's promise; `line` and `columns` keep reads inside of the image.
            unsafe {
                let target = target.add(row * self.columns * channels);
                let Some(line) = self.line(row) else {
                    clear(target, self.columns * channels);
                    continue;
                };
                clear(target, before * channels);
                let start = target.add(before * channels);
                source.copy(simd, line + first, inside, channels, start);
                clear(start.add(inside * channels), after * channels);
            }
        }
    }

    /// Copies the window as `[block][row][column][16]`, or as `read` does for images.
    ///
    /// # Safety
    /// As for `read`.
    #[inline(always)]
    pub unsafe fn read_blocks<S: Simd>(
        &self,
        simd: S,
        source: Source,
        channels: usize,
        target: *mut f32,
    ) {
        if channels < BLOCK {
            // SAFETY: the caller's promise.
            return unsafe { self.read(simd, source, channels, target) };
        }
        let (before, inside, after, first) = self.columns();
        for block in 0..channels / BLOCK {
            for row in 0..self.rows {
                // SAFETY: as in `read`.
                unsafe {
                    let place = (block * self.rows + row) * self.columns;
                    let target = target.add(place * BLOCK);
                    let Some(line) = self.line(row) else {
                        clear(target, self.columns * BLOCK);
                        continue;
                    };
                    clear(target, before * BLOCK);
                    let start = target.add(before * BLOCK);
                    source.copy_block(simd, line + first, inside, block * BLOCK, start);
                    clear(start.add(inside * BLOCK), after * BLOCK);
                }
            }
        }
    }
}

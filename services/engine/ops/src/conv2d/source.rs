//! Reading a source into strips: dense rows with the padding written out, so that every window is inside.
#![expect(
    unsafe_code,
    reason = "sources and strips are addressed by pointer inside a pass"
)]

use super::{Input, Shape};
use crate::simd::pointer::{self, clear};
use crate::simd::{BLOCK, Simd};
use crate::view::RawView;

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
                // Pixels are dense on both sides, so the colours are one long row.
                Self::Bytes(bytes) => {
                    let source = bytes.add(pixel * channels);
                    for index in 0..count * channels {
                        *target.add(index) = f32::from(*source.add(index)) * (1.0 / 255.0);
                    }
                }
                Self::Floats(floats) => {
                    let source = floats.add(pixel * channels);
                    std::ptr::copy_nonoverlapping(source, target, count * channels);
                }
            }
        }
    }

    /// Copies `blocks` blocks of channels from `channel` on: pixel `p` of block `b` goes to
    /// `target[b * block_stride + p * pixel_stride]`.
    ///
    /// # Safety
    /// The pixels lie in the source, which is a view that has the channels; `target` has room for them.
    #[inline(always)]
    pub unsafe fn copy_blocks<S: Simd>(
        self,
        simd: S,
        (pixel, count): (usize, usize),
        (channel, blocks): (usize, usize),
        target: *mut f32,
        (pixel_stride, block_stride): (usize, usize),
    ) {
        let Self::View(view) = self else {
            unreachable!("invariant: images have no blocks");
        };
        // SAFETY: the caller's promise; strips never overlap sources.
        unsafe {
            for index in 0..count {
                let source = view.pixel(pixel + index).add(channel);
                let target = target.add(index * pixel_stride);
                for block in 0..blocks {
                    let value = pointer::load(simd, source.add(block * BLOCK));
                    pointer::store(simd, value, target.add(block * block_stride));
                }
            }
        }
    }
}

/// Reads a block of a pixel's channels, or zeros where there is no pixel.
///
/// # Safety
/// The block lies in the view.
#[inline(always)]
unsafe fn block_of<S: Simd>(simd: S, view: RawView, pixel: Option<usize>, block: usize) -> S::F16 {
    match pixel {
        // SAFETY: the caller's promise.
        Some(pixel) => unsafe { pointer::load(simd, view.pixel(pixel).add(block * BLOCK)) },
        None => simd.zero(),
    }
}

/// Copies blocks of channels of some pixels in pairs, rounded to bf16: pixels `2 p` and `2 p + 1`, zero behind the
/// last, go to `target[b * block_stride + p * pixel_stride]` for block `b`.
///
/// # Safety
/// The pixels and blocks lie in the view; `target` has room for the pairs.
#[inline(always)]
pub(super) unsafe fn copy_pixel_pairs<S: Simd>(
    simd: S,
    view: RawView,
    (pixel, count): (usize, usize),
    (first_block, blocks): (usize, usize),
    target: *mut f32,
    (pixel_stride, block_stride): (usize, usize),
) {
    for index in 0..count.div_ceil(2) {
        let low = pixel + 2 * index;
        let high = (2 * index + 1 < count).then_some(low + 1);
        for block in 0..blocks {
            // SAFETY: the caller's promise.
            unsafe {
                let values = [
                    block_of(simd, view, Some(low), first_block + block),
                    block_of(simd, view, high, first_block + block),
                ];
                let target = target.add(block * block_stride + index * pixel_stride);
                pointer::store(simd, simd.pair(values[0], values[1]), target);
            }
        }
    }
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

    /// Returns a request for the window's rows.
    #[inline(always)]
    pub fn prefetch(&self, source: Source, channels: usize) -> Prefetch {
        let Source::View(view) = source else {
            return Prefetch::none();
        };
        let top = self.first_row.clamp(0, self.height as isize) as usize;
        let bottom = self.first_row + self.rows as isize;
        let rows = bottom.clamp(0, self.height as isize) as usize - top;
        let (_, inside, _, first) = self.columns();
        // From the first pixel to the last, as if rows were complete.
        let pixel = (self.image * self.height + top) * self.width + first;
        let pixels = rows.saturating_sub(1) * self.width + inside;
        Prefetch::view(view, pixel, pixels, 0, channels / BLOCK)
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

    /// Copies the window as `[row][column][channels / 2]`, pairs of neighbouring channels rounded to bf16.
    ///
    /// # Safety
    /// As for `read`; the source is a view.
    #[inline(always)]
    pub unsafe fn read_rounded<S: Simd>(
        &self,
        simd: S,
        source: Source,
        channels: usize,
        target: *mut f32,
    ) {
        let Source::View(view) = source else {
            unreachable!("invariant: images are not rounded");
        };
        let (before, inside, after, first) = self.columns();
        let pixel_len = channels / 2;
        for row in 0..self.rows {
            // SAFETY: as in `read`.
            unsafe {
                let target = target.add(row * self.columns * pixel_len);
                let Some(line) = self.line(row) else {
                    clear(target, self.columns * pixel_len);
                    continue;
                };
                clear(target, before * pixel_len);
                let start = target.add(before * pixel_len);
                for index in 0..inside {
                    let source = view.pixel(line + first + index);
                    for channel in (0..channels).step_by(BLOCK) {
                        let value = pointer::load(simd, source.add(channel));
                        simd.store_rounded(value, start.add(index * pixel_len + channel / 2));
                    }
                }
                clear(start.add(inside * pixel_len), after * pixel_len);
            }
        }
    }

    /// Copies the window as `[block][row][column][16]`, each float a pair of a column and the one `step` columns on,
    /// rounded to bf16; zero where one lies outside of the image or the window.
    ///
    /// # Safety
    /// As for `read_rounded`.
    #[inline(always)]
    pub unsafe fn read_column_pairs<S: Simd>(
        &self,
        simd: S,
        source: Source,
        (blocks, step): (usize, usize),
        target: *mut f32,
    ) {
        let Source::View(view) = source else {
            unreachable!("invariant: images are not rounded");
        };
        for row in 0..self.rows {
            let line = self.line(row);
            for column in 0..self.columns {
                let pixels = [column, column + step].map(|column| self.pixel(line, column));
                for block in 0..blocks {
                    // SAFETY: the caller's promise; `pixel` keeps reads inside of the image.
                    unsafe {
                        let [low, high] = [
                            block_of(simd, view, pixels[0], block),
                            block_of(simd, view, pixels[1], block),
                        ];
                        let place = (block * self.rows + row) * self.columns + column;
                        pointer::store(simd, simd.pair(low, high), target.add(place * BLOCK));
                    }
                }
            }
        }
    }

    /// Returns the pixel at a column of a line, if it is in the image and the window.
    #[inline(always)]
    fn pixel(&self, line: Option<usize>, column: usize) -> Option<usize> {
        let x = self.first_column + column as isize;
        let is_inside = column < self.columns && x >= 0 && x < self.width as isize;
        line.filter(|_| is_inside).map(|line| line + x as usize)
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
        let blocks = channels / BLOCK;
        let block_stride = self.rows * self.columns * BLOCK;
        for row in 0..self.rows {
            // SAFETY: as in `read`.
            unsafe {
                let target = target.add(row * self.columns * BLOCK);
                let line = self.line(row);
                let start = target.add(before * BLOCK);
                for block in 0..blocks {
                    let offset = block * block_stride;
                    if line.is_none() {
                        clear(target.add(offset), self.columns * BLOCK);
                        continue;
                    }
                    clear(target.add(offset), before * BLOCK);
                    clear(start.add(offset + inside * BLOCK), after * BLOCK);
                }
                if let Some(line) = line {
                    let pixels = (line + first, inside);
                    let strides = (BLOCK, block_stride);
                    source.copy_blocks(simd, pixels, (0, blocks), start, strides);
                }
            }
        }
    }
}

/// Asks for the memory of pixels that are needed soon, a few cache lines at a time between other work.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prefetch {
    next: *const f32,
    /// Floats from the end of a pixel's channels to the next pixel.
    gap: usize,
    lines_per_pixel: usize,
    lines_left_in_pixel: usize,
    lines: usize,
}

impl Prefetch {
    /// Asks for nothing.
    pub fn none() -> Self {
        Self {
            next: std::ptr::null(),
            gap: 0,
            lines_per_pixel: 1,
            lines_left_in_pixel: 1,
            lines: 0,
        }
    }

    /// Asks for blocks of channels of some pixels.
    #[inline(always)]
    pub fn view(view: RawView, pixel: usize, pixels: usize, channel: usize, blocks: usize) -> Self {
        Self {
            next: view
                .pointer
                .wrapping_add(pixel * view.pixel_stride + channel),
            gap: view.pixel_stride - blocks * BLOCK,
            lines_per_pixel: blocks,
            lines_left_in_pixel: blocks,
            lines: pixels * blocks,
        }
    }

    /// Returns the cache lines to ask for.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Asks for the next `count` lines.
    #[inline(always)]
    pub fn step<S: Simd>(&mut self, simd: S, count: usize) {
        let count = count.min(self.lines);
        self.lines -= count;
        for _ in 0..count {
            simd.prefetch(self.next);
            self.next = self.next.wrapping_add(BLOCK);
            self.lines_left_in_pixel -= 1;
            if self.lines_left_in_pixel == 0 {
                self.next = self.next.wrapping_add(self.gap);
                self.lines_left_in_pixel = self.lines_per_pixel;
            }
        }
    }
}

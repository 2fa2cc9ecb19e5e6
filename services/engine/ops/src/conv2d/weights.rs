//! Direct backward-weights: `dw[k][oc] = Σ_p x[p][k] · dy[p][oc]`.
//!
//! A task owns a partial gradient: a share of the target rows and a group of output channels. It copies rows of
//! both operands into blocks of 16 channels, so that walking along pixels is walking along memory, then runs
//! register tiles over stretches that stay in a level 1 cache. A pointwise convolution's operands are read where they
//! are, in shorter stretches: there a copy costs up to half of the products' time. Its pairs of bf16 have to be copied;
//! their channels stay side by side, so that tiles are as high as they can be, at an odd number of cache lines a pixel,
//! so that pixels do not compete for the same places in a cache. The number of tasks depends on the shape alone, and
//! partials are added in their order.
#![expect(
    unsafe_code,
    reason = "partials of one buffer are written by several threads"
)]

use std::cell::Cell;

use super::Shape;
use super::geometry::Gather;
use super::kernels::{PANELS_MAX, ScatterTile, Tiles, scatter, tile_panels, tile_rows};
use super::source::{Prefetch, Source, Window, copy_pixel_pairs};
use crate::parallel::Threads;
use crate::simd::pointer::clear;
use crate::simd::{BLOCK, Kernel, Level, Simd, dispatch_dot};
use crate::view::{RawView, View, as_cells};

/// Bytes that all partial gradients together may take, which are written and read once a step.
const PARTIALS_BYTES_MAX: usize = 4 << 20;
const PARTIALS_MAX: usize = 32;

/// Tasks that a layer is cut into where it is large enough.
const TASKS: usize = 16;

/// Pixels of a stretch: 16 channels of both operands fit a level 1 cache. With a stride the source has as many more.
const STRETCH_PIXELS: usize = 168;

/// Pixels of a stretch of operands that are not copied, whose pixels compete for the same places in the cache.
const STRETCH_PIXELS_IN_PLACE: usize = 48;

/// Floats of both operands of a chunk of rows: a share of a level 2 cache.
const CHUNK_FLOATS: usize = 128 * 1024;

/// How backward-weights is cut.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    geometry: Gather,
    /// Both operands are copied as pairs of pixels, rounded to bf16.
    is_rounded: bool,
    /// Target rows of a chunk, or pixels if pointwise.
    chunk_len: usize,
    chunk_count: usize,
    partials: usize,
    /// Panels of a group of output channels.
    group_panels: usize,
    groups: usize,
    /// Floats of a partial gradient, all groups together.
    partial_len: usize,
    /// Floats of a lane's copies.
    lane_len: usize,
    /// Floats of the source's copy, within a lane's.
    source_len: usize,
}

impl Cut {
    pub fn new(geometry: Gather, is_rounded: bool) -> Self {
        let panels = geometry.panels();
        let depth = geometry.phases[0].depth(geometry.source.channels);
        let partial_len = panels * depth * BLOCK;
        let stretch = stretch(&geometry, is_rounded);
        let (chunk_len, rows) = if geometry.is_pointwise {
            let pixel = geometry.source.channels + geometry.target.channels;
            let stretches = (CHUNK_FLOATS / pixel / stretch).max(1);
            let pixels = geometry.batch * geometry.target.height * geometry.target.width;
            (stretches * stretch, pixels)
        } else {
            let rows = geometry.target.height;
            let row = geometry.strip_stride() * geometry.source_step
                + geometry.target.width * geometry.target.channels;
            let most = (CHUNK_FLOATS / row).clamp(1, rows);
            (rows.div_ceil(rows.div_ceil(most)), rows)
        };
        let images = if geometry.is_pointwise {
            1
        } else {
            geometry.batch
        };
        let chunk_count = images * rows.div_ceil(chunk_len);
        let partials = (PARTIALS_BYTES_MAX / (partial_len * size_of::<f32>()))
            .clamp(1, PARTIALS_MAX)
            .min(chunk_count);
        // A group reads the source anew, which pays only for several panels; tiles take two at a time.
        let least = if geometry.is_pointwise { 4 } else { PANELS_MAX };
        let groups = TASKS.div_ceil(partials).min(panels.div_ceil(least));
        let group_panels = panels
            .div_ceil(groups)
            .next_multiple_of(PANELS_MAX)
            .min(panels);
        let (source_pixels, target_pixels) = if geometry.is_pointwise {
            let copied = copied_pixels(is_rounded, chunk_len);
            (copied, copied)
        } else {
            let rows = geometry.strip_rows(chunk_len);
            (
                rows * geometry.strip_columns,
                chunk_len * copied_pixels(is_rounded, geometry.target.width),
            )
        };
        let source_len = source_pixels * pixel_len(&geometry);
        let lane_len = if is_in_place(&geometry, is_rounded) {
            0
        } else {
            source_len + target_pixels * group_panels * BLOCK
        };
        Self {
            is_rounded,
            chunk_len,
            chunk_count,
            partials,
            group_panels,
            groups: panels.div_ceil(group_panels),
            partial_len,
            lane_len,
            source_len,
            geometry,
        }
    }

    /// Returns whether operands are read where they are.
    fn is_in_place(&self) -> bool {
        is_in_place(&self.geometry, self.is_rounded)
    }

    /// Returns the pixels of a stretch.
    fn stretch(&self) -> usize {
        stretch(&self.geometry, self.is_rounded)
    }

    /// Returns the floats of scratch memory.
    pub fn scratch_len(&self, thread_count: usize) -> usize {
        self.partials * self.partial_len + self.lane_len * thread_count
    }
}

/// Adds the gradient of the canonical weights.
#[expect(
    clippy::too_many_arguments,
    reason = "the pass's operands, already checked"
)]
pub(super) fn run(
    shape: &Shape,
    cut: &Cut,
    level: Level,
    threads: &Threads,
    source: Source,
    output_gradient: View<'_>,
    weight_gradient: &mut [f32],
    scratch: &[Cell<f32>],
) {
    let geometry = &cut.geometry;
    let pixels = shape.output_pixels();
    let (partials, lanes) = scratch.split_at(cut.partials * cut.partial_len);
    let partials = View::dense(partials, cut.partial_len).raw(cut.partials, cut.partial_len);
    let lanes = (cut.lane_len > 0)
        .then(|| View::dense(lanes, cut.lane_len).raw(threads.count(), cut.lane_len));
    let pass = ScatterPass {
        cut,
        source,
        gradient: output_gradient.raw(pixels, geometry.target.channels),
        partials,
    };
    threads.run_lanes(cut.partials * cut.groups, |lane, task| {
        // SAFETY: lanes are below the thread count and own their copies.
        let lane = lanes.map_or(std::ptr::null_mut(), |lanes| unsafe { lanes.pixel(lane) });
        let pass = &pass;
        if cut.is_rounded {
            dispatch_dot(ScatterTask::<true> { pass, task, lane });
        } else {
            level.dispatch(ScatterTask::<false> { pass, task, lane });
        }
    });
    reduce(shape, cut, threads, partials, weight_gradient);
}

struct ScatterPass<'a> {
    cut: &'a Cut,
    source: Source,
    gradient: RawView,
    partials: RawView,
}

/// One task, of pairs of bf16 with `DOT`.
struct ScatterTask<'a, const DOT: bool> {
    pass: &'a ScatterPass<'a>,
    task: usize,
    lane: *mut f32,
}

/// Where a chunk's operands are read, copied or as they are.
#[derive(Clone, Copy)]
struct Operands {
    source: *const f32,
    /// Floats between the sources of neighbouring target pixels.
    source_stride: usize,
    gradient: *const f32,
    gradient_stride: usize,
    /// Floats from a panel's gradients to the next panel's.
    gradient_panel: usize,
}

/// Rows of both operands.
#[derive(Clone, Copy)]
struct Chunk {
    /// Target rows and columns, and the first target pixel.
    rows: usize,
    columns: usize,
    pixel: usize,
    /// The source's rows and columns.
    window: Window,
}

impl<const DOT: bool> Kernel for ScatterTask<'_, DOT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let ScatterPass { cut, partials, .. } = *self.pass;
        let geometry = &cut.geometry;
        let (partial, group) = (self.task / cut.groups, self.task % cut.groups);
        let first_panel = group * cut.group_panels;
        let panels = cut.group_panels.min(geometry.panels() - first_panel);
        let panel_len = cut.partial_len / geometry.panels();
        // SAFETY: each task has its own panels of a partial.
        let sums = unsafe {
            let sums = partials.pixel(partial).add(first_panel * panel_len);
            clear(sums, panels * panel_len);
            sums
        };
        let first = partial * cut.chunk_count / cut.partials;
        let last = (partial + 1) * cut.chunk_count / cut.partials;
        for index in first..last {
            let chunk = self.chunk(index);
            let operands = if cut.is_in_place() {
                self.in_place(chunk, first_panel)
            } else {
                // SAFETY: the lane's memory has room for the copies of a full chunk.
                unsafe { self.copy(simd, chunk, first_panel, panels) };
                self.copied(chunk)
            };
            let prefetch = if index + 1 < last {
                let next = self.chunk(index + 1);
                let pixels = next.rows * next.columns;
                [
                    next.window
                        .prefetch(self.pass.source, geometry.source.channels),
                    Prefetch::view(
                        self.pass.gradient,
                        next.pixel,
                        pixels,
                        first_panel * BLOCK,
                        panels,
                    ),
                ]
            } else {
                [Prefetch::none(); 2]
            };
            self.stretches(simd, chunk, operands, (panels, panel_len), sums, prefetch);
        }
    }
}

impl<const DOT: bool> ScatterTask<'_, DOT> {
    /// Describes a chunk.
    #[inline(always)]
    fn chunk(&self, index: usize) -> Chunk {
        let cut = self.pass.cut;
        let geometry = &cut.geometry;
        if geometry.is_pointwise {
            let all = geometry.batch * geometry.target.height * geometry.target.width;
            let first = index * cut.chunk_len;
            let pixels = cut.chunk_len.min(all - first);
            // The batch is one long row.
            let window = Window {
                image: 0,
                height: 1,
                width: all,
                first_row: 0,
                rows: 1,
                first_column: first as isize,
                columns: pixels,
            };
            return Chunk {
                rows: 1,
                columns: pixels,
                pixel: first,
                window,
            };
        }
        let chunks_per_image = geometry.target.height.div_ceil(cut.chunk_len);
        let image = index / chunks_per_image;
        let first = index % chunks_per_image * cut.chunk_len;
        let rows = cut.chunk_len.min(geometry.target.height - first);
        let window = Window {
            image,
            height: geometry.source.height,
            width: geometry.source.width,
            first_row: geometry.strip_origin.0 + (first * geometry.source_step) as isize,
            rows: geometry.strip_rows(rows),
            first_column: geometry.strip_origin.1,
            columns: geometry.strip_columns,
        };
        Chunk {
            rows,
            columns: geometry.target.width,
            pixel: (image * geometry.target.height + first) * geometry.target.width,
            window,
        }
    }

    /// Names a chunk's operands where they are.
    #[inline(always)]
    fn in_place(&self, chunk: Chunk, first_panel: usize) -> Operands {
        let ScatterPass {
            source, gradient, ..
        } = *self.pass;
        let Source::View(source) = source else {
            unreachable!("invariant: pointwise convolutions read views");
        };
        // SAFETY: the chunk's pixels lie in both views.
        unsafe {
            Operands {
                source: source.pixel(chunk.pixel),
                source_stride: source.pixel_stride,
                gradient: gradient.pixel(chunk.pixel).add(first_panel * BLOCK),
                gradient_stride: gradient.pixel_stride,
                gradient_panel: BLOCK,
            }
        }
    }

    /// Names a chunk's operands in the lane's memory.
    #[inline(always)]
    fn copied(&self, chunk: Chunk) -> Operands {
        let cut = self.pass.cut;
        let geometry = &cut.geometry;
        let block = block(geometry);
        Operands {
            source: self.lane,
            source_stride: if geometry.is_pointwise {
                pixel_len(geometry)
            } else if DOT {
                2 * geometry.source_step * block
            } else {
                geometry.source_step * block
            },
            gradient: self.lane.wrapping_add(cut.source_len),
            gradient_stride: BLOCK,
            gradient_panel: chunk.rows * copied_pixels(DOT, chunk.columns) * BLOCK,
        }
    }

    /// Copies a chunk's operands into the lane's memory.
    ///
    /// # Safety
    /// The lane's memory has room for them.
    #[inline(always)]
    unsafe fn copy<S: Simd>(&self, simd: S, chunk: Chunk, first_panel: usize, panels: usize) {
        let ScatterPass {
            cut,
            source,
            gradient,
            ..
        } = *self.pass;
        let geometry = &cut.geometry;
        let pixels = chunk.rows * chunk.columns;
        let channels = geometry.source.channels;
        let gradients = self.lane.wrapping_add(cut.source_len);
        // SAFETY: the caller's promise; the chunk's pixels lie in the operands.
        unsafe {
            match source {
                Source::View(view) if DOT && geometry.is_pointwise => copy_pixel_pairs(
                    simd,
                    view,
                    (chunk.pixel, pixels),
                    (0, channels / BLOCK),
                    self.lane,
                    (pixel_len(geometry), BLOCK),
                ),
                _ if DOT => chunk.window.read_column_pairs(
                    simd,
                    source,
                    (channels / BLOCK, geometry.source_step),
                    self.lane,
                ),
                _ => chunk.window.read_blocks(simd, source, channels, self.lane),
            }
            if DOT {
                let columns = copied_pixels(true, chunk.columns);
                for row in 0..chunk.rows {
                    copy_pixel_pairs(
                        simd,
                        gradient,
                        (chunk.pixel + row * chunk.columns, chunk.columns),
                        (first_panel, panels),
                        gradients.add(row * columns * BLOCK),
                        (BLOCK, chunk.rows * columns * BLOCK),
                    );
                }
            } else {
                Source::View(gradient).copy_blocks(
                    simd,
                    (chunk.pixel, pixels),
                    (first_panel * BLOCK, panels),
                    gradients,
                    (BLOCK, pixels * BLOCK),
                );
            }
        }
    }

    /// Adds a chunk's products, one cache-sized stretch of pixels after the other.
    #[inline(always)]
    fn stretches<S: Simd>(
        &self,
        simd: S,
        chunk: Chunk,
        operands: Operands,
        (panels, panel_len): (usize, usize),
        sums: *mut f32,
        mut prefetch: [Prefetch; 2],
    ) {
        let geometry = &self.pass.cut.geometry;
        let columns = copied_pixels(DOT, chunk.columns);
        let block = block(geometry);
        let blocks = geometry.source.channels / block;
        let taps = geometry.phases[0].taps;
        let step = geometry.source_step;
        let source_row = chunk.window.columns * block;
        let source_stride = operands.source_stride;
        let stretch = self.pass.cut.stretch();
        let rows_most = (stretch / columns).max(1);
        let stretches = chunk.rows.div_ceil(rows_most) * columns.div_ceil(stretch);
        let panel_groups = panels.div_ceil(tile_panels::<S>(PANELS_MAX));
        let steps = stretches * panel_groups * taps.0 * blocks;
        let lines = prefetch.map(|prefetch| prefetch.lines().div_ceil(steps));
        for (first_row, pixel_rows) in Tiles::new(chunk.rows, rows_most) {
            for (first_column, pixels) in Tiles::new(columns, stretch) {
                let mut panel = 0;
                while panel < panels {
                    let together = tile_panels::<S>(panels - panel);
                    for (ky, block_index) in
                        (0..taps.0).flat_map(|ky| (0..blocks).map(move |b| (ky, b)))
                    {
                        let block_row = block_index * chunk.window.rows + first_row * step + ky;
                        let source = block_row * source_row + first_column * source_stride;
                        let pixel = first_row * columns + first_column;
                        for (prefetch, lines) in prefetch.iter_mut().zip(lines) {
                            prefetch.step(simd, lines);
                        }
                        let run = taps.1 * block;
                        let row = (ky * blocks + block_index) * run;
                        for (first, rows) in Tiles::new(run, tile_rows::<S>(together)) {
                            // SAFETY: the windows of the stretch lie in the copies, the rows in the panels.
                            unsafe {
                                let tile = ScatterTile {
                                    source: operands.source.add(source + first),
                                    source_stride,
                                    source_row: step * source_row,
                                    gradient: operands.gradient.add(
                                        panel * operands.gradient_panel
                                            + pixel * operands.gradient_stride,
                                    ),
                                    gradient_stride: operands.gradient_stride,
                                    gradient_row: columns * operands.gradient_stride,
                                    gradient_panel: operands.gradient_panel,
                                    pixel_rows,
                                    pixels,
                                    target: sums.add(panel * panel_len + (row + first) * BLOCK),
                                    target_panel: panel_len,
                                };
                                scatter::<S, DOT>(simd, rows, together, &tile);
                            }
                        }
                    }
                    panel += together;
                }
            }
        }
    }
}

/// Returns whether operands are read where they are: a copy of a pointwise convolution's costs more than it spares.
fn is_in_place(geometry: &Gather, is_rounded: bool) -> bool {
    geometry.is_pointwise && !is_rounded
}

/// Returns the pixels of a stretch.
fn stretch(geometry: &Gather, is_rounded: bool) -> usize {
    if is_in_place(geometry, is_rounded) {
        STRETCH_PIXELS_IN_PLACE
    } else {
        STRETCH_PIXELS / geometry.source_step
    }
}

/// Returns the channels of the source that lie side by side when the tiles read them.
fn block(geometry: &Gather) -> usize {
    if geometry.is_pointwise {
        geometry.source.channels
    } else {
        geometry.source.channels.min(BLOCK)
    }
}

/// Returns the pixels or pairs of pixels that stand for some neighbouring pixels in a copy.
#[inline(always)]
fn copied_pixels(is_rounded: bool, pixels: usize) -> usize {
    if is_rounded {
        pixels.div_ceil(2)
    } else {
        pixels
    }
}

/// Returns the floats that a pixel of the source's copy takes.
fn pixel_len(geometry: &Gather) -> usize {
    if geometry.is_pointwise {
        ((geometry.source.channels / BLOCK) | 1) * BLOCK
    } else {
        geometry.source.channels
    }
}

/// Adds the partials, in their order, to the canonical gradient.
fn reduce(
    shape: &Shape,
    cut: &Cut,
    threads: &Threads,
    partials: RawView,
    weight_gradient: &mut [f32],
) {
    let geometry = &cut.geometry;
    let taps = shape.kernel * shape.kernel;
    let per_output = shape.input.count() * taps;
    let block = block(geometry);
    let blocks = geometry.source.channels / block;
    let panel_len = cut.partial_len / geometry.panels();
    let target =
        View::dense(as_cells(weight_gradient), per_output).raw(shape.output.count(), per_output);
    threads.run(geometry.panels(), |panel| {
        // The real output channel of each of the panel's lanes.
        let mut outs = [None; BLOCK];
        for (out, place) in shape.output.places().enumerate() {
            if place / BLOCK == panel {
                // SAFETY: each chunk has its own output channels.
                outs[place % BLOCK] = Some(unsafe { target.pixel(out) });
            }
        }
        for (index, place) in shape.input.places().enumerate() {
            let (block_index, lane) = (place / block, place % block);
            for tap in 0..taps {
                let (ky, kx) = (tap / shape.kernel, tap % shape.kernel);
                let row = ((ky * blocks + block_index) * shape.kernel + kx) * block + lane;
                let mut sums = [0.0_f32; BLOCK];
                for partial in 0..cut.partials {
                    // SAFETY: the row is in the panel; the tasks that wrote it are done.
                    let values = unsafe {
                        let panel = partials.pixel(partial).add(panel * panel_len);
                        &*panel.add(row * BLOCK).cast::<[f32; BLOCK]>()
                    };
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum += value;
                    }
                }
                for (out, sum) in outs.into_iter().zip(sums) {
                    if let Some(gradient) = out {
                        // SAFETY: the element is in the channel's weights.
                        unsafe { *gradient.add(index * taps + tap) += sum };
                    }
                }
            }
        }
    });
}

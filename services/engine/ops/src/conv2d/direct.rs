//! Direct convolution as a gather: forward and backward-data.
//!
//! A chunk of target rows copies the source rows it needs into a strip in its lane's scratch memory, then for
//! each panel of 16 target channels walks the strip with register tiles. Pointwise convolutions read the
//! source in place.
#![expect(
    unsafe_code,
    reason = "rows of one buffer are written by several threads"
)]

use std::cell::Cell;
use std::ops::Range;

use super::epilogue::Finish;
use super::geometry::{Gather, Phase};
use super::kernels::{GatherTile, PANELS_MAX, Tiles, gather, tile_panels, tile_pixels};
use super::source::{Prefetch, Source, Window};
use super::{Epilogue, Write};
use crate::parallel::Threads;
use crate::simd::pointer::{clear, load, store};
use crate::simd::{BLOCK, Kernel, Level, Simd, dispatch_dot};
use crate::view::{RawView, View};

/// Returns the floats of scratch memory: a strip a lane, and the statistics of each chunk.
pub(super) fn scratch_len(geometry: &Gather, with_statistics: bool, thread_count: usize) -> usize {
    let statistics = if with_statistics {
        geometry.chunk_count() * 2 * geometry.target.channels
    } else {
        0
    };
    statistics + geometry.strip_len() * thread_count
}

/// The operands of a gather, checked.
pub(super) struct Operands<'a> {
    pub source: Source,
    pub packed: &'a [f32],
    pub target: View<'a>,
    pub write: Write,
    pub epilogue: Epilogue<'a>,
}

/// Runs a gather.
pub(super) fn run(
    geometry: &Gather,
    level: Level,
    threads: &Threads,
    operands: Operands<'_>,
    scratch: &[Cell<f32>],
) {
    let channels = geometry.target.channels;
    let pixels = geometry.batch * geometry.target.height * geometry.target.width;
    let chunks = geometry.chunk_count();
    let epilogue = operands.epilogue;
    let statistics_len = epilogue
        .statistics
        .as_ref()
        .map_or(0, |_| chunks * 2 * channels);
    let (statistics, strips) = scratch.split_at(statistics_len);
    let partials = View::dense(statistics, 2 * channels);
    let strip_len = geometry.strip_len();
    let strips = (strip_len > 0)
        .then(|| View::dense(strips, strip_len).raw(threads.count().min(chunks), strip_len));
    let pass = GatherPass {
        geometry,
        source: operands.source,
        packed: operands.packed,
        target: operands.target.raw(pixels, channels),
        accumulate: operands.write == Write::Accumulate,
        finish: Finish {
            bias: epilogue.bias,
            silu: epilogue.silu,
            residual: epilogue.residual.map(|view| view.raw(pixels, channels)),
            statistics: (statistics_len > 0).then(|| partials.raw(chunks, 2 * channels)),
            channels,
        },
    };
    let group_len = geometry.group_len();
    threads.run_lanes(chunks.div_ceil(group_len), |lane, group| {
        // SAFETY: lanes are below the thread count and own their strip.
        let strip = strips.map(|strips| unsafe { strips.pixel(lane) });
        let first = group * group_len;
        let last = (first + group_len).min(chunks);
        let chunks = first..last;
        let pass = &pass;
        if geometry.is_rounded {
            dispatch_dot(GatherChunks::<true> {
                pass,
                chunks,
                strip,
            });
        } else {
            level.dispatch(GatherChunks::<false> {
                pass,
                chunks,
                strip,
            });
        }
    });
    if let Some(statistics) = epilogue.statistics {
        sum_partials(partials, chunks, statistics);
    }
}

/// Adds the chunks' statistics in the order of the chunks.
pub(super) fn sum_partials(partials: View<'_>, chunks: usize, statistics: &mut [f64]) {
    statistics.fill(0.0);
    for chunk in 0..chunks {
        for (place, sum) in statistics.iter_mut().enumerate() {
            *sum += f64::from(partials.get(chunk, place));
        }
    }
}

struct GatherPass<'a> {
    geometry: &'a Gather,
    source: Source,
    packed: &'a [f32],
    target: RawView,
    accumulate: bool,
    finish: Finish<'a>,
}

/// Some chunks, of pairs of bf16 with `DOT`.
struct GatherChunks<'a, const DOT: bool> {
    pass: &'a GatherPass<'a>,
    chunks: Range<usize>,
    strip: Option<*mut f32>,
}

/// What is being computed, and what is asked for meanwhile.
struct Progress {
    chunk: usize,
    /// The next chunk's source and target.
    prefetch: [Prefetch; 2],
    /// Cache lines to ask for with each tile.
    lines: [usize; 2],
}

impl Progress {
    #[inline(always)]
    fn new(chunk: usize, prefetch: [Prefetch; 2], tiles: usize) -> Self {
        Self {
            chunk,
            prefetch,
            lines: prefetch.map(|prefetch| prefetch.lines().div_ceil(tiles)),
        }
    }
}

/// A row of target pixels of one chunk and where its windows start.
#[derive(Clone, Copy)]
struct Line {
    source: *const f32,
    /// Floats between the windows of neighbouring pixels.
    source_stride: usize,
    /// The first target pixel.
    pixel: usize,
    /// Pixels between neighbours.
    step: usize,
    pixels: usize,
}

impl<const DOT: bool> Kernel for GatherChunks<'_, DOT> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let geometry = self.pass.geometry;
        for chunk in self.chunks.clone() {
            if let Some(partials) = self.pass.finish.statistics {
                let len = 2 * geometry.target.channels;
                // SAFETY: each chunk has its own partial sums.
                unsafe { clear(partials.pixel(chunk), len) };
            }
            match self.strip {
                None => self.pointwise(simd, chunk),
                Some(strip) => self.windowed(simd, chunk, strip),
            }
        }
    }
}

impl<const DOT: bool> GatherChunks<'_, DOT> {
    #[inline(always)]
    fn pointwise<S: Simd>(&self, simd: S, chunk: usize) {
        let geometry = self.pass.geometry;
        let Source::View(source) = self.pass.source else {
            unreachable!("invariant: pointwise convolutions read views");
        };
        let all = geometry.batch * geometry.target.height * geometry.target.width;
        let first = chunk * geometry.chunk_len;
        let line = Line {
            // SAFETY: the first pixel of a chunk is in the view.
            source: unsafe { source.pixel(first) },
            source_stride: source.pixel_stride,
            pixel: first,
            step: 1,
            pixels: geometry.chunk_len.min(all - first),
        };
        let prefetch = if chunk + 1 < self.chunks.end {
            let next = first + geometry.chunk_len;
            let pixels = geometry.chunk_len.min(all - next);
            let blocks = geometry.source.channels / BLOCK;
            [
                Prefetch::view(source, next, pixels, 0, blocks),
                Prefetch::view(self.pass.target, next, pixels, 0, geometry.panels()),
            ]
        } else {
            [Prefetch::none(); 2]
        };
        let phase = &geometry.phases[0];
        let tiles = line.pixels.div_ceil(tile_pixels::<S>(1)) * phase.runs.len();
        let tiles = tiles * geometry.panels().div_ceil(tile_panels::<S>(PANELS_MAX));
        let mut progress = Progress::new(chunk, prefetch, tiles);
        self.panels(simd, phase, std::iter::once(line), &mut progress);
    }

    /// Returns a chunk's image, first phase row, end of phase rows, and window.
    #[inline(always)]
    fn window(&self, chunk: usize) -> (usize, usize, usize, Window) {
        let geometry = self.pass.geometry;
        let chunks_per_image = geometry.phase_rows().div_ceil(geometry.chunk_len);
        let image = chunk / chunks_per_image;
        let first = chunk % chunks_per_image * geometry.chunk_len;
        let last = (first + geometry.chunk_len).min(geometry.phase_rows());
        let window = Window {
            image,
            height: geometry.source.height,
            width: geometry.source.width,
            first_row: geometry.strip_origin.0 + (first * geometry.source_step) as isize,
            rows: geometry.strip_rows(last - first),
            first_column: geometry.strip_origin.1,
            columns: geometry.strip_columns,
        };
        (image, first, last, window)
    }

    #[inline(always)]
    fn windowed<S: Simd>(&self, simd: S, chunk: usize, strip: *mut f32) {
        let geometry = self.pass.geometry;
        let (image, first, last, window) = self.window(chunk);
        let channels = geometry.source.channels;
        // SAFETY: the lane's strip has room for a full chunk's window.
        unsafe {
            if DOT {
                window.read_rounded(simd, self.pass.source, geometry.source_channels(), strip);
            } else {
                window.read(simd, self.pass.source, channels, strip);
            }
        }
        let prefetch = if chunk + 1 < self.chunks.end {
            let (image, first, last, window) = self.window(chunk + 1);
            let row = image * geometry.target.height + first * geometry.target_step;
            let rows = (last * geometry.target_step).min(geometry.target.height)
                - first * geometry.target_step;
            let width = geometry.target.width;
            [
                window.prefetch(self.pass.source, geometry.source_channels()),
                Prefetch::view(
                    self.pass.target,
                    row * width,
                    rows * width,
                    0,
                    geometry.panels(),
                ),
            ]
        } else {
            [Prefetch::none(); 2]
        };
        let mut tiles = 0;
        for phase in &geometry.phases {
            tiles += phase.columns.div_ceil(tile_pixels::<S>(1)) * phase.runs.len();
        }
        let panel_groups = geometry.panels().div_ceil(tile_panels::<S>(PANELS_MAX));
        let tiles = tiles * (last - first) * panel_groups;
        let mut progress = Progress::new(chunk, prefetch, tiles);
        let row_stride = geometry.strip_stride() * geometry.source_step;
        for phase in &geometry.phases {
            let lines = (first..last.min(phase.rows)).map(|row| {
                let y = phase.target.0 + row * geometry.target_step;
                let target_row = image * geometry.target.height + y;
                Line {
                    // SAFETY: the window of every row of the chunk lies in the strip.
                    source: unsafe { strip.add((row - first) * row_stride) },
                    source_stride: geometry.source_step * channels,
                    pixel: target_row * geometry.target.width + phase.target.1,
                    step: geometry.target_step,
                    pixels: phase.columns,
                }
            });
            self.panels(simd, phase, lines, &mut progress);
        }
    }

    /// Computes all target channels of some lines.
    #[inline(always)]
    fn panels<S: Simd>(
        &self,
        simd: S,
        phase: &Phase,
        lines: impl Iterator<Item = Line> + Clone,
        progress: &mut Progress,
    ) {
        let pass = self.pass;
        if phase.runs.iter().all(|run| run.segments == 0) && pass.accumulate {
            return;
        }
        let panel_len = phase.depth(pass.geometry.source.channels) * BLOCK;
        let mut panel = 0;
        while panel < pass.geometry.panels() {
            let panels = tile_panels::<S>(pass.geometry.panels() - panel);
            let weights = &pass.packed[phase.packed + panel * panel_len..][..panels * panel_len];
            for (index, run) in phase.runs.iter().enumerate() {
                for line in lines.clone() {
                    for (first, rows) in Tiles::new(line.pixels, tile_pixels::<S>(panels)) {
                        for (prefetch, lines) in progress.prefetch.iter_mut().zip(progress.lines) {
                            prefetch.step(simd, lines);
                        }
                        // SAFETY: the line's windows are in the source or the strip, the run's rows in the
                        // panels, and the pixels in the target, where they are this chunk's alone.
                        unsafe {
                            let target = pass.target.pixel(line.pixel + first * line.step);
                            let tile = GatherTile {
                                source: line.source.add(first * line.source_stride + run.source),
                                source_stride: line.source_stride,
                                segments: run.segments,
                                segment_stride: run.segment_stride,
                                len: run.len,
                                weights: weights.as_ptr().add(run.row * BLOCK),
                                weights_panel: panel_len,
                                target: target.add(panel * BLOCK),
                                target_stride: line.step * pass.target.pixel_stride,
                                target_panel: BLOCK,
                                accumulate: pass.accumulate || index > 0,
                            };
                            gather::<S, DOT>(simd, rows, panels, &tile);
                        }
                    }
                    if index + 1 == phase.runs.len() {
                        for panel in panel..panel + panels {
                            self.finish(simd, panel * BLOCK, line, progress.chunk);
                        }
                    }
                }
            }
            panel += panels;
        }
    }

    /// Applies the epilogue to one block of channels of a line that is complete.
    #[inline(always)]
    fn finish<S: Simd>(&self, simd: S, channel: usize, line: Line, chunk: usize) {
        let (target, finish) = (self.pass.target, self.pass.finish);
        let has_values = finish.has_values();
        if !has_values && finish.statistics.is_none() {
            return;
        }
        let mut sums = finish.sums(simd);
        let mut index = 0;
        while index < line.pixels {
            for sums in sums.iter_mut().take(line.pixels - index) {
                let pixel = line.pixel + index * line.step;
                index += 1;
                // SAFETY: as in `panel`.
                let value = unsafe {
                    let target = target.pixel(pixel).add(channel);
                    let mut value = load(simd, target);
                    if has_values {
                        value = finish.value(simd, value, pixel, channel);
                        store(simd, value, target);
                    }
                    value
                };
                finish.count(simd, value, sums);
            }
        }
        finish.add_statistics(simd, chunk, channel, sums);
    }
}

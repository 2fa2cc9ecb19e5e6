//! Winograd forward and backward-data, which is the same with rotated kernels.
#![expect(
    unsafe_code,
    reason = "pixels of one buffer are written by several threads"
)]

use std::cell::Cell;
use std::ops::Range;

use super::super::direct::{Operands, sum_partials};
use super::super::epilogue::Finish;
use super::super::kernels::{GatherTile, PANELS_MAX, Tiles, gather, tile_panels, tile_pixels};
use super::super::source::Source;
use super::super::{Pass, Shape, Write};
use super::transforms::{INPUT, OUTPUT, POINTS, Tile, input, kernel, output};
use super::{Ahead, EdgeTile, Place, Plan};
use crate::parallel::Threads;
use crate::simd::pointer::{clear, load, store};
use crate::simd::{BLOCK, Kernel, Level, Simd};
use crate::view::{RawView, View, as_cells};

/// Packs transformed kernels as `[panel][point][source channel][16]`.
pub(in super::super) fn pack(
    shape: &Shape,
    plan: &Plan,
    level: Level,
    threads: &Threads,
    pass: Pass,
    weights: &[f32],
    packed: &mut [f32],
) {
    let packed = View::dense(as_cells(packed), 1).raw(plan.packed_len(), 1);
    threads.run(plan.panels(), |panel| {
        level.dispatch(PackPanel {
            shape,
            plan,
            pass,
            weights,
            packed,
            panel,
        });
    });
}

struct PackPanel<'a> {
    shape: &'a Shape,
    plan: &'a Plan,
    pass: Pass,
    weights: &'a [f32],
    packed: RawView,
    panel: usize,
}

impl Kernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        const TAPS: usize = 9;
        let shape = self.shape;
        let channels = self.plan.source.channels;
        let per_output = shape.input.count() * TAPS;
        let is_rotated = self.pass == Pass::BackwardData;
        let (source, target, source_stride, target_stride) = if is_rotated {
            (&shape.output, &shape.input, per_output, TAPS)
        } else {
            (&shape.input, &shape.output, TAPS, per_output)
        };
        // SAFETY: each chunk has its own panel.
        let panel = unsafe { self.packed.pixel(self.panel * POINTS * channels * BLOCK) };
        // SAFETY: as above.
        unsafe { clear(panel, POINTS * channels * BLOCK) };
        // The real channel of each of the panel's lanes.
        let mut lanes = [None; BLOCK];
        for (channel, place) in target.places().enumerate() {
            if place / BLOCK == self.panel {
                lanes[place % BLOCK] = Some(channel);
            }
        }
        for (channel, place) in source.places().enumerate() {
            let mut taps = [[0.0; BLOCK]; TAPS];
            for (lane, target_channel) in lanes.iter().enumerate() {
                let Some(target_channel) = target_channel else {
                    continue;
                };
                let start = channel * source_stride + target_channel * target_stride;
                let weights = &self.weights[start..start + TAPS];
                for (tap, &weight) in weights.iter().enumerate() {
                    let tap = if is_rotated { TAPS - 1 - tap } else { tap };
                    taps[tap][lane] = weight;
                }
            }
            // SAFETY: the channel's rows lie in the panel.
            unsafe { kernel(simd, &taps, panel.add(place * BLOCK), channels * BLOCK) };
        }
    }
}

/// Runs forward or backward-data.
pub(in super::super) fn run(
    plan: &Plan,
    level: Level,
    threads: &Threads,
    operands: Operands<'_>,
    scratch: &[Cell<f32>],
) {
    let channels = plan.target_channels;
    let pixels = plan.batch * plan.source.height * plan.source.width;
    let chunks = plan.chunk_count();
    let epilogue = operands.epilogue;
    let statistics_len = epilogue
        .statistics
        .as_ref()
        .map_or(0, |_| chunks * 2 * channels);
    let (statistics, lanes) = scratch.split_at(statistics_len);
    let partials = View::dense(statistics, 2 * channels);
    let lane_len = plan.gather_lane_len();
    let lanes = View::dense(lanes, lane_len).raw(threads.count().min(chunks), lane_len);
    let Source::View(source) = operands.source else {
        unreachable!("invariant: images are convolved directly");
    };
    let pass = GatherPass {
        plan,
        source,
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
    let group_len = plan.group_len();
    threads.run_lanes(chunks.div_ceil(group_len), |lane, group| {
        // SAFETY: lanes are below the thread count and own their memory.
        let lane = unsafe { lanes.pixel(lane) };
        let first = group * group_len;
        level.dispatch(GatherChunks {
            pass: &pass,
            chunks: first..(first + group_len).min(chunks),
            lane,
        });
    });
    if let Some(statistics) = epilogue.statistics {
        sum_partials(partials, chunks, statistics);
    }
}

struct GatherPass<'a> {
    plan: &'a Plan,
    source: RawView,
    packed: &'a [f32],
    target: RawView,
    accumulate: bool,
    finish: Finish<'a>,
}

struct GatherChunks<'a> {
    pass: &'a GatherPass<'a>,
    chunks: Range<usize>,
    lane: *mut f32,
}

impl Kernel for GatherChunks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for chunk in self.chunks.clone() {
            self.chunk(simd, chunk);
        }
    }
}

impl GatherChunks<'_> {
    #[inline(always)]
    fn chunk<S: Simd>(&self, simd: S, chunk: usize) {
        let plan = self.pass.plan;
        let first = chunk * plan.chunk_tiles;
        let tiles = plan.chunk_tiles.min(plan.tiles() - first);
        let channels = plan.source.channels;
        for index in 0..tiles {
            let place = plan.place(first + index);
            // SAFETY: the lane has room for a full chunk; the tile is one of the source's.
            unsafe {
                let target = self.lane.add(index * channels);
                transform_source(simd, plan, self.pass.source, place, target);
            }
        }
        let (source_stride, panel_stride) = (plan.source_stride(), plan.panel_stride());
        let products = self.lane.wrapping_add(POINTS * source_stride);
        let views = [
            (self.pass.source, 1, channels / BLOCK),
            (self.pass.target, 0, plan.panels()),
        ];
        let next = (chunk + 1 < self.chunks.end).then_some(chunk + 1);
        let steps = plan.panels().div_ceil(tile_panels::<S>(PANELS_MAX)) * POINTS;
        let mut ahead = Ahead::new(plan, next, views, steps);
        let mut panel = 0;
        while panel < plan.panels() {
            let panels = tile_panels::<S>(plan.panels() - panel);
            for point in 0..POINTS {
                ahead.step(simd);
                let row = (panel * POINTS + point) * channels;
                for (tile, rows) in Tiles::new(tiles, tile_pixels::<S>(panels)) {
                    // SAFETY: as above; the packed weights have `channels` rows for each panel and point.
                    unsafe {
                        let tile = GatherTile {
                            source: self.lane.add(point * source_stride + tile * channels),
                            source_stride: channels,
                            segments: 1,
                            segment_stride: 0,
                            len: channels,
                            weights: self.pass.packed.as_ptr().add(row * BLOCK),
                            weights_panel: POINTS * channels * BLOCK,
                            target: products.add(point * panel_stride + tile * BLOCK),
                            target_stride: BLOCK,
                            target_panel: POINTS * panel_stride,
                            accumulate: false,
                        };
                        gather::<S, false>(simd, rows, panels, &tile);
                    }
                }
            }
            for index in 0..panels {
                let products = products.wrapping_add(index * POINTS * panel_stride);
                self.write(simd, chunk, panel + index, products);
            }
            panel += panels;
        }
    }

    /// Transforms a panel's products back and writes what lies inside of the image.
    #[inline(always)]
    fn write<S: Simd>(&self, simd: S, chunk: usize, panel: usize, products: *const f32) {
        let pass = self.pass;
        let plan = pass.plan;
        let first = chunk * plan.chunk_tiles;
        let tiles = plan.chunk_tiles.min(plan.tiles() - first);
        let (height, width) = (plan.source.height, plan.source.width);
        let channel = panel * BLOCK;
        let mut sums = pass.finish.sums(simd);
        for index in 0..tiles {
            let place = plan.place(first + index);
            // SAFETY: the products of the chunk's tiles have just been written.
            let values = unsafe { output(simd, products.add(index * BLOCK), plan.panel_stride()) };
            let columns = OUTPUT.min(width - place.x);
            for (row, values) in values.into_iter().enumerate().take(height - place.y) {
                let line = (place.image * height + place.y + row) * width + place.x;
                for (column, mut value) in values.into_iter().enumerate().take(columns) {
                    let pixel = line + column;
                    // SAFETY: the pixel is inside, and only this chunk's.
                    unsafe {
                        let target = pass.target.pixel(pixel).add(channel);
                        value = pass.finish.value(simd, value, pixel, channel);
                        if pass.accumulate {
                            value = simd.add(value, load(simd, target));
                        }
                        store(simd, value, target);
                    }
                    pass.finish.count(simd, value, &mut sums[column % 2]);
                }
            }
        }
        pass.finish.start_statistics(simd, chunk, channel, sums);
    }
}

/// Transforms the input tile of one output tile, all channels, to `target[point * source stride + channel]`.
///
/// # Safety
/// The place is one of the plan's tiles; the target has room for one tile.
#[inline(always)]
pub(super) unsafe fn transform_source<S: Simd>(
    simd: S,
    plan: &Plan,
    source: RawView,
    place: Place,
    target: *mut f32,
) {
    let stride = plan.source_stride();
    let inside = plan.inside(source, place, 1, INPUT);
    for channel in (0..plan.source.channels).step_by(BLOCK) {
        // SAFETY: the caller's promise; edge tiles are copied where they are inside.
        unsafe {
            let target = target.add(channel);
            if let Some(tile) = inside {
                let pixels = tile.pixels.add(channel);
                input(simd, Tile { pixels, ..tile }, target, stride);
                continue;
            }
            let mut edge = EdgeTile::new();
            for row in 0..INPUT {
                for column in 0..INPUT {
                    let y = (place.y + row).wrapping_sub(1);
                    let x = (place.x + column).wrapping_sub(1);
                    if y < plan.source.height && x < plan.source.width {
                        let line = (place.image * plan.source.height + y) * plan.source.width;
                        let value = load(simd, source.pixel(line + x).add(channel));
                        simd.store(value, &mut edge.0[row * INPUT + column]);
                    }
                }
            }
            input(simd, edge.tile(), target, stride);
        }
    }
}

//! Winograd backward-weights: both operands are transformed, their products are summed over all tiles at each
//! point, and one transform at the end makes the gradient of the kernels.
#![expect(
    unsafe_code,
    reason = "partials of one buffer are written by several threads"
)]

use std::cell::Cell;

use super::super::Shape;
use super::super::kernels::{PANELS_MAX, ScatterTile, Tiles, scatter, tile_panels, tile_rows};
use super::super::source::Source;
use super::gather::transform_source;
use super::transforms::{INPUT, OUTPUT, POINTS, Tile, gradient, kernel_gradient};
use super::{Ahead, EdgeTile, Place, Plan};
use crate::parallel::Threads;
use crate::simd::pointer::{clear, load};
use crate::simd::{BLOCK, Kernel, Level, Simd};
use crate::view::{RawView, View, as_cells};

/// Adds the gradient of the canonical weights.
#[expect(
    clippy::too_many_arguments,
    reason = "the pass's operands, already checked"
)]
pub(in super::super) fn run(
    shape: &Shape,
    plan: &Plan,
    level: Level,
    threads: &Threads,
    source: Source,
    output_gradient: View<'_>,
    weight_gradient: &mut [f32],
    scratch: &[Cell<f32>],
) {
    let Source::View(source) = source else {
        unreachable!("invariant: images are convolved directly");
    };
    let (partials, lanes) = scratch.split_at(plan.partials * plan.sums_len());
    let partials = View::dense(partials, plan.sums_len()).raw(plan.partials, plan.sums_len());
    let lane_len = plan.weights_lane_len();
    let lanes = View::dense(lanes, lane_len).raw(threads.count(), lane_len);
    let gradient = output_gradient.raw(shape.output_pixels(), plan.target_channels);
    threads.run_lanes(plan.partials * plan.groups(), |lane, task| {
        // SAFETY: lanes are below the thread count and own their memory.
        let lane = unsafe { lanes.pixel(lane) };
        level.dispatch(ScatterTask {
            plan,
            source,
            gradient,
            partials,
            task,
            lane,
        });
    });
    let per_output = shape.input.count() * 9;
    let target =
        View::dense(as_cells(weight_gradient), per_output).raw(shape.output.count(), per_output);
    threads.run(plan.panels(), |panel| {
        level.dispatch(ReducePanel {
            shape,
            plan,
            partials,
            target,
            panel,
        });
    });
}

struct ScatterTask<'a> {
    plan: &'a Plan,
    source: RawView,
    gradient: RawView,
    partials: RawView,
    task: usize,
    lane: *mut f32,
}

impl Kernel for ScatterTask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let plan = self.plan;
        let (partial, group) = (self.task / plan.groups(), self.task % plan.groups());
        let first_panel = group * plan.group_panels;
        let panels = plan.group_panels.min(plan.panels() - first_panel);
        let panel_len = POINTS * plan.source.channels * BLOCK;
        // SAFETY: each task has its own panels of a partial.
        let sums = unsafe {
            let sums = self.partials.pixel(partial).add(first_panel * panel_len);
            clear(sums, panels * panel_len);
            sums
        };
        let chunks = plan.chunk_count();
        let end = (partial + 1) * chunks / plan.partials;
        for chunk in partial * chunks / plan.partials..end {
            let first = chunk * plan.chunk_tiles;
            let tiles = plan.chunk_tiles.min(plan.tiles() - first);
            self.transform(simd, first, tiles, first_panel, panels);
            let mut gradient = self.gradient;
            gradient.pointer = gradient.pointer.wrapping_add(first_panel * BLOCK);
            let views = [
                (self.source, 1, plan.source.channels / BLOCK),
                (gradient, 0, panels),
            ];
            let next = (chunk + 1 < end).then_some(chunk + 1);
            let steps = panels.div_ceil(tile_panels::<S>(PANELS_MAX)) * POINTS;
            let ahead = Ahead::new(plan, next, views, steps);
            self.multiply(simd, tiles, panels, sums, ahead);
        }
    }
}

impl ScatterTask<'_> {
    /// Returns where the transformed gradients start in the lane's memory.
    #[inline(always)]
    fn gradients(&self) -> *mut f32 {
        self.lane.wrapping_add(POINTS * self.plan.source_stride())
    }

    /// Transforms both operands of some tiles.
    #[inline(always)]
    fn transform<S: Simd>(
        &self,
        simd: S,
        first: usize,
        tiles: usize,
        first_panel: usize,
        panels: usize,
    ) {
        let plan = self.plan;
        let stride = plan.panel_stride();
        for index in 0..tiles {
            let place = plan.place(first + index);
            // SAFETY: the lane has room for a full chunk; the tile is one of the source's.
            unsafe {
                let target = self.lane.add(index * plan.source.channels);
                transform_source(simd, plan, self.source, place, target);
                let inside = plan.inside(self.gradient, place, 0, OUTPUT);
                for panel in 0..panels {
                    let channel = (first_panel + panel) * BLOCK;
                    let target = self
                        .gradients()
                        .add(panel * POINTS * stride + index * BLOCK);
                    if let Some(tile) = inside {
                        let pixels = tile.pixels.add(channel);
                        gradient(simd, Tile { pixels, ..tile }, target, stride);
                    } else {
                        let edge = self.edge(simd, place, channel);
                        gradient(simd, edge.tile(), target, stride);
                    }
                }
            }
        }
    }

    /// Copies the gradient's tile where it is inside of the image.
    #[inline(always)]
    fn edge<S: Simd>(&self, simd: S, place: Place, channel: usize) -> EdgeTile {
        let (height, width) = (self.plan.source.height, self.plan.source.width);
        let mut edge = EdgeTile::new();
        for row in 0..OUTPUT.min(height - place.y) {
            let line = (place.image * height + place.y + row) * width + place.x;
            for column in 0..OUTPUT.min(width - place.x) {
                // SAFETY: the pixel is inside of the image.
                let value = unsafe { load(simd, self.gradient.pixel(line + column).add(channel)) };
                simd.store(value, &mut edge.0[row * INPUT + column]);
            }
        }
        edge
    }

    /// Adds the products of some tiles at every point.
    #[inline(always)]
    fn multiply<S: Simd>(
        &self,
        simd: S,
        tiles: usize,
        panels: usize,
        sums: *mut f32,
        mut ahead: Ahead<'_>,
    ) {
        let plan = self.plan;
        let channels = plan.source.channels;
        let (source_stride, stride) = (plan.source_stride(), plan.panel_stride());
        for point in 0..POINTS {
            let mut panel = 0;
            while panel < panels {
                ahead.step(simd);
                let together = tile_panels::<S>(panels - panel);
                let gradient = self
                    .gradients()
                    .wrapping_add((panel * POINTS + point) * stride);
                let row = (panel * POINTS + point) * channels;
                for (channel, rows) in Tiles::new(channels, tile_rows::<S>(together)) {
                    // SAFETY: the lane's memory has just been written for these tiles; the sums are the task's.
                    unsafe {
                        let tile = ScatterTile {
                            source: self.lane.add(point * source_stride + channel),
                            source_stride: channels,
                            source_row: 0,
                            gradient,
                            gradient_stride: BLOCK,
                            gradient_row: 0,
                            gradient_panel: POINTS * stride,
                            pixel_rows: 1,
                            pixels: tiles,
                            target: sums.add((row + channel) * BLOCK),
                            target_panel: POINTS * channels * BLOCK,
                        };
                        scatter::<S, false>(simd, rows, together, &tile);
                    }
                }
                panel += together;
            }
        }
    }
}

struct ReducePanel<'a> {
    shape: &'a Shape,
    plan: &'a Plan,
    partials: RawView,
    target: RawView,
    panel: usize,
}

impl Kernel for ReducePanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let channels = self.plan.source.channels;
        // The real output channel of each of the panel's lanes.
        let mut outs = [None; BLOCK];
        for (out, place) in self.shape.output.places().enumerate() {
            if place / BLOCK == self.panel {
                // SAFETY: each chunk has its own output channels.
                outs[place % BLOCK] = Some(unsafe { self.target.pixel(out) });
            }
        }
        for (index, place) in self.shape.input.places().enumerate() {
            let mut points = [simd.zero(); POINTS];
            for partial in 0..self.plan.partials {
                for (point, sum) in points.iter_mut().enumerate() {
                    let row = (self.panel * POINTS + point) * channels + place;
                    // SAFETY: the row is in the partial; the tasks that wrote it are done.
                    let value =
                        unsafe { load(simd, self.partials.pixel(partial).add(row * BLOCK)) };
                    *sum = simd.add(*sum, value);
                }
            }
            let taps = kernel_gradient(simd, &points);
            for (lane, out) in outs.iter().enumerate() {
                let Some(gradient) = out else { continue };
                for (tap, values) in taps.iter().enumerate() {
                    // SAFETY: the element is in the channel's weights.
                    unsafe { *gradient.add(index * 9 + tap) += values[lane] };
                }
            }
        }
    }
}

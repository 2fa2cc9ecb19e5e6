//! Winograd convolution F(4 × 4, 3 × 3) for kernel 3 and stride 1: a quarter of the multiplications of direct
//! convolution, at 1e-6 relative error.
//!
//! The output is cut into tiles of 4 × 4 pixels, row by row through the whole batch. A chunk of tiles is
//! transformed to 36 points, each point is a matrix product over channels (by the register tiles of direct
//! convolution), and the products are transformed back. Channels are SIMD lanes, so that transforms are plain
//! vector arithmetic.

mod gather;
mod transforms;
mod weights;

pub(super) use gather::{pack, run};
pub(super) use weights::run as backward_weights;

use self::transforms::{INPUT, OUTPUT, POINTS, Tile};
use super::geometry::Plane;
use super::kernels::PANELS_MAX;
use super::{Pass, Shape};
use crate::simd::{BLOCK, Simd};
use crate::view::RawView;

/// Floats of a chunk's transformed source in forward and backward-data: a share of a level 2 cache.
const SOURCE_FLOATS: usize = 56 * 1024;

/// Floats of both transformed operands in backward-weights. They stream from a level 3 cache one point at a time;
/// long chunks matter more, because each reads and writes all sums.
const OPERANDS_FLOATS: usize = 400 * 1024;

/// The shortest and longest chunks; multiples of every tile height up to 6 or 12.
const CHUNK_TILES_MIN: usize = 12;
const CHUNK_TILES_MAX: usize = 96;

/// Chunks that one lane takes at once, each but the first read ahead of its use; and the groups of chunks that a layer
/// is cut into where it is large enough.
const GROUP_LEN_MAX: usize = 8;
const GROUPS: usize = 32;

/// The padding of the last tiles may make at most this many computed pixels for two pixels of output.
const HALF_WASTE_MAX: usize = 3;

/// Tiles that pay for a partial sum of the weights' gradient, and the most memory of all partial sums.
const PARTIAL_TILES_MIN: usize = 192;
const PARTIALS_BYTES_MAX: usize = 8 << 20;
const PARTIALS_MAX: usize = 16;

/// Output channels that pay for another transform of the same source in backward-weights.
const GROUP_PANELS_MIN: usize = 4;
const TASKS: usize = 16;

/// Returns whether Winograd can do the shape.
pub(super) fn is_possible(shape: &Shape) -> bool {
    shape.kernel == 3 && shape.stride == 1 && !shape.is_image
}

/// Returns whether Winograd is the faster way for the shape.
pub(super) fn is_faster(shape: &Shape) -> bool {
    let computed = shape.height.next_multiple_of(OUTPUT) * shape.width.next_multiple_of(OUTPUT);
    is_possible(shape) && 2 * computed <= HALF_WASTE_MAX * shape.height * shape.width
}

/// How a pass is cut into chunks of tiles.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    batch: usize,
    /// Rows, columns and channels of what is transformed by `Bᵀ d B`, and the channels of the other side.
    source: Plane,
    target_channels: usize,
    tile_rows: usize,
    tile_columns: usize,
    chunk_tiles: usize,
    /// Of backward-weights.
    partials: usize,
    group_panels: usize,
}

impl Plan {
    pub fn new(shape: &Shape, pass: Pass) -> Self {
        let (inputs, outputs) = (shape.input.padded(), shape.output.padded());
        let (source, target) = match pass {
            Pass::BackwardData => (outputs, inputs),
            Pass::Forward | Pass::BackwardWeights => (inputs, outputs),
        };
        let tile_rows = shape.height.div_ceil(OUTPUT);
        let tile_columns = shape.width.div_ceil(OUTPUT);
        let tiles = shape.batch * tile_rows * tile_columns;
        let fitting = match pass {
            Pass::BackwardWeights => OPERANDS_FLOATS / (POINTS * (source + target)),
            _ => SOURCE_FLOATS / (POINTS * source),
        };
        let chunk_tiles =
            fitting.clamp(CHUNK_TILES_MIN, CHUNK_TILES_MAX) / CHUNK_TILES_MIN * CHUNK_TILES_MIN;
        let chunk_tiles = chunk_tiles.min(tiles);
        let sums_bytes = POINTS * source * target * size_of::<f32>();
        let partials = (PARTIALS_BYTES_MAX / sums_bytes)
            .min(tiles / PARTIAL_TILES_MIN)
            .clamp(1, PARTIALS_MAX)
            .min(tiles.div_ceil(chunk_tiles));
        let panels = target / BLOCK;
        let groups = TASKS
            .div_ceil(partials)
            .min(panels / GROUP_PANELS_MIN)
            .max(1);
        Self {
            batch: shape.batch,
            source: Plane {
                height: shape.height,
                width: shape.width,
                channels: source,
            },
            target_channels: target,
            tile_rows,
            tile_columns,
            chunk_tiles,
            partials,
            group_panels: panels.div_ceil(groups),
        }
    }

    /// Returns the floats of packed weights.
    pub fn packed_len(&self) -> usize {
        POINTS * self.source.channels * self.target_channels
    }

    /// Returns the floats of scratch memory of forward and backward-data.
    pub fn gather_scratch_len(&self, with_statistics: bool, thread_count: usize) -> usize {
        let statistics = if with_statistics {
            self.chunk_count() * 2 * self.target_channels
        } else {
            0
        };
        statistics + thread_count * self.gather_lane_len()
    }

    /// Returns the floats of scratch memory of backward-weights.
    pub fn weights_scratch_len(&self, thread_count: usize) -> usize {
        self.partials * self.sums_len() + thread_count * self.weights_lane_len()
    }

    fn tiles(&self) -> usize {
        self.batch * self.tile_rows * self.tile_columns
    }

    fn chunk_count(&self) -> usize {
        self.tiles().div_ceil(self.chunk_tiles)
    }

    fn group_len(&self) -> usize {
        (self.chunk_count() / GROUPS).clamp(1, GROUP_LEN_MAX)
    }

    fn panels(&self) -> usize {
        self.target_channels / BLOCK
    }

    /// Floats between the points of the transformed source `[point][tile][channel]`.
    fn source_stride(&self) -> usize {
        odd_lines(self.chunk_tiles * self.source.channels)
    }

    /// Floats between the points of a transformed target panel `[point][tile][16]`.
    fn panel_stride(&self) -> usize {
        odd_lines(self.chunk_tiles * BLOCK)
    }

    fn gather_lane_len(&self) -> usize {
        POINTS * (self.source_stride() + PANELS_MAX * self.panel_stride())
    }

    fn weights_lane_len(&self) -> usize {
        POINTS * (self.source_stride() + self.group_panels * self.panel_stride())
    }

    /// Floats of the sums `[panel][point][channel][16]`.
    fn sums_len(&self) -> usize {
        POINTS * self.source.channels * self.target_channels
    }

    fn groups(&self) -> usize {
        self.panels().div_ceil(self.group_panels)
    }

    /// Returns a tile's image and its first output row and column.
    #[inline(always)]
    fn place(&self, tile: usize) -> Place {
        let per_image = self.tile_rows * self.tile_columns;
        let (image, tile) = (tile / per_image, tile % per_image);
        Place {
            image,
            y: tile / self.tile_columns * OUTPUT,
            x: tile % self.tile_columns * OUTPUT,
        }
    }

    /// Returns the `size` × `size` pixels from `start` on, if all of them are in the image.
    #[inline(always)]
    fn inside(&self, view: RawView, place: Place, before: usize, size: usize) -> Option<Tile> {
        let (height, width) = (self.source.height, self.source.width);
        let is_inside = place.y >= before
            && place.x >= before
            && place.y + size - before <= height
            && place.x + size - before <= width;
        if !is_inside {
            return None;
        }
        let pixel = (place.image * height + place.y - before) * width + place.x - before;
        Some(Tile {
            pixels: view.pointer.wrapping_add(pixel * view.pixel_stride),
            row_stride: width * view.pixel_stride,
            pixel_stride: view.pixel_stride,
        })
    }
}

/// Asks for the memory of the tiles that are needed next, a few tiles at a time between other work.
struct Ahead<'a> {
    plan: &'a Plan,
    /// What is used at a tile: a view, how far below and right of the tile (above and left have been read with
    /// earlier tiles), and blocks of channels.
    views: [(RawView, isize, usize); 2],
    next: usize,
    end: usize,
    per_step: usize,
}

impl<'a> Ahead<'a> {
    /// Asks for a chunk's tiles in a number of steps.
    fn new(
        plan: &'a Plan,
        chunk: Option<usize>,
        views: [(RawView, isize, usize); 2],
        steps: usize,
    ) -> Self {
        let first = chunk.map_or(0, |chunk| chunk * plan.chunk_tiles);
        let tiles = chunk.map_or(0, |_| plan.chunk_tiles.min(plan.tiles() - first));
        Self {
            plan,
            views,
            next: first,
            end: first + tiles,
            per_step: tiles.div_ceil(steps),
        }
    }

    /// Asks for the next tiles.
    #[inline(always)]
    fn step<S: Simd>(&mut self, simd: S) {
        for _ in 0..self.per_step.min(self.end - self.next) {
            let place = self.plan.place(self.next);
            self.next += 1;
            let (height, width) = (self.plan.source.height, self.plan.source.width);
            let pixel = (place.image * height + place.y) * width + place.x;
            for (view, ahead, blocks) in self.views {
                for row in 0..OUTPUT {
                    let first = (pixel + row * width) as isize + ahead * (width as isize + 1);
                    let first = view
                        .pointer
                        .wrapping_offset(first * view.pixel_stride as isize);
                    for column in 0..OUTPUT {
                        let start = first.wrapping_add(column * view.pixel_stride);
                        for block in 0..blocks {
                            simd.prefetch(start.wrapping_add(block * BLOCK));
                        }
                    }
                }
            }
        }
    }
}

/// Where a tile lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    image: usize,
    y: usize,
    x: usize,
}

/// A tile at the edge, copied, with zeros where it reaches outside of the image.
struct EdgeTile([[f32; BLOCK]; POINTS]);

impl EdgeTile {
    fn new() -> Self {
        Self([[0.0; BLOCK]; POINTS])
    }

    fn tile(&self) -> Tile {
        Tile {
            pixels: self.0.as_ptr().cast(),
            row_stride: INPUT * BLOCK,
            pixel_stride: BLOCK,
        }
    }
}

/// Rounds up to an odd number of cache lines, so that equal places of neighbouring points fall in different sets
/// of a cache.
fn odd_lines(floats: usize) -> usize {
    (floats.div_ceil(BLOCK) | 1) * BLOCK
}

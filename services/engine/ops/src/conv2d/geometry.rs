//! How a pass reads its source: both forward and backward-data are *gathers*, in which every target pixel is
//! the product of a window of source pixels and packed weights.
//!
//! Backward-data with stride s has s × s phases: target pixels of one phase (`y mod s`, `x mod s`) see the same
//! taps, and neighbours in a phase see neighbouring source pixels. So no multiplication by zero is left.

use super::{IMAGE_CHANNELS, Pass, Shape};
use crate::simd::BLOCK;

/// The longest run of weights that a register tile walks through: 256 × 16 floats are half of a level 1 cache.
const RUN_MAX: usize = 1200;

/// Runs may be this much longer where that spares a second pass over the target.
const RUN_SLACK: usize = 64;

/// Floats of a strip of source rows: a share of a level 2 cache.
const STRIP_FLOATS: usize = 80 * 1024;

/// The most target pixels of one chunk, which keeps single-precision sums of a chunk exact enough.
const CHUNK_PIXELS_MAX: usize = 640;

/// A layer is cut into this many groups of chunks where it is large enough.
const GROUPS: usize = 32;

/// The most chunks of a group: each but the first is read ahead of its use.
const GROUP_LEN_MAX: usize = 8;

/// Rows, columns and padded channels of one side of a gather.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

/// A part of the products of one target pixel: `segments` runs of `len` floats of the source.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// Where the first segment starts, from the window's first float in the strip.
    pub source: usize,
    pub segments: usize,
    pub segment_stride: usize,
    pub len: usize,
    /// The first of this run's rows in the panel.
    pub row: usize,
}

/// The target pixels that see the same taps.
#[derive(Debug, Clone)]
pub(super) struct Phase {
    /// The first target row and column.
    pub target: (usize, usize),
    pub rows: usize,
    pub columns: usize,
    /// The source row and column of the first tap of the first target pixel.
    pub source: (isize, isize),
    /// Rows and columns of taps.
    pub taps: (usize, usize),
    /// The kernel's row and column of the first tap, and the step to the next.
    pub kernel: (usize, usize),
    pub kernel_step: isize,
    /// Where this phase's panels start in the packed weights.
    pub packed: usize,
    pub runs: Vec<Run>,
}

impl Phase {
    /// Returns the rows of a panel: the products that make one target element.
    pub fn depth(&self, channels: usize) -> usize {
        self.taps.0 * self.taps.1 * channels
    }
}

/// One pass as a gather.
#[derive(Debug, Clone)]
pub(super) struct Gather {
    pub batch: usize,
    pub source: Plane,
    pub target: Plane,
    /// Source pixels between the windows of neighbouring target pixels of a phase.
    pub source_step: usize,
    /// Target pixels between neighbours of a phase.
    pub target_step: usize,
    pub phases: Vec<Phase>,
    /// Kernel 1, stride 1: pixels are independent, and the source is read in place.
    pub is_pointwise: bool,
    /// The strip's first source row and column, for the first target row.
    pub strip_origin: (isize, isize),
    pub strip_columns: usize,
    /// Source rows that the windows of one phase row span.
    pub strip_span: usize,
    /// Phase rows of a chunk, or pixels if pointwise.
    pub chunk_len: usize,
    pub packed_len: usize,
}

impl Gather {
    /// Describes a pass that makes pixels.
    pub fn new(shape: &Shape, pass: Pass) -> Self {
        let input = Plane {
            height: shape.height,
            width: shape.width,
            channels: if shape.is_image {
                IMAGE_CHANNELS
            } else {
                shape.input.padded()
            },
        };
        let output = Plane {
            height: shape.output_height(),
            width: shape.output_width(),
            channels: shape.output.padded(),
        };
        let (source, target, source_step, target_step) = match pass {
            Pass::BackwardData => (output, input, 1, shape.stride),
            Pass::Forward | Pass::BackwardWeights => (input, output, shape.stride, 1),
        };
        let mut gather = Self {
            batch: shape.batch,
            source,
            target,
            source_step,
            target_step,
            phases: Vec::with_capacity(target_step * target_step),
            is_pointwise: shape.kernel == 1 && shape.stride == 1 && !shape.is_image,
            strip_origin: (0, 0),
            strip_columns: 0,
            strip_span: 0,
            chunk_len: 0,
            packed_len: 0,
        };
        for y in 0..target_step.min(target.height) {
            for x in 0..target_step.min(target.width) {
                gather.phases.push(match pass {
                    Pass::BackwardData => backward_phase(shape, target, (y, x)),
                    Pass::Forward | Pass::BackwardWeights => forward_phase(shape, target),
                });
            }
        }
        gather.lay_out_strip();
        gather.lay_out_runs();
        gather.chunk_len = gather.choose_chunk_len();
        gather
    }

    /// Returns the floats of a strip row.
    pub fn strip_stride(&self) -> usize {
        self.strip_columns * self.source.channels
    }

    /// Returns the source rows of a strip for a number of phase rows.
    pub fn strip_rows(&self, phase_rows: usize) -> usize {
        (phase_rows - 1) * self.source_step + self.strip_span
    }

    /// Returns the floats of the strip of a full chunk.
    pub fn strip_len(&self) -> usize {
        if self.is_pointwise {
            0
        } else {
            self.strip_rows(self.chunk_len) * self.strip_stride()
        }
    }

    /// Returns the rows of the first phase, which has the most.
    pub fn phase_rows(&self) -> usize {
        self.target.height.div_ceil(self.target_step)
    }

    /// Returns the number of independent chunks.
    pub fn chunk_count(&self) -> usize {
        if self.is_pointwise {
            (self.batch * self.target.height * self.target.width).div_ceil(self.chunk_len)
        } else {
            self.batch * self.phase_rows().div_ceil(self.chunk_len)
        }
    }

    /// Returns the number of consecutive chunks that one lane takes at once.
    pub fn group_len(&self) -> usize {
        (self.chunk_count() / GROUPS).clamp(1, GROUP_LEN_MAX)
    }

    /// Returns the target's blocks of channels.
    pub fn panels(&self) -> usize {
        self.target.channels / BLOCK
    }

    fn lay_out_strip(&mut self) {
        let phases = self.phases.iter().filter(|phase| phase.taps != (0, 0));
        let (mut first, mut last) = ((isize::MAX, isize::MAX), (isize::MIN, isize::MIN));
        for phase in phases {
            let (y, x) = phase.source;
            let width = (phase.columns - 1) * self.source_step + phase.taps.1;
            first = (first.0.min(y), first.1.min(x));
            last = (
                last.0.max(y + phase.taps.0 as isize),
                last.1.max(x + width as isize),
            );
        }
        self.strip_origin = first;
        self.strip_span = (last.0 - first.0) as usize;
        self.strip_columns = (last.1 - first.1) as usize;
    }

    fn lay_out_runs(&mut self) {
        let channels = self.source.channels;
        let (stride, panels) = (self.strip_stride(), self.panels());
        for phase in &mut self.phases {
            phase.packed = self.packed_len;
            self.packed_len += panels * phase.depth(channels) * BLOCK;
            let row_offset = (phase.source.0 - self.strip_origin.0) as usize;
            let column_offset = (phase.source.1 - self.strip_origin.1) as usize;
            let start = row_offset * stride + column_offset * channels;
            let segment = phase.taps.1 * channels;
            let (depth, rows) = (phase.depth(channels), phase.taps.0);
            if depth <= RUN_MAX + RUN_SLACK {
                phase.runs.push(Run {
                    source: start,
                    segments: rows,
                    segment_stride: stride,
                    len: segment,
                    row: 0,
                });
                continue;
            }
            // Pieces of 4 floats, shared out evenly, so that no piece is short.
            let pieces = segment.div_ceil(RUN_MAX + RUN_SLACK);
            for row in 0..rows {
                for piece in 0..pieces {
                    let from = segment / 4 * piece / pieces * 4;
                    let to = segment / 4 * (piece + 1) / pieces * 4;
                    phase.runs.push(Run {
                        source: start + row * stride + from,
                        segments: 1,
                        segment_stride: 0,
                        len: to - from,
                        row: row * segment + from,
                    });
                }
            }
        }
    }

    fn choose_chunk_len(&self) -> usize {
        if self.is_pointwise {
            let pixel = self.source.channels + self.target.channels;
            // A multiple of every tile height up to 6 leaves no short tile but in the last chunk.
            return (STRIP_FLOATS / pixel).clamp(60, CHUNK_PIXELS_MAX) / 60 * 60;
        }
        let rows_by_memory = (STRIP_FLOATS / self.strip_stride()).saturating_sub(self.strip_span)
            / self.source_step
            + 1;
        let rows_by_pixels = CHUNK_PIXELS_MAX.div_ceil(self.phases[0].columns);
        let rows = self.phase_rows();
        let most = rows_by_memory.min(rows_by_pixels).clamp(1, rows);
        // Even chunks: 20 rows in chunks of at most 8 are 7 + 7 + 6.
        rows.div_ceil(rows.div_ceil(most))
    }
}

fn forward_phase(shape: &Shape, target: Plane) -> Phase {
    let half = (shape.kernel / 2) as isize;
    Phase {
        target: (0, 0),
        rows: target.height,
        columns: target.width,
        source: (-half, -half),
        taps: (shape.kernel, shape.kernel),
        kernel: (0, 0),
        kernel_step: 1,
        packed: 0,
        runs: Vec::new(),
    }
}

/// Input row `s a + r` is read by output row `a + d` through kernel row `r + k / 2 - s d`.
fn backward_phase(shape: &Shape, target: Plane, (y, x): (usize, usize)) -> Phase {
    let (stride, half) = (shape.stride, shape.kernel / 2);
    // The kernel rows that hit, from the largest (the first source row) down.
    let taps = |parity: usize| {
        let hits = (0..shape.kernel).filter(|tap| (parity + half) % stride == tap % stride);
        let (mut count, mut largest) = (0, 0);
        for tap in hits {
            (count, largest) = (count + 1, tap);
        }
        let first = (parity + half) as isize - largest as isize;
        (count, largest, first.div_euclid(stride as isize))
    };
    let (rows, kernel_y, source_y) = taps(y);
    let (columns, kernel_x, source_x) = taps(x);
    let is_empty = rows == 0 || columns == 0;
    Phase {
        target: (y, x),
        rows: (target.height - y).div_ceil(stride),
        columns: (target.width - x).div_ceil(stride),
        source: (source_y, source_x),
        taps: if is_empty { (0, 0) } else { (rows, columns) },
        kernel: (kernel_y, kernel_x),
        kernel_step: -(stride as isize),
        packed: 0,
        runs: Vec::new(),
    }
}

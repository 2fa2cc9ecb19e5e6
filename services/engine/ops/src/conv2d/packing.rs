//! Repacking canonical OIHW weights into panels, and panel-shaped gradients back.
//!
//! A panel is `[k][16]`: for 16 target channels, one row per product (kernel row, kernel column, source channel)
//! in the order in which the source's strip is read. Rounded weights are pairs of neighbouring source channels.
#![expect(
    unsafe_code,
    reason = "panels of one buffer are written by several threads"
)]

use super::geometry::Gather;
use super::{Pass, Shape};
use crate::parallel::Threads;
use crate::simd::{BLOCK, pair_of};
use crate::view::{View, as_cells};

/// Packs the panels of every phase.
pub(super) fn pack(
    shape: &Shape,
    geometry: &Gather,
    threads: &Threads,
    pass: Pass,
    weights: &[f32],
    packed: &mut [f32],
) {
    let taps = shape.kernel * shape.kernel;
    let per_output = shape.input.count() * taps;
    let (source, target, source_stride, target_stride) = match pass {
        Pass::BackwardData => (&shape.output, &shape.input, per_output, taps),
        Pass::Forward | Pass::BackwardWeights => (&shape.input, &shape.output, taps, per_output),
    };
    if geometry.packed_len == 0 {
        return;
    }
    let channels = geometry.source.channels;
    let panels = geometry.panels();
    let packed_view = View::dense(as_cells(packed), 1).raw(geometry.packed_len, 1);
    threads.run(geometry.phases.len() * panels, |chunk| {
        let (phase, panel) = (&geometry.phases[chunk / panels], chunk % panels);
        let len = phase.depth(channels) * BLOCK;
        if len == 0 {
            return;
        }
        // SAFETY: each chunk has its own panel.
        let rows = unsafe {
            let start = packed_view.pixel(phase.packed + panel * len);
            std::slice::from_raw_parts_mut(start, len)
        };
        rows.fill(0.0);
        let lanes = target
            .places()
            .enumerate()
            .filter(|(_, place)| place / BLOCK == panel);
        for (target_index, target_place) in lanes {
            let lane = target_place % BLOCK;
            for (source_index, place) in source.places().enumerate() {
                let weights =
                    &weights[target_index * target_stride + source_index * source_stride..][..taps];
                for y in 0..phase.taps.0 {
                    let ky = (phase.kernel.0 as isize + y as isize * phase.kernel_step) as usize;
                    for x in 0..phase.taps.1 {
                        let kx =
                            (phase.kernel.1 as isize + x as isize * phase.kernel_step) as usize;
                        let weight = weights[ky * shape.kernel + kx];
                        let tap = y * phase.taps.1 + x;
                        if geometry.is_rounded {
                            let row = tap * channels + place / 2;
                            put_half(&mut rows[row * BLOCK + lane], place % 2, weight);
                        } else {
                            let row = tap * channels + place;
                            rows[row * BLOCK + lane] = weight;
                        }
                    }
                }
            }
        }
    });
}

/// Rounds a weight to bf16 and puts it into one half of a pair that was zero there.
fn put_half(pair: &mut f32, half: usize, weight: f32) {
    let value = if half == 0 {
        pair_of(weight, 0.0)
    } else {
        pair_of(0.0, weight)
    };
    *pair = f32::from_bits(pair.to_bits() | value.to_bits());
}

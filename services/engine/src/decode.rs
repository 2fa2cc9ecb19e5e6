//! Boxes and probabilities from the raw outputs of a detection head.
#![expect(unsafe_code, reason = "rows of the output split over threads")]

use crate::network::HeadLevel;
use crate::ops::simd::{BLOCK, Kernel, Level, Simd, exp, sigmoid};
use crate::parallel::Threads;

/// Distance bins per side of a box.
const BINS: usize = 16;
const SIDES: usize = 4;
/// Anchors a thread works on at a time.
const CHUNK_ANCHORS: usize = 256;

/// Where one anchor's row goes, shared over threads.
#[derive(Clone, Copy)]
struct Rows(*mut f32);

// SAFETY: every anchor has its own row, and one chunk.
unsafe impl Send for Rows {}
// SAFETY: as for `Send`.
unsafe impl Sync for Rows {}

impl Rows {
    /// # Safety
    /// The row lies in the output and nobody else uses it meanwhile.
    unsafe fn row<'a>(self, index: usize, length: usize) -> &'a mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(index * length), length) }
    }
}

struct Anchor<'a> {
    boxes: &'a [f32],
    scores: &'a [f32],
    /// Centre of the cell, in cells.
    centre: [f32; 2],
    stride: f32,
    /// Box, then a probability per class.
    row: &'a mut [f32],
}

impl Kernel for Anchor<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let bins: [f32; BINS] = std::array::from_fn(|bin| bin as f32);
        let bins = simd.load(&bins);
        let mut sides = [0.0; SIDES];
        for (side, logits) in sides.iter_mut().zip(self.boxes.chunks_exact(BINS)) {
            let maximum = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let logits: &[f32; BINS] = logits.try_into().expect("invariant: chunks are bins");
            let weights = exp(simd, simd.sub(simd.load(logits), simd.splat(maximum)));
            *side = simd.sum(simd.mul(weights, bins)) / simd.sum(weights);
        }
        let [left, top, right, bottom] = sides;
        let [x, y] = self.centre;
        let (bounds, probabilities) = self.row.split_at_mut(SIDES);
        bounds.copy_from_slice(&[
            (x + (right - left) / 2.0) * self.stride,
            (y + (bottom - top) / 2.0) * self.stride,
            (left + right) * self.stride,
            (top + bottom) * self.stride,
        ]);
        for (target, logits) in probabilities
            .chunks_mut(BLOCK)
            .zip(self.scores.chunks_exact(BLOCK))
        {
            let logits: &[f32; BLOCK] = logits.try_into().expect("invariant: chunks are blocks");
            let mut values = [0.0; BLOCK];
            simd.store(sigmoid(simd, simd.load(logits)), &mut values);
            target.copy_from_slice(&values[..target.len()]);
        }
    }
}

/// Writes `[batch][anchors][4 + class_count]`: centre, size in pixels of the input, probabilities.
pub fn decode(
    threads: &Threads,
    batch: usize,
    class_count: usize,
    heads: &[HeadLevel<'_>],
    output: &mut [f32],
) {
    let anchors: usize = heads.iter().map(|head| head.height * head.width).sum();
    let length = SIDES + class_count;
    assert_eq!(
        output.len(),
        batch * anchors * length,
        "invariant: one row per anchor"
    );
    let rows = Rows(output.as_mut_ptr());
    let level = Level::best();
    let mut first = 0;
    for head in heads {
        let cells = head.height * head.width;
        let chunks = cells.div_ceil(CHUNK_ANCHORS);
        threads.run(batch * chunks, |chunk| {
            let (image, start) = (chunk / chunks, chunk % chunks * CHUNK_ANCHORS);
            for cell in start..(start + CHUNK_ANCHORS).min(cells) {
                let anchor = image * cells + cell;
                // SAFETY: the output has a row for every anchor, and each anchor is in one chunk.
                let row = unsafe { rows.row(image * anchors + first + cell, length) };
                level.dispatch(Anchor {
                    boxes: &head.boxes[anchor * head.box_stride..][..SIDES * BINS],
                    scores: &head.scores[anchor * head.score_stride..][..head.score_stride],
                    centre: [
                        (cell % head.width) as f32 + 0.5,
                        (cell / head.width) as f32 + 0.5,
                    ],
                    stride: head.stride as f32,
                    row,
                });
            }
        });
        first += cells;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certain_bin_is_the_distance() {
        let mut boxes = vec![0.0; 2 * 3 * 64];
        let scores = vec![0.0; 2 * 3 * 16];
        // Image 1, cell 2: left 1, top 2, right 3, bottom 4 cells.
        for (side, distance) in [1, 2, 3, 4].into_iter().enumerate() {
            boxes[(3 + 2) * 64 + side * 16 + distance] = 60.0;
        }
        let head = HeadLevel {
            stride: 8,
            height: 1,
            width: 3,
            boxes: &boxes,
            box_stride: 64,
            scores: &scores,
            score_stride: 16,
            ..HeadLevel::default()
        };
        let mut output = vec![f32::NAN; 2 * 3 * 7];
        decode(&Threads::new(2).unwrap(), 2, 3, &[head], &mut output);
        let row = &output[(3 + 2) * 7..];
        assert_eq!(
            row,
            [(2.5 + 1.0) * 8.0, 1.5 * 8.0, 32.0, 48.0, 0.5, 0.5, 0.5]
        );
        // Equal bins have their middle as expectation.
        assert_eq!(output[2], 15.0 * 8.0);
    }
}

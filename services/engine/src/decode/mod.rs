//! Predictions from the raw outputs of a head: boxes in pixels, probabilities, keypoints, angles.
#![expect(unsafe_code, reason = "rows of the output split over threads")]

mod select;
#[cfg(test)]
mod tests;

use crate::models::{Family, KeypointShape, ModelSpec, Task};
use crate::network::HeadLevel;
use crate::ops::simd::{BLOCK, Kernel, Level, Simd, exp, sigmoid};
use crate::ops::view::View;
use crate::parallel::Threads;

/// The most detections of an image that a one-to-one branch gives.
pub const DETECTIONS_MAX: usize = 300;

/// Distance bins per side of a box, unless the outputs are the distances themselves.
const BINS: usize = 16;
const SIDES: usize = 4;
/// Anchors a thread works on at a time.
const CHUNK_ANCHORS: usize = 256;

/// What a model's outputs mean.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    class_count: usize,
    /// Whether a side's distance is the expectation over bins.
    has_bins: bool,
    extra: Extra,
}

/// What the third output means.
#[derive(Debug, Clone, Copy)]
enum Extra {
    /// Numbers as they are, this many.
    Plain(usize),
    /// Keypoints, twice as far from the cell's corner, or as they are from its centre.
    Keypoints { shape: KeypointShape, doubled: bool },
    /// One angle, as it is or squeezed into -π/4 to 3π/4; it turns the box.
    Angle { squeezed: bool },
}

impl Extra {
    fn count(self) -> usize {
        match self {
            Self::Plain(count) => count,
            Self::Keypoints { shape, .. } => shape.values(),
            Self::Angle { .. } => 1,
        }
    }
}

/// Returns the angle that a raw output means in models that squeeze it.
pub fn squeezed_angle(raw: f32) -> f32 {
    let share = 1.0 / (1.0 + (-f64::from(raw)).exp());
    ((share - 0.25) * std::f64::consts::PI) as f32
}

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

impl Decoder {
    /// Returns how to read the outputs of a dense head.
    pub fn new(spec: &ModelSpec) -> Self {
        let is_26 = spec.family == Family::Yolo26;
        let extra = match (spec.task, spec.keypoints) {
            (Task::Pose, Some(shape)) => Extra::Keypoints {
                shape,
                doubled: !is_26,
            },
            (Task::Obb, _) => Extra::Angle { squeezed: !is_26 },
            _ => Extra::Plain(spec.extra_channels()),
        };
        Self {
            class_count: spec.class_count,
            has_bins: spec.family.bins() > 1,
            extra,
        }
    }

    /// Returns the numbers of an anchor's row.
    fn row_length(&self) -> usize {
        SIDES + self.class_count + self.extra.count()
    }

    /// Writes `[batch][anchors][4 + class_count + extras]`: centre, size in pixels of the input, probabilities,
    /// extras.
    pub fn anchors(&self, threads: &Threads, heads: &[HeadLevel<'_>], output: &mut [f32]) {
        let anchors: usize = heads.iter().map(|head| head.height * head.width).sum();
        let length = self.row_length();
        assert!(
            output.len().is_multiple_of(anchors * length),
            "invariant: one row per anchor"
        );
        let batch = output.len() / (anchors * length);
        let rows = Rows(output.as_mut_ptr());
        let level = Level::best();
        let mut first = 0;
        for head in heads {
            let cells = head.height * head.width;
            let chunks = cells.div_ceil(CHUNK_ANCHORS);
            threads.run(batch * chunks, |chunk| {
                let (image, start) = (chunk / chunks, chunk % chunks * CHUNK_ANCHORS);
                for cell in start..(start + CHUNK_ANCHORS).min(cells) {
                    // SAFETY: the output has a row for every anchor, and each anchor is in one chunk.
                    let row = unsafe { rows.row(image * anchors + first + cell, length) };
                    self.anchor(level, head, image * cells + cell, row);
                }
            });
            first += cells;
        }
    }

    fn anchor(&self, level: Level, head: &HeadLevel<'_>, anchor: usize, row: &mut [f32]) {
        let boxes = &head.boxes[anchor * head.box_stride..][..head.box_stride];
        let (bounds, rest) = row.split_at_mut(SIDES);
        let (probabilities, extras) = rest.split_at_mut(self.class_count);
        let mut sides = [0.0; SIDES];
        level.dispatch(Anchor {
            boxes: self.has_bins.then_some(boxes),
            scores: &head.scores[anchor * head.score_stride..][..head.score_stride],
            sides: &mut sides,
            probabilities,
        });
        if !self.has_bins {
            sides.copy_from_slice(&boxes[..SIDES]);
        }
        let cell = anchor % (head.height * head.width);
        let centre = [
            (cell % head.width) as f32 + 0.5,
            (cell / head.width) as f32 + 0.5,
        ];
        let raw = &head.extra[anchor * head.extra_stride..][..extras.len()];
        let stride = head.stride as f32;
        let [left, top, right, bottom] = sides;
        let mut offset = [(right - left) / 2.0, (bottom - top) / 2.0];
        match self.extra {
            Extra::Plain(_) => extras.copy_from_slice(raw),
            Extra::Angle { squeezed } => {
                let angle = if squeezed {
                    squeezed_angle(raw[0])
                } else {
                    raw[0]
                };
                let (sine, cosine) = angle.sin_cos();
                let [x, y] = offset;
                offset = [x * cosine - y * sine, x * sine + y * cosine];
                extras[0] = angle;
            }
            Extra::Keypoints { shape, doubled } => {
                let (factor, origin) = match doubled {
                    true => (2.0, centre.map(|place| place - 0.5)),
                    false => (1.0, centre),
                };
                let points = extras.chunks_exact_mut(shape.dims);
                for (point, raw) in points.zip(raw.chunks_exact(shape.dims)) {
                    for axis in 0..2 {
                        point[axis] = (factor * raw[axis] + origin[axis]) * stride;
                    }
                    if let (Some(visible), Some(raw)) = (point.get_mut(2), raw.get(2)) {
                        *visible = 1.0 / (1.0 + (-raw).exp());
                    }
                }
            }
        }
        bounds.copy_from_slice(&[
            (centre[0] + offset[0]) * stride,
            (centre[1] + offset[1]) * stride,
            (left + right) * stride,
            (top + bottom) * stride,
        ]);
    }
}

/// The exponentials of one anchor.
struct Anchor<'a> {
    /// Distance logits, where there are bins.
    boxes: Option<&'a [f32]>,
    scores: &'a [f32],
    sides: &'a mut [f32; SIDES],
    probabilities: &'a mut [f32],
}

impl Kernel for Anchor<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if let Some(boxes) = self.boxes {
            let bins: [f32; BINS] = std::array::from_fn(|bin| bin as f32);
            let bins = simd.load(&bins);
            for (side, logits) in self.sides.iter_mut().zip(boxes.chunks_exact(BINS)) {
                let maximum = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let logits: &[f32; BINS] = logits.try_into().expect("invariant: chunks are bins");
                let weights = exp(simd, simd.sub(simd.load(logits), simd.splat(maximum)));
                *side = simd.sum(simd.mul(weights, bins)) / simd.sum(weights);
            }
        }
        for (target, logits) in self
            .probabilities
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

/// Writes the probabilities of each image's classes, `[batch][class_count]`.
pub fn softmax(batch: usize, class_count: usize, logits: View<'_>, output: &mut [f32]) {
    assert_eq!(
        output.len(),
        batch * class_count,
        "invariant: a probability per class"
    );
    for (image, row) in output.chunks_exact_mut(class_count).enumerate() {
        let logit = |class| f64::from(logits.get(image, class));
        let maximum = (0..class_count)
            .map(logit)
            .fold(f64::NEG_INFINITY, f64::max);
        let weight = |class| (logit(class) - maximum).exp();
        let sum: f64 = (0..class_count).map(weight).sum();
        for (class, probability) in row.iter_mut().enumerate() {
            *probability = (weight(class) / sum) as f32;
        }
    }
}

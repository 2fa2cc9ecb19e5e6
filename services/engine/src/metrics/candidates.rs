//! The scores of one image that are worth a look: anchors and classes above the confidence, from decoded rows or
//! straight from the logits of a head, whose boxes are then decoded for candidates only.

use super::NmsOptions;
use crate::network::HeadLevel;
use crate::ops::simd::{BLOCK, Kernel, Level, Simd};

/// A score and where it stands, in one number that sorts by descending score, then by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate(u64);

impl Candidate {
    /// `score` must not be negative; then its bits are in the order of its values.
    fn new(score: f32, index: usize, class: usize, class_count: usize) -> Self {
        let place = (index * class_count + class) as u64;
        Self(u64::from(!score.to_bits()) << 32 | place)
    }

    /// Returns the anchor and the class.
    pub fn place(self, class_count: usize) -> (usize, usize) {
        let place = (self.0 & u64::from(u32::MAX)) as usize;
        (place / class_count, place % class_count)
    }

    pub fn score(self) -> f32 {
        f32::from_bits(!((self.0 >> 32) as u32))
    }
}

/// The candidates of one image, in no order.
#[derive(Debug)]
pub(super) struct Candidates {
    pub class_count: usize,
    pub list: Vec<Candidate>,
}

impl Candidates {
    /// Lists those of decoded rows: a box, then a score per class.
    ///
    /// # Panics
    /// When `rows` does not hold whole rows.
    pub fn of_rows(rows: &[f32], class_count: usize, options: &NmsOptions) -> Self {
        let width = 4 + class_count;
        assert_eq!(rows.len() % width, 0, "invariant: whole rows of {width}");
        let mut list = Vec::new();
        let confidence = options.confidence.max(0.0);
        Level::best().dispatch(Scan {
            rows,
            row_stride: width,
            scores: 4..width,
            limit: confidence,
            take: |index: usize, scores: &[f32]| {
                push(&mut list, index, scores, options, confidence, |score| score);
            },
        });
        Self { class_count, list }
    }

    /// Lists those of one image of a head's logits.
    pub fn of_levels(
        levels: &[HeadLevel<'_>],
        image: usize,
        class_count: usize,
        options: &NmsOptions,
    ) -> Self {
        let mut list = Vec::new();
        let confidence = options.confidence.max(0.0);
        // A logit is above this wherever its score is above the confidence; rounding is left to the scores.
        let limit = (confidence / (1.0 - confidence)).ln();
        let limit = limit - limit.abs() * 1e-4;
        let mut first = 0;
        for level in levels {
            let cells = level.height * level.width;
            let size = cells * level.score_stride;
            Level::best().dispatch(Scan {
                rows: &level.scores[image * size..][..size],
                row_stride: level.score_stride,
                scores: 0..class_count,
                limit,
                take: |cell: usize, logits: &[f32]| {
                    push(
                        &mut list,
                        first + cell,
                        logits,
                        options,
                        confidence,
                        sigmoid,
                    );
                },
            });
            first += cells;
        }
        Self { class_count, list }
    }

    /// Keeps what needs no suppression: the `count` anchors with the best scores, and of all their classes the best.
    pub fn of_one_to_one(
        levels: &[HeadLevel<'_>],
        image: usize,
        class_count: usize,
        options: &NmsOptions,
    ) -> Self {
        let count = options.detection_count_max;
        let single = NmsOptions {
            is_multi_label: false,
            ..*options
        };
        let mut anchors = Self::of_levels(levels, image, class_count, &single).list;
        keep_best(&mut anchors, count);
        let multiple = NmsOptions {
            is_multi_label: true,
            ..*options
        };
        let mut list = Vec::new();
        for anchor in anchors {
            let (index, _) = anchor.place(class_count);
            let logits = logits_of(levels, image, index);
            let logits = &logits[..class_count];
            push(
                &mut list,
                index,
                logits,
                &multiple,
                options.confidence,
                sigmoid,
            );
        }
        keep_best(&mut list, count);
        list.sort_unstable();
        Self { class_count, list }
    }
}

fn keep_best(list: &mut Vec<Candidate>, count: usize) {
    if list.len() > count {
        list.select_nth_unstable(count);
        list.truncate(count);
    }
}

/// Returns the logits of an anchor that is counted over all levels.
fn logits_of<'a>(levels: &[HeadLevel<'a>], image: usize, index: usize) -> &'a [f32] {
    let mut cell = index;
    for level in levels {
        let cells = level.height * level.width;
        if cell < cells {
            return &level.scores[(image * cells + cell) * level.score_stride..];
        }
        cell -= cells;
    }
    unreachable!("invariant: anchor {index} lies on a level")
}

/// Adds the classes of one anchor that count.
fn push(
    list: &mut Vec<Candidate>,
    index: usize,
    scores: &[f32],
    options: &NmsOptions,
    confidence: f32,
    score_of: impl Fn(f32) -> f32,
) {
    let class_count = scores.len();
    let mut add = |class: usize| {
        let score = score_of(scores[class]);
        if score > confidence {
            list.push(Candidate::new(score, index, class, class_count));
        }
    };
    if options.is_multi_label {
        (0..class_count).for_each(add);
    } else {
        let best = (1..class_count).fold(0, |best, class| {
            if scores[class] > scores[best] || scores[best].is_nan() {
                class
            } else {
                best
            }
        });
        add(best);
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Calls `take` with the rows any of whose scores is above the limit; nearly always none is, so the search is what
/// takes the time.
struct Scan<'a, F> {
    rows: &'a [f32],
    row_stride: usize,
    scores: std::ops::Range<usize>,
    limit: f32,
    take: F,
}

impl<F: FnMut(usize, &[f32])> Kernel for Scan<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        for (index, row) in self.rows.chunks_exact(self.row_stride).enumerate() {
            let scores = &row[self.scores.clone()];
            let (blocks, rest) = scores.as_chunks::<BLOCK>();
            let mut largest = simd.splat(f32::NEG_INFINITY);
            for block in blocks {
                // What is no number leaves the other.
                largest = simd.max(simd.load(block), largest);
            }
            let mut values = [0.0; BLOCK];
            simd.store(largest, &mut values);
            if values.iter().chain(rest).any(|&score| score > self.limit) {
                (self.take)(index, scores);
            }
        }
    }
}

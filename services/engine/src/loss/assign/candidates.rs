//! The anchors that may answer for an object: those whose centres lie inside its box.

use std::ops::Range;

use super::super::anchor::{ImageHead, Place};
use super::super::outline::Outline;
use super::{OVERLAP_POWER, Pair};

/// A box side counts as at least this long, in pixels, when candidates are looked for.
const SIDE_MINIMUM: f64 = 16.0;
/// How far inside an upright box an anchor's centre must be, in pixels.
const MARGIN: f64 = 1e-9;
/// An object's size, in cells of a level, that the level is meant for.
const CELLS_MINIMUM: f64 = 2.0;
const CELLS_MAXIMUM: f64 = 12.0;

/// An anchor and how well it fits the object at hand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub anchor: u32,
    pub place: Place,
    /// The root of the probability of the object's class.
    pub score: f64,
    pub overlap: f64,
    pub alignment: f64,
}

impl Candidate {
    /// Works out the alignment from score and overlap.
    pub fn align(&mut self) {
        self.alignment = self.score * self.overlap.powi(OVERLAP_POWER);
    }

    pub fn pair(&self, ground_truth: usize) -> Pair {
        Pair {
            ground_truth: ground_truth as u32,
            overlap: self.overlap,
            alignment: self.alignment,
        }
    }
}

/// Lists the candidates of an object by anchor.
pub(super) fn find(head: &ImageHead<'_>, outline: &Outline, candidates: &mut Vec<Candidate>) {
    candidates.clear();
    let corners = match outline {
        Outline::Upright(shape) => enlarged(shape.corners),
        // Anchors on the edge count here: the exact test follows.
        Outline::Turned(turned) => {
            let [x1, y1, x2, y2] = turned.around(SIDE_MINIMUM);
            [x1 - 1.0, y1 - 1.0, x2 + 1.0, y2 + 1.0]
        }
    };
    if let Outline::Upright(shape) = outline
        && shape.corners.iter().sum::<f64>() <= 0.0
    {
        return;
    }
    let mut first = 0;
    for (index, level) in head.levels.iter().enumerate() {
        let columns = inside(corners[0], corners[2], level.stride, level.width);
        let rows = inside(corners[1], corners[3], level.stride, level.height);
        for y in rows {
            for x in columns.clone() {
                let cell = y * level.width + x;
                let place = Place { level: index, cell };
                if let Outline::Turned(turned) = outline {
                    let centre = place.centre(level).map(|cells| cells * level.stride as f64);
                    if !turned.contains(centre, SIDE_MINIMUM) {
                        continue;
                    }
                }
                candidates.push(Candidate {
                    anchor: (first + cell) as u32,
                    place,
                    score: 0.0,
                    overlap: 0.0,
                    alignment: 0.0,
                });
            }
        }
        first += level.height * level.width;
    }
}

/// Drops the candidates of levels that are too coarse or too fine for the object, unless none would be left. The
/// finest level takes any small object and the coarsest any large one.
pub(super) fn keep_fitting_levels(
    head: &ImageHead<'_>,
    outline: &Outline,
    candidates: &mut Vec<Candidate>,
) {
    let side = outline.area().sqrt();
    let last = head.levels.len() - 1;
    let fits = |candidate: &Candidate| {
        let level = candidate.place.level;
        let stride = head.levels[level].stride as f64;
        (level == 0 || side >= CELLS_MINIMUM * stride)
            && (level == last || side <= CELLS_MAXIMUM * stride)
    };
    if candidates.iter().any(fits) {
        candidates.retain(fits);
    }
}

/// Moves the `count` best aligned to the front, of equals the first by anchor, and returns how many there are.
pub(super) fn put_best_first(candidates: &mut [Candidate], count: usize) -> usize {
    let order = |a: &Candidate, b: &Candidate| {
        let by_alignment = b.alignment.total_cmp(&a.alignment);
        by_alignment.then(a.anchor.cmp(&b.anchor))
    };
    if candidates.len() > count {
        candidates.select_nth_unstable_by(count, order);
    }
    count.min(candidates.len())
}

/// Returns a box whose sides are at least of the least length.
fn enlarged([x1, y1, x2, y2]: [f64; 4]) -> [f64; 4] {
    let axis = |low: f64, high: f64| {
        let half = (high - low).max(SIDE_MINIMUM) / 2.0;
        let centre = (low + high) / 2.0;
        (centre - half, centre + half)
    };
    let ((x1, x2), (y1, y2)) = (axis(x1, x2), axis(y1, y2));
    [x1, y1, x2, y2]
}

/// Returns the cells of one axis whose centres lie between `low` and `high`.
fn inside(low: f64, high: f64, stride: usize, count: usize) -> Range<usize> {
    let stride = stride as f64;
    let centre_of = |cell: usize| (cell as f64 + 0.5) * stride;
    // The division only comes near; the rule decides.
    let mut start = (low / stride - 1.5).max(0.0) as usize;
    while start < count && centre_of(start) - low <= MARGIN {
        start += 1;
    }
    let mut end = start.max(((high / stride - 1.5).max(0.0) as usize).min(count));
    while end < count && high - centre_of(end) > MARGIN {
        end += 1;
    }
    start..end
}

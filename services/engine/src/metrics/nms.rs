//! Non-maximum suppression: of several boxes on one object keeps the surest.

use super::candidates::{Candidate, Candidates};
use super::{Detection, TurnedDetection};
use crate::loss::Gaussian;

/// The most candidates that are looked at, by descending score.
const CANDIDATE_COUNT_MAX: usize = 30_000;
/// Candidates put in order at first; most images are done within them.
const FIRST_BLOCK: usize = 1024;

/// What is kept and what is suppressed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NmsOptions {
    /// Scores must be above it (`conf`).
    pub confidence: f32,
    /// A box that overlaps a surer one by more than this is dropped (`iou`).
    pub iou: f32,
    /// The most detections of one image (`max_det`).
    pub detection_count_max: usize,
    /// Whether every class of an anchor above the confidence counts, or only its best.
    pub is_multi_label: bool,
    /// Whether boxes of different classes suppress each other.
    pub is_class_agnostic: bool,
}

impl NmsOptions {
    /// Returns the options of validation.
    pub fn validation() -> Self {
        Self {
            confidence: 0.001,
            iou: 0.7,
            detection_count_max: 300,
            is_multi_label: true,
            is_class_agnostic: false,
        }
    }

    /// Returns the default options of prediction.
    pub fn prediction() -> Self {
        Self {
            confidence: 0.25,
            is_multi_label: false,
            ..Self::validation()
        }
    }

    /// Returns the number of groups within which boxes suppress each other, and which one a class is in.
    fn groups(&self, class_count: usize) -> (usize, impl Fn(usize) -> usize + use<>) {
        let is_class_agnostic = self.is_class_agnostic;
        let count = if is_class_agnostic { 1 } else { class_count };
        let group_of = move |class| if is_class_agnostic { 0 } else { class };
        (count, group_of)
    }
}

/// Returns the detections of one image by descending score.
///
/// `rows` holds one row for each anchor: centre x, centre y, width, height, then `class_count` scores. Of equal
/// scores the earlier anchor comes first.
///
/// # Panics
///
/// When `rows` does not hold whole rows.
pub fn nms(rows: &[f32], class_count: usize, options: &NmsOptions) -> Vec<Detection> {
    let width = 4 + class_count;
    let candidates = Candidates::of_rows(rows, class_count, options);
    suppress(candidates, options, |index| {
        let [x, y, width, height] = rows[index * width..]
            .first_chunk()
            .copied()
            .expect("invariant: a candidate has a row");
        let (half_width, half_height) = (width / 2.0, height / 2.0);
        [
            x - half_width,
            y - half_height,
            x + half_width,
            y + half_height,
        ]
    })
}

/// Keeps the surest of overlapping candidates; `corners` gives the box of an anchor.
pub(super) fn suppress(
    candidates: Candidates,
    options: &NmsOptions,
    corners: impl Fn(usize) -> [f32; 4],
) -> Vec<Detection> {
    let class_count = candidates.class_count;
    let (group_count, group_of) = options.groups(class_count);
    let mut groups: Vec<Vec<Bounds>> = vec![Vec::new(); group_count];
    let mut kept = Vec::new();
    by_score(candidates, |candidate| {
        if kept.len() == options.detection_count_max {
            return false;
        }
        let (index, class) = candidate.place(class_count);
        let bounds = Bounds::new(corners(index));
        let group = &mut groups[group_of(class)];
        if !group
            .iter()
            .any(|surer| bounds.overlaps(surer, options.iou))
        {
            group.push(bounds);
            kept.push(Detection {
                bounds: bounds.corners,
                score: candidate.score(),
                class: class as u32,
                index: index as u32,
            });
        }
        true
    });
    kept
}

/// Keeps the turned candidates that no surer one overlaps, be that one kept or not; `bounds` gives centre, size and
/// angle of an anchor.
pub(super) fn suppress_turned(
    candidates: Candidates,
    options: &NmsOptions,
    bounds: impl Fn(usize) -> [f64; 5],
) -> Vec<TurnedDetection> {
    let class_count = candidates.class_count;
    let (group_count, group_of) = options.groups(class_count);
    let limit = Reach::new(f64::from(options.iou));
    let mut groups: Vec<Vec<Gaussian>> = vec![Vec::new(); group_count];
    let mut kept = Vec::new();
    by_score(candidates, |candidate| {
        if kept.len() == options.detection_count_max {
            return false;
        }
        let (index, class) = candidate.place(class_count);
        let bounds = bounds(index);
        let gaussian = Gaussian::new(bounds, 0.0);
        let group = &mut groups[group_of(class)];
        if !group.iter().any(|surer| limit.overlaps(surer, &gaussian)) {
            kept.push(TurnedDetection {
                bounds: bounds.map(|number| number as f32),
                score: candidate.score(),
                class: class as u32,
                index: index as u32,
            });
        }
        group.push(gaussian);
        true
    });
    kept
}

/// A threshold on the probIoU, with how near two boxes must be to pass it.
struct Reach {
    threshold: f64,
    /// The squared distance of the centres over the sum of all variances.
    distance: f64,
}

impl Reach {
    fn new(threshold: f64) -> Self {
        // probIoU = 1 − √(1 − e^−d) with d at least a quarter of that distance; a little more, for rounding.
        let gap = (1.0 - threshold).clamp(0.0, 1.0);
        Self {
            threshold,
            distance: -4.0 * (1.0 - gap * gap).ln() * 1.01 + 1e-6,
        }
    }

    fn overlaps(&self, one: &Gaussian, other: &Gaussian) -> bool {
        one.squared_distance(other) <= self.distance * one.variances(other)
            && one.overlap(other) > self.threshold
    }
}

/// Calls `take` with the candidates by descending score until it returns false. They are put in order block by
/// block, for most are never looked at.
fn by_score(candidates: Candidates, mut take: impl FnMut(Candidate) -> bool) {
    let mut list = candidates.list;
    if list.len() > CANDIDATE_COUNT_MAX {
        list.select_nth_unstable(CANDIDATE_COUNT_MAX);
        list.truncate(CANDIDATE_COUNT_MAX);
    }
    let mut rest = &mut list[..];
    let mut block = FIRST_BLOCK;
    while !rest.is_empty() {
        let count = block.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable(count);
        }
        let (now, later) = rest.split_at_mut(count);
        now.sort_unstable();
        for &mut candidate in now {
            if !take(candidate) {
                return;
            }
        }
        rest = later;
        block *= 2;
    }
}

/// A box with its area.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    corners: [f32; 4],
    area: f32,
}

impl Bounds {
    fn new(corners: [f32; 4]) -> Self {
        Self {
            corners,
            area: (corners[2] - corners[0]) * (corners[3] - corners[1]),
        }
    }

    fn overlaps(&self, other: &Self, threshold: f32) -> bool {
        let (a, b) = (&self.corners, &other.corners);
        let width = a[2].min(b[2]) - a[0].max(b[0]);
        let height = a[3].min(b[3]) - a[1].max(b[1]);
        if width <= 0.0 || height <= 0.0 {
            return false;
        }
        let shared = width * height;
        shared / (self.area + other.area - shared) > threshold
    }
}

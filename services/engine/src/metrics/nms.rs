//! Non-maximum suppression: of several boxes on one object keeps the surest.

use super::Detection;

/// The most candidates that are looked at, by descending score.
const CANDIDATE_COUNT_MAX: usize = 30_000;
/// Candidates put in order at first; most images are done within them.
const FIRST_BLOCK: usize = 1024;
/// Scores that are tested for a candidate at once.
const LANES: usize = 16;

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
    assert_eq!(rows.len() % width, 0, "invariant: whole rows of {width}");
    let mut candidates = candidates(rows, class_count, options);
    if candidates.len() > CANDIDATE_COUNT_MAX {
        candidates.select_nth_unstable(CANDIDATE_COUNT_MAX);
        candidates.truncate(CANDIDATE_COUNT_MAX);
    }
    let group_count = if options.is_class_agnostic {
        1
    } else {
        class_count
    };
    let mut groups: Vec<Vec<Bounds>> = vec![Vec::new(); group_count];
    let mut kept = Vec::new();
    let mut rest = &mut candidates[..];
    let mut block = FIRST_BLOCK;
    while !rest.is_empty() {
        let count = block.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable(count);
        }
        let (now, later) = rest.split_at_mut(count);
        now.sort_unstable();
        for candidate in now {
            if kept.len() == options.detection_count_max {
                return kept;
            }
            let (index, class) = candidate.place(class_count);
            let row = &rows[index * width..][..width];
            let bounds = Bounds::of_row(row);
            let group = &mut groups[if options.is_class_agnostic { 0 } else { class }];
            if group
                .iter()
                .any(|surer| bounds.overlaps(surer, options.iou))
            {
                continue;
            }
            group.push(bounds);
            kept.push(Detection {
                bounds: bounds.corners,
                score: row[4 + class],
                class: class as u32,
                index: index as u32,
            });
        }
        rest = later;
        block *= 2;
    }
    kept
}

/// A score and where it stands, in one number that sorts by descending score, then by place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate(u64);

impl Candidate {
    /// `score` must not be negative; then its bits are in the order of its values.
    fn new(score: f32, index: usize, class: usize, class_count: usize) -> Self {
        let place = (index * class_count + class) as u64;
        Self(u64::from(!score.to_bits()) << 32 | place)
    }

    /// Returns the anchor and the class.
    fn place(self, class_count: usize) -> (usize, usize) {
        let place = (self.0 & u64::from(u32::MAX)) as usize;
        (place / class_count, place % class_count)
    }
}

fn candidates(rows: &[f32], class_count: usize, options: &NmsOptions) -> Vec<Candidate> {
    let confidence = options.confidence.max(0.0);
    let mut candidates = Vec::new();
    for (index, row) in rows.chunks_exact(4 + class_count).enumerate() {
        let scores = &row[4..];
        if !has_above(scores, confidence) {
            continue;
        }
        let mut push = |class: usize| {
            candidates.push(Candidate::new(scores[class], index, class, class_count));
        };
        if options.is_multi_label {
            for (class, &score) in scores.iter().enumerate() {
                if score > confidence {
                    push(class);
                }
            }
        } else {
            let best = (1..class_count).fold(0, |best, class| {
                if scores[class] > scores[best] || scores[best].is_nan() {
                    class
                } else {
                    best
                }
            });
            push(best);
        }
    }
    candidates
}

/// Returns whether any score is above the threshold; nearly always none is, so this is what takes the time.
fn has_above(scores: &[f32], threshold: f32) -> bool {
    let (blocks, rest) = scores.as_chunks::<LANES>();
    let mut largest = [f32::MIN; LANES];
    for block in blocks {
        for (largest, &score) in largest.iter_mut().zip(block) {
            *largest = if score > *largest { score } else { *largest };
        }
    }
    largest.iter().chain(rest).any(|&score| score > threshold)
}

/// A box with its area.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    corners: [f32; 4],
    area: f32,
}

impl Bounds {
    fn of_row(row: &[f32]) -> Self {
        let (half_width, half_height) = (row[2] / 2.0, row[3] / 2.0);
        let corners = [
            row[0] - half_width,
            row[1] - half_height,
            row[0] + half_width,
            row[1] + half_height,
        ];
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

//! The task-aligned assigner: which anchors of one image answer for which box, and how sure they should be.
//!
//! An anchor is a candidate of a box when its centre lies inside. Each box claims the candidates whose class
//! score and overlap together are best; an anchor that several boxes claim goes to the one it overlaps most.
//! Candidates are found by index ranges of each level's grid, and an anchor's box is decoded when it first
//! becomes a candidate, so the work grows with the boxes' areas and not with anchors × boxes.

use crate::network::HeadLevel;

use super::ciou::{Shape, overlap};
use super::classify::sigmoid_of;
use super::distance::{BIN_COUNT, Distribution};

/// How many anchors one box may claim.
const CLAIMS_PER_BOX: usize = 10;
/// A box side counts as at least this long, in pixels, when candidates are looked for.
const SIDE_MINIMUM: f64 = 16.0;
/// How far inside a box an anchor's centre must be, in pixels.
const MARGIN: f64 = 1e-9;
/// Keeps the division by a box's best alignment finite.
const ALIGNMENT_EPSILON: f64 = 1e-9;
const NO_BOX: u32 = u32::MAX;

/// One anchor that answers for a box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assignment {
    pub image: u32,
    /// The anchor's index over all levels, finest level first.
    pub anchor: u32,
    /// Which of the image's boxes, in the order of the targets.
    pub ground_truth: u32,
    /// The score the anchor should give the box's class.
    pub score: f64,
}

/// A true box in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroundTruth {
    pub class: u32,
    pub shape: Shape,
}

/// Decides for one image. It keeps its memory from step to step.
#[derive(Debug, Default)]
pub(super) struct ImageAssigner {
    /// The image's true boxes; filled before `assign`.
    pub ground_truths: Vec<GroundTruth>,
    /// The outcome, by anchor.
    pub assignments: Vec<Assignment>,
    cells: Vec<Cell>,
    /// The cells that are not as new.
    touched: Vec<u32>,
    /// Largest alignment and overlap among the anchors each box was left with.
    peaks: Vec<(f64, f64)>,
}

/// What is known of one anchor during a step.
#[derive(Debug, Clone, Copy)]
struct Cell {
    is_decoded: bool,
    /// The predicted box in pixels.
    shape: Shape,
    /// The claims on the anchor, and one of the claimants.
    claim_count: u32,
    claimant: Pair,
    /// The box with the largest overlap of all whose candidate the anchor is.
    nearest: Pair,
}

/// A box and how well it fits an anchor.
#[derive(Debug, Clone, Copy)]
struct Pair {
    ground_truth: u32,
    overlap: f64,
    alignment: f64,
}

impl Pair {
    const NONE: Self = Self {
        ground_truth: NO_BOX,
        overlap: 0.0,
        alignment: 0.0,
    };
}

impl Cell {
    fn new() -> Self {
        Self {
            is_decoded: false,
            shape: Shape::default(),
            claim_count: 0,
            claimant: Pair::NONE,
            nearest: Pair::NONE,
        }
    }
}

impl ImageAssigner {
    /// Assigns the anchors of image `image` and returns the sum of their scores.
    pub fn assign(&mut self, levels: &[HeadLevel<'_>], image: usize) -> f64 {
        self.reset(levels);
        for index in 0..self.ground_truths.len() {
            self.claim(levels, image, index);
        }
        self.settle(image)
    }

    fn reset(&mut self, levels: &[HeadLevel<'_>]) {
        let count = levels.iter().map(|level| level.height * level.width).sum();
        if self.cells.len() == count {
            for &anchor in &self.touched {
                self.cells[anchor as usize] = Cell::new();
            }
        } else {
            self.cells.clear();
            self.cells.resize(count, Cell::new());
        }
        self.touched.clear();
        self.assignments.clear();
    }

    /// Lets one box claim its best candidates.
    fn claim(&mut self, levels: &[HeadLevel<'_>], image: usize, index: usize) {
        let truth = self.ground_truths[index];
        let corners = truth.shape.corners;
        if corners.iter().sum::<f64>() <= 0.0 {
            return;
        }
        let mut best = Best::default();
        let mut first = 0;
        for level in levels {
            let columns = inside(corners[0], corners[2], level.stride, level.width);
            let rows = inside(corners[1], corners[3], level.stride, level.height);
            for y in rows {
                for x in columns.clone() {
                    let place = y * level.width + x;
                    let anchor = first + place;
                    let row = image * level.height * level.width + place;
                    let cell = &mut self.cells[anchor];
                    if !cell.is_decoded {
                        cell.is_decoded = true;
                        cell.shape = decode(level, row, x, y);
                        self.touched.push(anchor as u32);
                    }
                    let overlap = overlap(&truth.shape, &cell.shape);
                    if overlap > 0.0 {
                        let logit = level.scores[row * level.score_stride + truth.class as usize];
                        let pair = Pair {
                            ground_truth: index as u32,
                            overlap,
                            alignment: sigmoid_of(logit).sqrt() * overlap.powi(6),
                        };
                        if overlap > cell.nearest.overlap {
                            cell.nearest = pair;
                        }
                        best.offer(anchor as u32, pair);
                    }
                }
            }
            first += level.height * level.width;
        }
        for &(anchor, pair) in best.entries() {
            let cell = &mut self.cells[anchor as usize];
            cell.claim_count += 1;
            cell.claimant = pair;
        }
    }

    /// Gives every claimed anchor to one box and works out its score.
    fn settle(&mut self, image: usize) -> f64 {
        self.peaks.clear();
        self.peaks.resize(self.ground_truths.len(), (0.0, 0.0));
        self.touched.sort_unstable();
        for &anchor in &self.touched {
            let cell = &mut self.cells[anchor as usize];
            if cell.claim_count > 1 {
                cell.claimant = cell.nearest;
            }
            if cell.claim_count > 0 {
                let peak = &mut self.peaks[cell.claimant.ground_truth as usize];
                peak.0 = peak.0.max(cell.claimant.alignment);
                peak.1 = peak.1.max(cell.claimant.overlap);
            }
        }
        let mut sum = 0.0;
        for &anchor in &self.touched {
            let cell = &self.cells[anchor as usize];
            if cell.claim_count > 0 {
                let pair = cell.claimant;
                let (alignment, overlap) = self.peaks[pair.ground_truth as usize];
                let score = pair.alignment * overlap / (alignment + ALIGNMENT_EPSILON);
                sum += score;
                self.assignments.push(Assignment {
                    image: image as u32,
                    anchor,
                    ground_truth: pair.ground_truth,
                    score,
                });
            }
        }
        sum
    }
}

/// The best aligned candidates of one box; of equals the first offered stays.
struct Best {
    entries: [(u32, Pair); CLAIMS_PER_BOX],
    count: usize,
}

impl Default for Best {
    fn default() -> Self {
        Self {
            entries: [(0, Pair::NONE); CLAIMS_PER_BOX],
            count: 0,
        }
    }
}

impl Best {
    fn entries(&self) -> &[(u32, Pair)] {
        &self.entries[..self.count]
    }

    fn offer(&mut self, anchor: u32, pair: Pair) {
        let is_better = |other: &(u32, Pair)| pair.alignment > other.1.alignment;
        if self.count == CLAIMS_PER_BOX && !is_better(&self.entries[self.count - 1])
            || pair.alignment <= 0.0
        {
            return;
        }
        let place = self
            .entries()
            .iter()
            .position(is_better)
            .unwrap_or(self.count);
        self.count = (self.count + 1).min(CLAIMS_PER_BOX);
        self.entries[place..self.count].rotate_right(1);
        self.entries[place] = (anchor, pair);
    }
}

/// Returns the box that the anchor in column `x` and row `y` predicts, in pixels.
fn decode(level: &HeadLevel<'_>, row: usize, x: usize, y: usize) -> Shape {
    let stride = level.stride as f64;
    let [left, top, right, bottom] =
        sides(level, row).map(|logits| Distribution::new(&logits).mean);
    let (x, y) = (x as f64 + 0.5, y as f64 + 0.5);
    Shape::new([x - left, y - top, x + right, y + bottom].map(|cells| cells * stride))
}

/// Returns the distance logits of one anchor: left, top, right, bottom.
pub(super) fn sides(level: &HeadLevel<'_>, row: usize) -> [[f32; BIN_COUNT]; 4] {
    let logits = &level.boxes[row * level.box_stride..][..4 * BIN_COUNT];
    std::array::from_fn(|side| std::array::from_fn(|bin| logits[side * BIN_COUNT + bin]))
}

/// Returns the cells of one axis whose centres lie between `low` and `high`, enlarged to the least side.
fn inside(low: f64, high: f64, stride: usize, count: usize) -> std::ops::Range<usize> {
    let stride = stride as f64;
    let half = (high - low).max(SIDE_MINIMUM) / 2.0;
    let centre = (low + high) / 2.0;
    let (low, high) = (centre - half, centre + half);
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

//! The task-aligned assigner: which anchors of one image answer for which object, and how sure they should be
//! (Feng et al., "TOOD: Task-aligned One-stage Object Detection", 2021).
//!
//! An anchor is a candidate of an object when its centre lies inside the box. Each object claims the candidates
//! whose class score and overlap together are best; an anchor that several claim goes to the one it overlaps most.
//! Candidates are found by index ranges of each level's grid, and an anchor's box is decoded when it first
//! becomes a candidate, so the work grows with the boxes' areas and not with anchors × boxes.

mod candidates;
mod refine;

use candidates::Candidate;
pub(super) use refine::Annotations;
pub(crate) use refine::KEYPOINT_AREA_SHARE;

use super::anchor::{ImageHead, Place};
use super::cross_entropy::sigmoid_of;
use super::outline::Outline;

/// Keeps the division by an object's best alignment finite.
const ALIGNMENT_EPSILON: f64 = 1e-9;
/// What an overlap is raised to in an alignment.
const OVERLAP_POWER: i32 = 6;
const NO_OBJECT: u32 = u32::MAX;

/// How many anchors an object gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claims {
    /// How many it may claim.
    pub per_object: usize,
    /// Whether it keeps only the best of them in the end.
    pub is_one_kept: bool,
}

impl Claims {
    /// An object is answered for by many anchors; doubles are suppressed later.
    pub const ONE_TO_MANY: Self = Self {
        per_object: 10,
        is_one_kept: false,
    };
    /// An object is answered for by one anchor.
    pub const ONE_TO_ONE: Self = Self {
        per_object: 7,
        is_one_kept: true,
    };
}

/// One anchor that answers for an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Assignment {
    pub image: u32,
    /// The anchor's index over all levels, finest level first.
    pub anchor: u32,
    /// Which of the image's objects, in the order of the targets; those too small for the task do not count.
    pub ground_truth: u32,
    /// The score the anchor should give the object's class.
    pub score: f64,
}

/// A true object.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroundTruth {
    pub class: u32,
    /// In pixels.
    pub outline: Outline,
    /// The row of the batch's targets.
    pub row: u32,
    /// Its number in the image's map of instances.
    pub instance: u16,
}

/// Decides for one image. It keeps its memory from step to step.
#[derive(Debug, Default)]
pub(super) struct ImageAssigner {
    /// The image's objects; filled before `assign`.
    pub ground_truths: Vec<GroundTruth>,
    /// The outcome, by anchor.
    pub assignments: Vec<Assignment>,
    cells: Vec<Cell>,
    /// The cells that are not as new.
    touched: Vec<u32>,
    /// The candidates of the object at hand.
    candidates: Vec<Candidate>,
    /// The best anchor of each object among those it was left with.
    peaks: Vec<Peak>,
    /// Pixels of each instance of the image's map, by its number.
    mask_areas: Vec<usize>,
}

/// What is known of one anchor during a step.
#[derive(Debug, Clone, Copy)]
struct Cell {
    is_decoded: bool,
    /// The predicted box in pixels.
    outline: Outline,
    /// The claims on the anchor, and one of the claimants.
    claim_count: u32,
    claimant: Pair,
    /// The object with the largest overlap of all whose candidate the anchor is.
    nearest: Pair,
}

/// An object and how well it fits an anchor.
#[derive(Debug, Clone, Copy)]
struct Pair {
    ground_truth: u32,
    overlap: f64,
    alignment: f64,
}

/// The largest alignment and overlap among an object's anchors, and the first anchor of that alignment.
#[derive(Debug, Clone, Copy, Default)]
struct Peak {
    alignment: f64,
    overlap: f64,
    anchor: u32,
}

impl Pair {
    const NONE: Self = Self {
        ground_truth: NO_OBJECT,
        overlap: 0.0,
        alignment: 0.0,
    };
}

impl Cell {
    fn new() -> Self {
        Self {
            is_decoded: false,
            outline: Outline::default(),
            claim_count: 0,
            claimant: Pair::NONE,
            nearest: Pair::NONE,
        }
    }
}

impl ImageAssigner {
    /// Assigns the anchors of an image and returns the sum of their scores.
    pub fn assign(
        &mut self,
        head: &ImageHead<'_>,
        claims: Claims,
        annotations: &Annotations<'_>,
    ) -> f64 {
        self.reset(head);
        if head.rules.is_assigning_by_masks() {
            let count = self.ground_truths.len();
            refine::count_masks(annotations, count, &mut self.mask_areas);
        }
        for index in 0..self.ground_truths.len() {
            self.claim(head, claims.per_object, annotations, index);
        }
        self.settle(head.image, claims.is_one_kept)
    }

    fn reset(&mut self, head: &ImageHead<'_>) {
        let levels = head.levels.iter();
        let count = levels.map(|level| level.height * level.width).sum();
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

    /// Lets one object claim its best candidates.
    fn claim(
        &mut self,
        head: &ImageHead<'_>,
        per_object: usize,
        annotations: &Annotations<'_>,
        index: usize,
    ) {
        let truth = self.ground_truths[index];
        candidates::find(head, &truth.outline, &mut self.candidates);
        if head.rules.assigning_keypoints().is_some() {
            candidates::keep_fitting_levels(head, &truth.outline, &mut self.candidates);
        }
        self.measure(head, annotations, &truth);
        if head.rules.is_assigning_by_masks() {
            let limit = refine::MASKS_PER_CLAIM * per_object;
            let true_area = self.mask_areas[usize::from(truth.instance)];
            let cells = &self.cells;
            let outline = |anchor: u32| cells[anchor as usize].outline;
            let masks = refine::Masks::new(head, annotations, &truth, true_area);
            masks.refine(&mut self.candidates, limit, outline);
        }
        self.candidates
            .retain(|candidate| candidate.alignment > 0.0);
        for candidate in &self.candidates {
            let pair = candidate.pair(index);
            let nearest = &mut self.cells[candidate.anchor as usize].nearest;
            if pair.overlap > nearest.overlap {
                *nearest = pair;
            }
        }
        let count = candidates::put_best_first(&mut self.candidates, per_object);
        for candidate in &self.candidates[..count] {
            let cell = &mut self.cells[candidate.anchor as usize];
            cell.claim_count += 1;
            cell.claimant = candidate.pair(index);
        }
    }

    /// Works out how well each candidate fits the object.
    fn measure(
        &mut self,
        head: &ImageHead<'_>,
        annotations: &Annotations<'_>,
        truth: &GroundTruth,
    ) {
        let keypoints = annotations.keypoints(head.rules, truth);
        for candidate in &mut self.candidates {
            let cell = &mut self.cells[candidate.anchor as usize];
            if !cell.is_decoded {
                cell.is_decoded = true;
                cell.outline = head.outline(candidate.place);
                self.touched.push(candidate.anchor);
            }
            candidate.overlap = match &keypoints {
                Some(keypoints) => keypoints.similarity(head, candidate.place),
                None => truth.outline.overlap(&cell.outline),
            };
            candidate.score = if candidate.overlap > 0.0 || head.rules.is_assigning_by_masks() {
                sigmoid_of(head.score(candidate.place, truth.class)).sqrt()
            } else {
                0.0
            };
            candidate.align();
        }
    }

    /// Gives every claimed anchor to one object and works out its score.
    fn settle(&mut self, image: usize, is_one_kept: bool) -> f64 {
        self.peaks.clear();
        self.peaks.resize(self.ground_truths.len(), Peak::default());
        self.touched.sort_unstable();
        for &anchor in &self.touched {
            let cell = &mut self.cells[anchor as usize];
            if cell.claim_count > 1 {
                cell.claimant = cell.nearest;
            }
            if cell.claim_count > 0 {
                let pair = cell.claimant;
                let peak = &mut self.peaks[pair.ground_truth as usize];
                if pair.alignment > peak.alignment {
                    peak.alignment = pair.alignment;
                    peak.anchor = anchor;
                    if is_one_kept {
                        peak.overlap = pair.overlap;
                    }
                }
                if !is_one_kept {
                    peak.overlap = peak.overlap.max(pair.overlap);
                }
            }
        }
        let mut sum = 0.0;
        for &anchor in &self.touched {
            let cell = &self.cells[anchor as usize];
            if cell.claim_count == 0 {
                continue;
            }
            let pair = cell.claimant;
            let peak = self.peaks[pair.ground_truth as usize];
            if is_one_kept && anchor != peak.anchor {
                continue;
            }
            let score = pair.alignment * peak.overlap / (peak.alignment + ALIGNMENT_EPSILON);
            sum += score;
            self.assignments.push(Assignment {
                image: image as u32,
                anchor,
                ground_truth: pair.ground_truth,
                score,
            });
        }
        sum
    }

    /// Returns the assignments with where each anchor lies.
    pub fn places<'a>(
        &'a self,
        head: &'a ImageHead<'_>,
    ) -> impl Iterator<Item = (Assignment, GroundTruth, Place)> + 'a {
        self.assignments.iter().map(|&assignment| {
            let truth = self.ground_truths[assignment.ground_truth as usize];
            let place = Place::find(head.levels, assignment.anchor as usize);
            (assignment, truth, place)
        })
    }
}

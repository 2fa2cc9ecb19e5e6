//! What training minimises: the targets of a batch, and the loss of each task with its hand-written gradient.
//!
//! `detect` drives one detection head: `assign` decides which anchors answer for which box, `ciou`, `distance` and
//! `classify` hold the three terms. Everything is computed image by image and added up in the images' order, so
//! the result does not depend on how many threads there are.

mod assign;
mod ciou;
mod classify;
pub mod detect;
mod distance;
mod lanes;

pub use assign::Assignment;
pub use ciou::{ciou, ciou_with_gradient};
pub use detect::{DetectLoss, Gains, LossOutput};
pub use distance::BIN_COUNT;

/// The ground truth of one batch: row `i` says that image `image[i]` shows a `class[i]` in `boxes[i]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Targets {
    /// Which image of the batch, from 0. The rows may come in any order.
    pub image: Vec<u32>,
    /// The class, from 0.
    pub class: Vec<u32>,
    /// Centre x, centre y, width, height as fractions of the image.
    pub boxes: Vec<[f32; 4]>,
    /// Images in the batch, with and without boxes.
    pub batch: usize,
}

impl Targets {
    /// Returns the targets of `batch` images without any box.
    pub fn empty(batch: usize) -> Self {
        Self {
            batch,
            ..Self::default()
        }
    }

    /// Adds one box.
    pub fn push(&mut self, image: u32, class: u32, bounds: [f32; 4]) {
        self.image.push(image);
        self.class.push(class);
        self.boxes.push(bounds);
    }

    /// Returns the number of boxes in the batch.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }

    /// Returns whether no image has a box.
    pub fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }
}

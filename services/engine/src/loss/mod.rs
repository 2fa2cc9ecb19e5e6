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
mod targets;

pub use assign::Assignment;
pub use ciou::{ciou, ciou_with_gradient};
pub use detect::{DetectLoss, Gains, LossOutput};
pub use distance::BIN_COUNT;
pub use targets::{InstanceMaps, Targets};

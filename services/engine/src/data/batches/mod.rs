//! Puts batches together: training batches by epoch and number, validation batches by similar shape.

#[cfg(test)]
mod tests;
mod training;
mod validation;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

pub use self::training::{TrainingBatches, TrainingOptions};
pub use self::validation::{ValidationBatches, ValidationOptions};
use super::picture::{PADDING, Picture};
use super::yolo::Strictness;
use super::{Dataset, Sample};
use crate::loss::Targets;
use crate::{Error, Result};

/// Frames have sides that are multiples of the model's largest stride.
pub const STRIDE: usize = 32;

/// Names a part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Train,
    Val,
    Test,
}

impl Split {
    /// Returns the samples of this part.
    pub fn samples<'a>(&self, dataset: &'a Dataset) -> &'a [Sample] {
        match self {
            Self::Train => &dataset.train,
            Self::Val => &dataset.val,
            Self::Test => &dataset.test,
        }
    }
}

/// What the network gets in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Pictures one after the other, RGB rows from the top.
    pub images: Vec<u8>,
    pub count: usize,
    pub height: usize,
    pub width: usize,
    pub targets: Targets,
    /// Which sample of the split each picture is.
    pub samples: Vec<u32>,
}

/// Returns the grey picture that takes an unreadable one's place: a batch keeps its size.
fn stand_in() -> Arc<Picture> {
    Arc::new(Picture::filled(STRIDE, STRIDE, [PADDING; 3]))
}

/// What happens to pictures that turn out unreadable only when they are decoded.
#[derive(Debug)]
struct Unreadable {
    strictness: Strictness,
    seen: Mutex<Seen>,
}

/// Unreadable pictures in the order in which they were met.
#[derive(Debug, Default)]
struct Seen {
    samples: HashSet<u32>,
    reasons: Vec<String>,
}

impl Unreadable {
    fn new(strictness: Strictness) -> Self {
        Self {
            strictness,
            seen: Mutex::new(Seen::default()),
        }
    }

    /// Passes a picture on; where bad ones are left out, keeps the reason and returns none.
    fn leave_out<T>(&self, sample: u32, picture: Result<T>) -> Result<Option<T>> {
        match picture {
            Err(error @ (Error::Data { .. } | Error::Io { .. }))
                if self.strictness == Strictness::LeaveOut =>
            {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.samples.insert(sample) {
                    seen.reasons.push(error.to_string());
                }
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    fn list(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.reasons.clone()
    }
}

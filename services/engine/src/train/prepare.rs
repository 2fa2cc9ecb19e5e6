//! From arguments and a data set to what a run works with: the model, and the part of the data that is used.

use std::sync::Arc;

use super::options::TrainOptions;
use crate::Result;
use crate::data::Dataset;
use crate::data::yolo::Strictness;
use crate::loss::{self, LossSettings};
use crate::models::{ModelSpec, Task};

impl TrainOptions {
    /// Returns what to do with bad images and labels.
    pub fn strictness(&self) -> Strictness {
        if self.strict {
            Strictness::Refuse
        } else {
            Strictness::LeaveOut
        }
    }

    /// Returns the model for a data set that has what its task needs.
    pub fn spec(&self, dataset: &Dataset) -> Result<ModelSpec> {
        let spec = ModelSpec::parse(&self.model, dataset.classes.len())?;
        dataset.check_task(spec.task)?;
        match &dataset.keypoints {
            Some(layout) if spec.task == Task::Pose => spec.with_keypoints(layout.shape),
            _ => Ok(spec),
        }
    }

    /// Returns what the loss takes from the arguments and the data set.
    pub fn loss_settings(&self, dataset: &Dataset) -> LossSettings {
        let layout = dataset.keypoints.as_ref();
        LossSettings {
            gains: self.gains,
            class_weights: match self.cls_pw > 0.0 {
                true => loss::class_weights(&dataset.class_counts(), self.cls_pw),
                false => Vec::new(),
            },
            keypoint_sigmas: layout.map_or_else(Vec::new, |layout| layout.sigmas.clone()),
        }
    }

    /// Returns the data set with the share of training pictures that the run uses, and its classes taken for one where
    /// the run wants that.
    pub fn prepared(&self, dataset: Arc<Dataset>) -> Arc<Dataset> {
        let count = dataset.train.len();
        let kept = (count as f64 * self.fraction).round_ties_even() as usize;
        if kept >= count && !self.single_cls {
            return dataset;
        }
        let mut prepared = Dataset::clone(&dataset);
        if self.single_cls {
            prepared = prepared.with_single_class();
        }
        prepared.train.truncate(kept.max(1));
        Arc::new(prepared)
    }
}

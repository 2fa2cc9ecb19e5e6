//! The terms of a loss by name, and the row of them that a task reports.

use std::ops::{AddAssign, Deref, Mul};

use crate::models::{Family, Task};

use super::rules::Gains;

/// Every term a dense head can have.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Terms {
    pub boxes: f64,
    pub classes: f64,
    pub distances: f64,
    pub masks: f64,
    pub semantic: f64,
    pub keypoints: f64,
    pub visibility: f64,
    pub likelihood: f64,
    pub angles: f64,
}

impl Terms {
    /// Returns the gains as factors of the terms.
    pub fn gains(gains: &Gains) -> Self {
        Self {
            boxes: gains.boxes.into(),
            classes: gains.classes.into(),
            distances: gains.distances.into(),
            masks: gains.boxes.into(),
            semantic: gains.boxes.into(),
            keypoints: gains.keypoints.into(),
            visibility: gains.visibility.into(),
            likelihood: gains.likelihood.into(),
            angles: gains.angles.into(),
        }
    }

    /// Returns the sum of all terms.
    pub fn sum(&self) -> f64 {
        self.array().iter().sum()
    }

    fn array(&self) -> [f64; 9] {
        [
            self.boxes,
            self.classes,
            self.distances,
            self.masks,
            self.semantic,
            self.keypoints,
            self.visibility,
            self.likelihood,
            self.angles,
        ]
    }

    fn of_array(values: [f64; 9]) -> Self {
        let [
            boxes,
            classes,
            distances,
            masks,
            semantic,
            keypoints,
            visibility,
            likelihood,
            angles,
        ] = values;
        Self {
            boxes,
            classes,
            distances,
            masks,
            semantic,
            keypoints,
            visibility,
            likelihood,
            angles,
        }
    }
}

impl AddAssign for Terms {
    fn add_assign(&mut self, other: Self) {
        let (a, b) = (self.array(), other.array());
        *self = Self::of_array(std::array::from_fn(|i| a[i] + b[i]));
    }
}

impl Mul for Terms {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        let (a, b) = (self.array(), other.array());
        Self::of_array(std::array::from_fn(|i| a[i] * b[i]))
    }
}

impl Mul<f64> for Terms {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self::of_array(self.array().map(|term| term * factor))
    }
}

/// The loss items of a task, with their gains, in the order in which they are reported.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Items {
    values: [f32; Items::COUNT_MAX],
    count: usize,
}

impl Items {
    /// The most items of a task.
    pub const COUNT_MAX: usize = 6;

    /// Returns the names of a task's items, as results are labelled.
    pub fn names(family: Family, task: Task) -> &'static [&'static str] {
        let is_26 = family == Family::Yolo26;
        match (task, is_26) {
            (Task::Detect, false) => &["box_loss", "cls_loss", "dfl_loss"],
            (Task::Detect, true) => &["box_loss", "cls_loss", "l1_loss"],
            (Task::Segment, false) => &["box_loss", "seg_loss", "cls_loss", "dfl_loss", "sem_loss"],
            (Task::Segment, true) => &["box_loss", "seg_loss", "cls_loss", "l1_loss", "sem_loss"],
            (Task::Pose, false) => &["box_loss", "pose_loss", "kobj_loss", "cls_loss", "dfl_loss"],
            (Task::Pose, true) => &[
                "box_loss",
                "pose_loss",
                "kobj_loss",
                "cls_loss",
                "l1_loss",
                "rle_loss",
            ],
            (Task::Obb, false) => &["box_loss", "cls_loss", "dfl_loss", "angle_loss"],
            (Task::Obb, true) => &["box_loss", "cls_loss", "l1_loss", "angle_loss"],
            (Task::Classify, _) => &["loss"],
        }
    }

    /// Returns the items in the order of their names.
    pub(super) fn of_terms(family: Family, task: Task, terms: &Terms) -> Self {
        let Terms {
            boxes,
            classes,
            distances,
            masks,
            semantic,
            keypoints,
            visibility,
            likelihood,
            angles,
        } = *terms;
        match task {
            Task::Detect => Self::new(&[boxes, classes, distances]),
            Task::Segment => Self::new(&[boxes, masks, classes, distances, semantic]),
            Task::Pose if family == Family::Yolo26 => {
                Self::new(&[boxes, keypoints, visibility, classes, distances, likelihood])
            }
            Task::Pose => Self::new(&[boxes, keypoints, visibility, classes, distances]),
            Task::Obb => Self::new(&[boxes, classes, distances, angles]),
            Task::Classify => Self::new(&[classes]),
        }
    }

    pub(super) fn new(items: &[f64]) -> Self {
        let mut values = [0.0; Self::COUNT_MAX];
        for (value, &item) in values.iter_mut().zip(items) {
            *value = item as f32;
        }
        Self {
            values,
            count: items.len(),
        }
    }
}

impl Deref for Items {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_as_many_items_as_names() {
        let terms = Terms::gains(&Gains::default());
        for family in Family::ALL {
            for task in Task::ALL {
                let items = Items::of_terms(family, task, &terms);
                assert_eq!(items.len(), Items::names(family, task).len());
            }
        }
    }
}

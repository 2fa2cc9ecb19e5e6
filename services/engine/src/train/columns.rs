//! What a model's losses and measures are called.

use serde::{Deserialize, Serialize};

use crate::loss::Items;
use crate::models::{Family, ModelSpec, Task};

/// The names of a model's losses and measures, which follow from family and task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Columns {
    pub family: Family,
    pub task: Task,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            family: Family::Yolo11,
            task: Task::Detect,
        }
    }
}

impl Columns {
    /// Returns the names for a model.
    pub fn of(spec: &ModelSpec) -> Self {
        Self {
            family: spec.family,
            task: spec.task,
        }
    }

    /// Returns the names of the loss items, in their order.
    pub fn loss_names(self) -> &'static [&'static str] {
        Items::names(self.family, self.task)
    }

    /// Returns the names of what validation measures, as `Scores::metrics` orders them.
    pub fn metric_names(self) -> Vec<String> {
        let letters: &[&str] = match self.task {
            Task::Detect | Task::Obb => &["B"],
            Task::Segment => &["B", "M"],
            Task::Pose => &["B", "P"],
            Task::Classify => return vec!["accuracy_top1".into(), "accuracy_top5".into()],
        };
        let measures = ["precision", "recall", "mAP50", "mAP50-95"];
        let names = letters
            .iter()
            .flat_map(|letter| measures.map(|name| format!("{name}({letter})")));
        names.collect()
    }
}

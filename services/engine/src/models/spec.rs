//! The name of a model: family, scale, task and class count.

use crate::{Error, Result};

/// A family of models that share one description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Yolo11,
}

/// The size within a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    N,
    S,
    M,
    L,
    X,
}

/// What a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    Detect,
}

/// Names one model: everything that fixes its graph but the input shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ModelSpec {
    pub family: Family,
    pub scale: Scale,
    pub task: Task,
    pub class_count: usize,
}

impl ModelSpec {
    /// Every name `parse` takes.
    pub const NAMES: [&'static str; 5] = ["yolo11n", "yolo11s", "yolo11m", "yolo11l", "yolo11x"];

    /// Parses a published name such as `yolo11n`.
    pub fn parse(name: &str, class_count: usize) -> Result<Self> {
        let scale = match name {
            "yolo11n" => Scale::N,
            "yolo11s" => Scale::S,
            "yolo11m" => Scale::M,
            "yolo11l" => Scale::L,
            "yolo11x" => Scale::X,
            _ => {
                return Err(Error::UnknownModel {
                    name: name.to_owned(),
                    known: format!("known models are {}", Self::NAMES.join(", ")),
                });
            }
        };
        if class_count == 0 {
            return Err(Error::Argument {
                argument: "class_count",
                rule: "a model needs at least one class".into(),
            });
        }
        Ok(Self {
            family: Family::Yolo11,
            scale,
            task: Task::Detect,
            class_count,
        })
    }

    /// Returns the published name, such as `yolo11n`.
    pub fn name(&self) -> &'static str {
        match self.scale {
            Scale::N => Self::NAMES[0],
            Scale::S => Self::NAMES[1],
            Scale::M => Self::NAMES[2],
            Scale::L => Self::NAMES[3],
            Scale::X => Self::NAMES[4],
        }
    }
}

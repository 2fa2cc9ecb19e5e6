//! The name of a model: family, scale, task, and what the data set says about its outputs.

use crate::{Error, Result};

/// A family of models that share one description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    Yolo8,
    Yolo11,
    Yolo26,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 3] = [Self::Yolo8, Self::Yolo11, Self::Yolo26];

    /// Returns the published name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yolo8 => "yolov8",
            Self::Yolo11 => "yolo11",
            Self::Yolo26 => "yolo26",
        }
    }

    /// Returns the distance bins per side of a box; with one the outputs are the distances.
    pub fn bins(self) -> usize {
        match self {
            Self::Yolo8 | Self::Yolo11 => 16,
            Self::Yolo26 => 1,
        }
    }

    /// Returns whether every branch of a dense head exists twice: one-to-many, and one-to-one, which needs no
    /// suppression of doubles.
    pub fn is_end_to_end(self) -> bool {
        self == Self::Yolo26
    }
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

impl Scale {
    /// Every scale, smallest first.
    pub const ALL: [Self; 5] = [Self::N, Self::S, Self::M, Self::L, Self::X];

    /// Returns the published letter.
    pub fn name(self) -> &'static str {
        match self {
            Self::N => "n",
            Self::S => "s",
            Self::M => "m",
            Self::L => "l",
            Self::X => "x",
        }
    }
}

/// What a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    Detect,
    Segment,
    Classify,
    Pose,
    Obb,
}

impl Task {
    /// Every task.
    pub const ALL: [Self; 5] = [
        Self::Detect,
        Self::Segment,
        Self::Classify,
        Self::Pose,
        Self::Obb,
    ];

    /// Returns the word for the task, as data sets and exported models spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Segment => "segment",
            Self::Classify => "classify",
            Self::Pose => "pose",
            Self::Obb => "obb",
        }
    }

    /// Returns what follows family and scale in a model's name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Detect => "",
            Self::Segment => "-seg",
            Self::Classify => "-cls",
            Self::Pose => "-pose",
            Self::Obb => "-obb",
        }
    }

    /// Returns the image side that published models of the task were trained with.
    pub fn image_side(self) -> usize {
        match self {
            Self::Classify => 224,
            _ => 640,
        }
    }
}

/// The keypoints of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct KeypointShape {
    pub count: usize,
    /// 2 for places only, 3 with visibility.
    pub dims: usize,
}

impl KeypointShape {
    /// The body of a person in COCO.
    pub const PERSON: Self = Self { count: 17, dims: 3 };
    /// The most keypoints an object has.
    pub const COUNT_MAX: usize = 1024;

    /// Returns the numbers of one object's keypoints.
    pub fn values(self) -> usize {
        self.count * self.dims
    }
}

/// Names one model: everything that fixes its graph but the input shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ModelSpec {
    pub family: Family,
    pub scale: Scale,
    pub task: Task,
    pub class_count: usize,
    /// Of the pose task, and of no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keypoints: Option<KeypointShape>,
    /// Channels within the score chains of a dense head, where the class count doesn't decide: a model that began as
    /// another one keeps that one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_hidden: Option<usize>,
}

impl ModelSpec {
    /// Returns every name that `parse` takes.
    pub fn names() -> impl Iterator<Item = String> {
        let families = Family::ALL.into_iter();
        let scales = families.flat_map(|family| Scale::ALL.map(|scale| (family, scale)));
        let all = scales.flat_map(|(family, scale)| Task::ALL.map(|task| (family, scale, task)));
        all.map(|(family, scale, task)| name(family, scale, task))
    }

    /// Parses a published name such as `yolo11n`, `yolo26s-pose` or `yolov8m-seg`. Pose models have the
    /// keypoints of a person, see [`ModelSpec::with_keypoints`].
    pub fn parse(name: &str, class_count: usize) -> Result<Self> {
        let unknown = || {
            Error::UnknownModel {
            name: name.to_owned(),
            known: "known models are yolov8, yolo11 and yolo26 in the sizes n, s, m, l, x with nothing, \
                    -seg, -cls, -pose or -obb after it, such as yolo11n or yolo26s-seg"
                .into(),
        }
        };
        let (base, suffix) = match name.find('-') {
            Some(place) => name.split_at(place),
            None => (name, ""),
        };
        let family = Family::ALL
            .into_iter()
            .find(|family| base.starts_with(family.name()))
            .ok_or_else(unknown)?;
        let letter = &base[family.name().len()..];
        let scale = Scale::ALL.into_iter().find(|scale| scale.name() == letter);
        let task = Task::ALL.into_iter().find(|task| task.suffix() == suffix);
        let (Some(scale), Some(task)) = (scale, task) else {
            return Err(unknown());
        };
        if class_count == 0 {
            return Err(Error::Argument {
                argument: "class_count",
                rule: "a model needs at least one class".into(),
            });
        }
        Ok(Self {
            family,
            scale,
            task,
            class_count,
            keypoints: (task == Task::Pose).then_some(KeypointShape::PERSON),
            class_hidden: None,
        })
    }

    /// Returns the pose model with the data set's keypoints.
    pub fn with_keypoints(self, keypoints: KeypointShape) -> Result<Self> {
        let rule = match keypoints {
            _ if self.task != Task::Pose => "only pose models have keypoints",
            KeypointShape { count, .. } if count == 0 || count > KeypointShape::COUNT_MAX => {
                "an object has between 1 and 1024 keypoints"
            }
            KeypointShape { dims: 2 | 3, .. } => {
                return Ok(Self {
                    keypoints: Some(keypoints),
                    ..self
                });
            }
            _ => "a keypoint has 2 or 3 numbers: x, y and perhaps visibility",
        };
        Err(Error::Argument {
            argument: "kpt_shape",
            rule: rule.into(),
        })
    }

    /// Returns the published name, such as `yolo11n-seg`.
    pub fn name(&self) -> String {
        name(self.family, self.scale, self.task)
    }

    /// Returns the channels of the task's third output, 0 where there is none: mask coefficients, keypoints,
    /// or the angle.
    pub fn extra_channels(&self) -> usize {
        match self.task {
            Task::Detect | Task::Classify => 0,
            Task::Segment => MASK_CHANNELS,
            Task::Pose => self.keypoints.map_or(0, KeypointShape::values),
            Task::Obb => 1,
        }
    }
}

/// Mask prototypes, and the coefficients of each anchor.
pub const MASK_CHANNELS: usize = 32;

fn name(family: Family, scale: Scale, task: Task) -> String {
    format!("{}{}{}", family.name(), scale.name(), task.suffix())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_back() {
        for name in ModelSpec::names() {
            assert_eq!(ModelSpec::parse(&name, 3).unwrap().name(), name);
        }
    }

    #[test]
    fn unknown_names_and_impossible_counts_are_refused() {
        for name in [
            "yolo11",
            "yolo11q",
            "yolo12n",
            "yolo11n-depth",
            "yolov11n",
            "",
        ] {
            let refused = ModelSpec::parse(name, 3);
            assert!(matches!(refused, Err(Error::UnknownModel { .. })), "{name}");
        }
        assert!(ModelSpec::parse("yolo11n", 0).is_err());
        let detect = ModelSpec::parse("yolo11n", 3).unwrap();
        assert!(detect.with_keypoints(KeypointShape::PERSON).is_err());
    }
}

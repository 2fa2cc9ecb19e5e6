//! From files to batches: reading a data set, decoding, augmenting and preparing batches ahead of the step.
//!
//! `yolo` and `labels` read a data set in the YOLO layout, `folders` one of a folder for each class; `decode` and
//! `picture` hold images; `cache` keeps decoded ones; `letterbox` and `augment` say what the network sees, `masks` and
//! `targets` what it is compared with; `batches` puts batches together and `loader` does so on threads of its own.
//! `sample` draws a data set for those who have none.
//!
//! **Invariant**: a training batch is a function of (data set, options, seed, epoch, batch number). Nothing here
//! remembers what was drawn before, so a run resumes from its position alone.

pub mod augment;
pub mod batches;
pub mod cache;
pub mod colour;
pub mod cuda;
pub mod decode;
pub mod folders;
pub mod labels;
pub mod letterbox;
pub mod loader;
pub mod masks;
pub mod picture;
pub mod sample;
pub mod targets;
pub mod yolo;

use std::path::Path;

use crate::models::{KeypointShape, Task};
use crate::{Error, Result};

pub use augment::Augmentation;
pub use batches::{Batch, Split, TrainingBatches, ValidationBatches, ValidationOptions};
pub use decode::Source;
pub use labels::{Keypoint, Label};
pub use loader::Loader;
pub use picture::Picture;

/// One image with its labels.
#[derive(Debug, Clone)]
pub struct Sample {
    /// What errors and reports call it: the path inside the data set.
    pub name: String,
    pub source: Source,
    pub labels: Vec<Label>,
}

/// The keypoints that every object of a data set has.
#[derive(Debug, Clone, PartialEq)]
pub struct KeypointLayout {
    pub shape: KeypointShape,
    /// Which keypoint takes each one's place in a mirrored picture; without it pictures are never mirrored.
    pub flip: Option<Vec<usize>>,
    /// How far each may be off, as a share of the object's size; empty where the data set doesn't say.
    pub sigmas: Vec<f64>,
    /// Empty where the data set doesn't say.
    pub names: Vec<String>,
}

impl KeypointLayout {
    /// Names keypoints about which nothing else is known.
    pub fn new(shape: KeypointShape) -> Self {
        Self {
            shape,
            flip: None,
            sigmas: Vec::new(),
            names: Vec::new(),
        }
    }
}

/// A data set ready to train on.
#[derive(Debug, Clone, Default)]
pub struct Dataset {
    /// Class names; a label's class is an index into them.
    pub classes: Vec<String>,
    /// Whether each picture shows one class as a whole (a folder for each class) rather than objects.
    pub is_classification: bool,
    pub keypoints: Option<KeypointLayout>,
    pub train: Vec<Sample>,
    pub val: Vec<Sample>,
    pub test: Vec<Sample>,
}

/// Reads the data set at `path`: a YAML file or the folder that holds one, or a folder of a folder for each class.
pub fn open(path: &Path, strictness: yolo::Strictness) -> Result<(Dataset, yolo::Report)> {
    if folders::holds_classes(path) {
        folders::open(path, strictness)
    } else {
        yolo::open(path, strictness)
    }
}

/// What the class of a data set is called whose classes count as one.
const SINGLE_CLASS: &str = "item";

impl Dataset {
    /// Refuses a data set that lacks what a task needs, naming the picture and the rule.
    pub fn check_task(&self, task: Task) -> Result<()> {
        let refuse = |place: &str, rule: String| {
            let place = place.to_owned();
            Err(Error::Data { place, rule })
        };
        if self.is_classification != (task == Task::Classify) {
            let rule = if self.is_classification {
                format!(
                    "a folder for each class says what a picture shows, not where, as {} needs",
                    task.name()
                )
            } else {
                "classify needs a folder of pictures for each class".into()
            };
            return refuse("data set", rule);
        }
        if task == Task::Pose && self.keypoints.is_none() {
            return refuse(
                "data set",
                "kpt_shape is missing: pose needs keypoints".into(),
            );
        }
        let needs_outline = matches!(task, Task::Segment | Task::Obb);
        for sample in [&self.train, &self.val, &self.test].into_iter().flatten() {
            let classes = self.classes.len();
            for label in &sample.labels {
                if label.class as usize >= classes {
                    let class = label.class;
                    let rule = format!("class {class} is not in the data set, which has {classes}");
                    return refuse(&sample.name, rule);
                }
            }
            if needs_outline {
                let boxes = sample
                    .labels
                    .iter()
                    .filter(|label| label.polygon.is_empty());
                match boxes.count() {
                    0 => {}
                    count => {
                        let (all, task) = (sample.labels.len(), task.name());
                        let rule = format!(
                            "{count} of {all} objects are boxes without an outline, which {task} needs"
                        );
                        return refuse(&sample.name, rule);
                    }
                }
            }
            if let Some(layout) = self.keypoints.as_ref().filter(|_| task == Task::Pose) {
                let count = layout.shape.count;
                if sample
                    .labels
                    .iter()
                    .any(|label| label.keypoints.len() != count)
                {
                    return refuse(&sample.name, format!("every object has {count} keypoints"));
                }
            }
        }
        Ok(())
    }

    /// Returns the data set with all classes taken for one.
    pub fn with_single_class(mut self) -> Self {
        self.classes = vec![SINGLE_CLASS.to_owned()];
        for samples in [&mut self.train, &mut self.val, &mut self.test] {
            for label in samples.iter_mut().flat_map(|sample| &mut sample.labels) {
                label.class = 0;
            }
        }
        self
    }

    /// Returns how many objects of each class there are to train on.
    pub fn class_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes.len()];
        for label in self.train.iter().flat_map(|sample| &sample.labels) {
            counts[label.class as usize] += 1;
        }
        counts
    }

    /// Returns a digest of class names, image names, image sizes and labels of the training split: two data
    /// sets of the same fingerprint give the same training batches unless an image was changed in place.
    pub fn fingerprint(&self) -> Result<String> {
        let mut hasher = blake3::Hasher::new();
        for name in &self.classes {
            hash_text(&mut hasher, name);
        }
        for sample in &self.train {
            hash_text(&mut hasher, &sample.name);
            hasher.update(&sample.source.size_bytes()?.to_le_bytes());
            for label in &sample.labels {
                hasher.update(&label.class.to_le_bytes());
                let points = label.polygon.iter().flatten();
                let points = points.chain(label.keypoints.iter().flatten());
                for value in label.bounds.iter().chain(points) {
                    hasher.update(&value.to_le_bytes());
                }
            }
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

fn hash_text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::PathBuf;

    /// Returns the folder of shared test data: `FOVEA_TEST_DATA`, or beside the repository.
    pub fn shared_folder() -> PathBuf {
        std::env::var_os("FOVEA_TEST_DATA").map_or_else(
            || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data")),
            PathBuf::from,
        )
    }

    /// Unpacks an archive of the shared test data, or says that it is absent.
    pub fn unpacked(archive: &str) -> Option<tempfile::TempDir> {
        let bytes = shared_file(archive)?;
        let folder = tempfile::tempdir().unwrap();
        let mut archive = zip::ZipArchive::new(std::io::Cursor::new(bytes)).unwrap();
        archive.extract(folder.path()).unwrap();
        Some(folder)
    }

    /// Reads a file of the shared test data, or says that it is absent.
    pub fn shared_file(path: &str) -> Option<Vec<u8>> {
        let path = shared_folder().join(path);
        match std::fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(_) => {
                println!("skipped: no {}", path.display());
                None
            }
        }
    }
}

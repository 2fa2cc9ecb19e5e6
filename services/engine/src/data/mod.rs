//! From files to batches: reading a data set, decoding, augmenting and preparing batches ahead of the step.
//!
//! `yolo` and `labels` read a data set in the YOLO layout, `folders` one of a folder for each class; `decode` and `picture` hold images; `cache` keeps decoded
//! ones; `letterbox` and `augment` say what the network sees; `batches` puts batches together and `loader` does so on
//! threads of its own. `sample` draws a data set for those who have none.
//!
//! **Invariant**: a training batch is a function of (data set, options, seed, epoch, batch number). Nothing here
//! remembers what was drawn before, so a run resumes from its position alone.

pub mod augment;
pub mod batches;
pub mod cache;
pub mod colour;
pub mod decode;
pub mod folders;
pub mod labels;
pub mod letterbox;
pub mod loader;
pub mod masks;
pub mod picture;
pub mod sample;
pub mod yolo;

use std::path::Path;

pub use augment::Augmentation;
pub use batches::{Batch, Split, TrainingBatches, ValidationBatches};
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
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeypointLayout {
    pub count: usize,
    /// Numbers of a keypoint in label files and predictions: x and y, and whether it is visible where there are 3.
    pub dims: usize,
    /// Which keypoint takes each one's place in a mirrored picture; without it pictures are never mirrored.
    pub flip: Option<Vec<usize>>,
    /// How far each may be off, as a share of the object's size; empty where the data set doesn't say.
    pub sigmas: Vec<f32>,
    /// Empty where the data set doesn't say.
    pub names: Vec<String>,
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
pub fn open(path: &Path, strictness: yolo::Strictness) -> crate::Result<(Dataset, yolo::Report)> {
    if folders::holds_classes(path) {
        folders::open(path, strictness)
    } else {
        yolo::open(path, strictness)
    }
}

impl Dataset {
    /// Returns a digest of class names, image names, image sizes and labels of the training split: two data
    /// sets of the same fingerprint give the same training batches unless an image was changed in place.
    pub fn fingerprint(&self) -> crate::Result<String> {
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

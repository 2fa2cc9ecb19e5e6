//! From files to batches: reading a data set, decoding, augmenting and preparing batches ahead of the step.
//!
//! `yolo` and `labels` read a data set in the YOLO layout; `decode` and `picture` hold images; `cache` keeps decoded
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
pub mod labels;
pub mod letterbox;
pub mod loader;
pub mod picture;
pub mod sample;
pub mod yolo;

pub use augment::Augmentation;
pub use batches::{Batch, Split, TrainingBatches, ValidationBatches};
pub use decode::Source;
pub use labels::Label;
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

/// A data set ready to train on.
#[derive(Debug, Clone, Default)]
pub struct Dataset {
    /// Class names; a label's class is an index into them.
    pub classes: Vec<String>,
    pub train: Vec<Sample>,
    pub val: Vec<Sample>,
    pub test: Vec<Sample>,
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

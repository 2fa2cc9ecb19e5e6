//! The kernel pack: a zip with the machine code of every file of kernels for every architecture, and PTX for those
//! to come.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use zip::write::SimpleFileOptions;

use super::error::GpuError;

/// What kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Architecture {
    /// As the compiler is told.
    pub name: &'static str,
    /// Compute capabilities that take this machine code; none for PTX.
    pub majors_minors: &'static [(i32, i32)],
}

/// The catalogue's architectures; the last is PTX, which the driver compiles for what is newer.
pub const ARCHITECTURES: &[Architecture] = &[
    architecture("sm_80", &[(8, 0)]),
    architecture("sm_86", &[(8, 6), (8, 7), (8, 8)]),
    architecture("sm_89", &[(8, 9)]),
    architecture("sm_90a", &[(9, 0)]),
    architecture("sm_100a", &[(10, 0)]),
    architecture("sm_103a", &[(10, 3)]),
    architecture("sm_120", &[(12, 0), (12, 1)]),
    architecture("compute_80", &[]),
];

const fn architecture(name: &'static str, majors_minors: &'static [(i32, i32)]) -> Architecture {
    Architecture {
        name,
        majors_minors,
    }
}

impl Architecture {
    /// Returns the one for a GPU.
    pub fn of(compute: (i32, i32)) -> &'static Self {
        let exact = ARCHITECTURES
            .iter()
            .find(|known| known.majors_minors.contains(&compute));
        exact.unwrap_or(&ARCHITECTURES[ARCHITECTURES.len() - 1])
    }

    /// Returns whether this is PTX.
    pub fn is_ptx(&self) -> bool {
        self.majors_minors.is_empty()
    }
}

const HASH: &str = "sources.hash";

/// Machine code by file of kernels and architecture.
#[derive(Debug, Clone, Default)]
pub struct Pack {
    images: BTreeMap<String, Vec<u8>>,
}

impl Pack {
    /// Adds an image.
    pub fn insert(&mut self, source: &str, architecture: &str, image: Vec<u8>) {
        self.images.insert(key(source, architecture), image);
    }

    /// Returns the image of a file of kernels, if it is there. PTX stands in for machine code that isn't.
    pub fn image(&self, source: &str, architecture: &'static Architecture) -> Option<&[u8]> {
        let ptx = ARCHITECTURES[ARCHITECTURES.len() - 1].name;
        let image = self.images.get(&key(source, architecture.name));
        image
            .or_else(|| self.images.get(&key(source, ptx)))
            .map(Vec::as_slice)
    }

    /// Writes the pack with the hash of what it was made of.
    pub fn write(&self, path: &Path, hash: &str) -> Result<(), GpuError> {
        let broken = |rule: String| broken(path, rule);
        let file = File::create(path).map_err(|error| broken(error.to_string()))?;
        let mut writer = zip::ZipWriter::new(file);
        let hash = (HASH.to_owned(), hash.as_bytes().to_vec());
        for (name, image) in std::iter::once((&hash.0, &hash.1)).chain(&self.images) {
            writer
                .start_file(name.as_str(), SimpleFileOptions::default())
                .map_err(|error| broken(error.to_string()))?;
            writer
                .write_all(image)
                .map_err(|error| broken(error.to_string()))?;
        }
        writer.finish().map_err(|error| broken(error.to_string()))?;
        Ok(())
    }

    /// Reads a pack, which must have been made of the kernels of this build.
    pub fn read(path: &Path, hash: &str) -> Result<Self, GpuError> {
        let Ok(file) = File::open(path) else {
            return Err(GpuError::NoPack {
                place: path.display().to_string(),
            });
        };
        let broken = |error: &dyn std::fmt::Display| broken(path, error.to_string());
        let mut archive = zip::ZipArchive::new(file).map_err(|error| broken(&error))?;
        let mut pack = Self::default();
        let mut found = None;
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).map_err(|error| broken(&error))?;
            let mut image = Vec::new();
            entry
                .read_to_end(&mut image)
                .map_err(|error| broken(&error))?;
            let name = entry.name().map_err(|error| broken(&error))?.into_owned();
            if name == HASH {
                found = Some(image);
            } else {
                pack.images.insert(name, image);
            }
        }
        match found.as_deref() {
            Some(found) if found == hash.as_bytes() => Ok(pack),
            _ => Err(broken(&"made of other kernels than this program's")),
        }
    }
}

fn key(source: &str, architecture: &str) -> String {
    format!("{source}/{architecture}")
}

fn broken(path: &Path, rule: String) -> GpuError {
    GpuError::PackBroken {
        place: path.display().to_string(),
        rule,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_gets_its_own_code_else_ptx() {
        assert_eq!(Architecture::of((9, 0)).name, "sm_90a");
        assert_eq!(Architecture::of((12, 1)).name, "sm_120");
        assert!(Architecture::of((11, 0)).is_ptx());
    }

    #[test]
    fn a_pack_is_read_as_written_unless_it_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.pack");
        let mut pack = Pack::default();
        pack.insert("norm", "sm_80", vec![1, 2]);
        pack.insert("norm", "compute_80", vec![3]);
        pack.write(&path, "abc").unwrap();
        let read = Pack::read(&path, "abc").unwrap();
        assert_eq!(
            read.image("norm", Architecture::of((8, 0))),
            Some(&[1, 2][..])
        );
        assert_eq!(read.image("norm", Architecture::of((9, 0))), Some(&[3][..]));
        assert_eq!(read.image("conv", Architecture::of((9, 0))), None);
        let refused = Pack::read(&path, "abd").unwrap_err();
        assert!(refused.to_string().contains("other kernels"), "{refused}");
        let absent = Pack::read(&folder.path().join("none"), "abc").unwrap_err();
        assert!(matches!(absent, GpuError::NoPack { .. }));
    }
}

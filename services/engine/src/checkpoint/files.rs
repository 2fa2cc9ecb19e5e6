//! Checkpoints on disk: written whole or not at all, with the one before as a spare.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Checkpoint;
use crate::{Error, Result};

/// Writes a file so that a crash leaves the old content or the new, never a part.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let place = path.display().to_string();
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let temporary = with_suffix(path, ".tmp");
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The new name must survive a power cut too.
        File::open(folder)?.sync_all()
    };
    write().map_err(Error::io(place))
}

/// Writes a checkpoint and keeps the one that was there as the spare.
pub fn write_with_spare(path: &Path, bytes: &[u8]) -> Result<()> {
    if path.exists() {
        fs::rename(path, spare(path)).map_err(Error::io(path.display().to_string()))?;
    }
    write_atomically(path, bytes)
}

/// Reads a checkpoint, or the spare when that one can't be used; then the second value says why.
pub fn read_with_spare(path: &Path) -> Result<(Checkpoint, Option<String>)> {
    let first = match read(path) {
        Ok(checkpoint) => return Ok((checkpoint, None)),
        Err(error) => error,
    };
    let spare = spare(path);
    match read(&spare) {
        Ok(checkpoint) => {
            let note = format!("{first}; going on from the one before, {}", spare.display());
            Ok((checkpoint, Some(note)))
        }
        Err(_) => Err(first),
    }
}

/// Reads a checkpoint file.
pub fn read(path: &Path) -> Result<Checkpoint> {
    let place = path.display().to_string();
    let bytes = fs::read(path).map_err(Error::io(&place))?;
    Checkpoint::from_bytes(&bytes, &place)
}

/// Returns where the spare of a checkpoint lies.
pub fn spare(path: &Path) -> PathBuf {
    with_suffix(path, ".previous")
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn a_damaged_last_checkpoint_gives_way_to_the_one_before_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights/last.fovea");
        let mut checkpoint = example();
        write_with_spare(&path, &checkpoint.to_bytes()).unwrap();
        assert!(!spare(&path).exists());
        checkpoint.header.position.epoch = 4;
        let bytes = checkpoint.to_bytes();
        write_with_spare(&path, &bytes).unwrap();
        let (read, note) = read_with_spare(&path).unwrap();
        assert_eq!((read.header.position.epoch, note), (4, None));
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        let (read, note) = read_with_spare(&path).unwrap();
        assert_eq!(read.header.position.epoch, 3);
        assert!(note.unwrap().contains("truncated"));
        fs::remove_file(&path).unwrap();
        assert_eq!(read_with_spare(&path).unwrap().0.header.position.epoch, 3);
    }

    #[test]
    fn no_temporary_file_stays_and_what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.fovea");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = read(&folder.path().join("none.fovea")).unwrap_err();
        assert!(error.to_string().contains("none.fovea"));
    }
}

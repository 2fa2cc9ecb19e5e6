//! Checkpoints on disk: written whole or not at all, with the one before as a spare.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::Checkpoint;
use crate::{Error, Result};

/// Writes a file so that a crash leaves the old content or the new, never a part.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || rename(&write_aside(path, bytes)?, path);
    write().map_err(Error::io(path.display().to_string()))
}

/// Writes a checkpoint and keeps the one that was there as the spare. At any moment one of the two is whole.
pub fn write_with_spare(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let written = write_aside(path, bytes)?;
        if path.exists() {
            rename(path, &spare(path))?;
        }
        rename(&written, path)
    };
    write().map_err(Error::io(path.display().to_string()))
}

/// Writes bytes beside a file, safe from a power cut, and returns where.
fn write_aside(path: &Path, bytes: &[u8]) -> std::io::Result<PathBuf> {
    let aside = with_suffix(path, ".tmp");
    fs::create_dir_all(folder_of(path))?;
    let mut file = File::create(&aside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(aside)
}

fn rename(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::rename(from, to)?;
    // The new name must survive a power cut too.
    File::open(folder_of(to))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent();
    folder
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Reads a checkpoint, or the spare when that one can't be used; then the second value says why, and the unusable one
/// is set aside, so that it never becomes the spare of the next.
pub fn read_with_spare(path: &Path) -> Result<(Checkpoint, Option<String>)> {
    let first = match read(path) {
        Ok(checkpoint) => return Ok((checkpoint, None)),
        Err(error) => error,
    };
    let spare = spare(path);
    match read(&spare) {
        Ok(checkpoint) => {
            if path.exists() {
                rename(path, &with_suffix(path, ".damaged"))
                    .map_err(Error::io(path.display().to_string()))?;
            }
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
        let note = note.unwrap();
        assert!(note.contains("last.fovea: truncated"), "{note}");
        assert!(note.contains("going on from the one before"), "{note}");
        // What the next write keeps is the one it went on from.
        write_with_spare(&path, &bytes).unwrap();
        assert_eq!(super::read(&spare(&path)).unwrap().header.position.epoch, 3);
        fs::remove_file(&path).unwrap();
        assert_eq!(read_with_spare(&path).unwrap().0.header.position.epoch, 3);
    }

    #[test]
    fn without_a_usable_checkpoint_the_first_error_stands() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("last.fovea");
        let bytes = example().to_bytes();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        fs::write(spare(&path), b"nonsense").unwrap();
        let error = read_with_spare(&path).err().unwrap().to_string();
        assert!(error.contains("last.fovea: truncated"), "{error}");
        assert!(
            path.exists(),
            "nothing is moved when there is nothing to go on from"
        );
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

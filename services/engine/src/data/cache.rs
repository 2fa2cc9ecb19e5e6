//! Decoded pictures of one split, brought to size once and kept: in memory, or as raw files in a folder, up to a limit.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::Sample;
use super::decode::{Source, decode};
use super::letterbox::loaded_size;
use super::picture::Picture;
use crate::{Error, Result};

/// Memory for decoded pictures where the caller names no other limit.
pub const CACHE_BYTES_DEFAULT: u64 = 2 << 30;
/// The most that one split writes to a folder of decoded pictures.
pub const FOLDER_BYTES_MAX: u64 = 1 << 40;

/// Where decoded pictures are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// In memory.
    #[default]
    #[serde(alias = "true", alias = "True")]
    Ram,
    /// In a folder, for the next run too.
    Disk,
    /// Nowhere: each is decoded every time.
    #[serde(alias = "false", alias = "False")]
    None,
}

/// Where decoded pictures are kept, and how much may be.
#[derive(Debug, Clone, PartialEq)]
pub enum CacheOptions {
    Ram { limit_bytes: u64 },
    Disk { folder: PathBuf },
    None,
}

/// To which size pictures are brought when they are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadedSize {
    /// The long side becomes so many pixels.
    LongSide(usize),
    /// As it is in the file.
    Whole,
}

/// The decoded pictures of a split.
#[derive(Debug)]
pub struct PictureCache {
    size: LoadedSize,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Memory {
        limit_bytes: u64,
        used_bytes: AtomicU64,
        slots: Vec<OnceLock<Arc<Picture>>>,
    },
    Folder(Folder),
    Nothing,
}

impl PictureCache {
    /// Makes an empty cache for `count` pictures.
    pub fn new(count: usize, size: LoadedSize, options: &CacheOptions) -> Self {
        let store = match options {
            CacheOptions::Ram { limit_bytes } => Store::Memory {
                limit_bytes: *limit_bytes,
                used_bytes: AtomicU64::new(0),
                slots: (0..count).map(|_| OnceLock::new()).collect(),
            },
            CacheOptions::Disk { folder } => Store::Folder(Folder::new(folder)),
            CacheOptions::None => Store::Nothing,
        };
        Self { size, store }
    }

    /// Returns picture `index`, which is `sample`'s, decoding it unless it is held.
    pub fn get(&self, index: usize, sample: &Sample) -> Result<Arc<Picture>> {
        match &self.store {
            Store::Memory { slots, .. } => {
                if let Some(picture) = slots[index].get() {
                    return Ok(Arc::clone(picture));
                }
                let picture = Arc::new(self.load(sample)?);
                self.keep_in_memory(index, &picture);
                Ok(picture)
            }
            Store::Folder(folder) => {
                let path = folder.path_of(sample, self.size)?;
                if let Some(picture) = read_raw(&path) {
                    return Ok(Arc::new(picture));
                }
                let picture = self.load(sample)?;
                folder.write(&path, &picture);
                Ok(Arc::new(picture))
            }
            Store::Nothing => Ok(Arc::new(self.load(sample)?)),
        }
    }

    /// Returns the bytes held in memory.
    pub fn used_bytes(&self) -> u64 {
        match &self.store {
            Store::Memory { used_bytes, .. } => used_bytes.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// Returns why nothing is written to the folder any more, if that is so.
    pub fn trouble(&self) -> Option<&str> {
        match &self.store {
            Store::Folder(folder) => folder.trouble.get().map(String::as_str),
            _ => None,
        }
    }

    fn load(&self, sample: &Sample) -> Result<Picture> {
        let picture = decode(&sample.name, &sample.source.read()?)?;
        Ok(match self.size {
            LoadedSize::Whole => picture,
            LoadedSize::LongSide(side) => {
                let (width, height) = loaded_size((picture.width(), picture.height()), side);
                if (width, height) == (picture.width(), picture.height()) {
                    picture
                } else {
                    picture.resized(width, height)
                }
            }
        })
    }

    fn keep_in_memory(&self, index: usize, picture: &Arc<Picture>) {
        let Store::Memory {
            limit_bytes,
            used_bytes,
            slots,
        } = &self.store
        else {
            return;
        };
        let bytes = picture.pixels().len() as u64;
        let reserved = used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            Some(used + bytes).filter(|&total| total <= *limit_bytes)
        });
        // Another thread may have decoded the same picture meanwhile; its copy stays.
        if reserved.is_ok() && slots[index].set(Arc::clone(picture)).is_err() {
            used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// A folder of raw pictures. A file is named by what it was made from, so it may be shared and outlive the run.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    written_bytes: AtomicU64,
    /// Tells the temporary files of threads apart.
    next_file: AtomicU64,
    is_full: AtomicBool,
    trouble: OnceLock<String>,
}

/// Begins every raw file; the last character is the version.
const MAGIC: [u8; 8] = *b"fovpix\x00\x01";
/// Magic, width, height, checksum.
const HEADER_BYTES: usize = 8 + 4 + 4 + blake3::OUT_LEN;

impl Folder {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            written_bytes: AtomicU64::new(0),
            next_file: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            trouble: OnceLock::new(),
        }
    }

    /// Names the file of a sample by its source and size.
    fn path_of(&self, sample: &Sample, size: LoadedSize) -> Result<PathBuf> {
        let mut hasher = blake3::Hasher::new();
        match &sample.source {
            Source::Bytes(bytes) => {
                hasher.update(bytes);
            }
            Source::File(path) => {
                let place = || path.display().to_string();
                let metadata = fs::metadata(path).map_err(|error| Error::io(place())(error))?;
                let changed = metadata.modified().ok();
                let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                hasher.update(place().as_bytes());
                hasher.update(&metadata.len().to_le_bytes());
                hasher.update(&changed.map_or(0, |time| time.as_nanos()).to_le_bytes());
            }
        }
        let side = match size {
            LoadedSize::LongSide(side) => side as u64,
            LoadedSize::Whole => 0,
        };
        hasher.update(&side.to_le_bytes());
        let name = hasher.finalize().to_hex();
        // Folders of hundreds of thousands of files are slow to list.
        Ok(self.path.join(&name[..2]).join(format!("{name}.rgb")))
    }

    /// Writes a picture whole or not at all. What can't be written is only decoded again.
    fn write(&self, path: &Path, picture: &Picture) {
        if self.is_full.load(Ordering::Relaxed) {
            return;
        }
        let bytes = (HEADER_BYTES + picture.pixels().len()) as u64;
        let rule = if self.written_bytes.fetch_add(bytes, Ordering::Relaxed) > FOLDER_BYTES_MAX {
            format!("more than {FOLDER_BYTES_MAX} bytes")
        } else {
            match self.try_write(path, picture) {
                Ok(()) => return,
                Err(error) => error.to_string(),
            }
        };
        self.is_full.store(true, Ordering::Relaxed);
        let place = self.path.display();
        // Only the first trouble is told.
        let _ = self.trouble.set(format!(
            "{place}: {rule}; pictures not kept there yet are decoded each time"
        ));
    }

    fn try_write(&self, path: &Path, picture: &Picture) -> std::io::Result<()> {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let temporary = path.with_extension(format!("{process}-{number}.tmp"));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&(picture.width() as u32).to_le_bytes());
        header.extend_from_slice(&(picture.height() as u32).to_le_bytes());
        header.extend_from_slice(blake3::hash(picture.pixels()).as_bytes());
        let mut file = fs::File::create(&temporary)?;
        let written = file
            .write_all(&header)
            .and_then(|()| file.write_all(picture.pixels()))
            .and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // Whatever is left of it is in nobody's way.
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

/// Reads a raw picture; none when the file isn't there, isn't whole, or isn't what was written.
fn read_raw(path: &Path) -> Option<Picture> {
    let bytes = fs::read(path).ok()?;
    let (header, pixels) = bytes.split_at_checked(HEADER_BYTES)?;
    let number = |start: usize| -> Option<usize> {
        let bytes = header[start..start + 4].try_into().ok()?;
        Some(u32::from_le_bytes(bytes) as usize)
    };
    let (width, height) = (number(8)?, number(12)?);
    let is_whole = header[..8] == MAGIC
        && width.checked_mul(height)?.checked_mul(3)? == pixels.len()
        && blake3::hash(pixels).as_bytes() == &header[16..];
    is_whole.then(|| Picture::new(width, height, pixels.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: LoadedSize = LoadedSize::LongSide(32);

    fn sample() -> Sample {
        let mut file = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_fn(64, 32, |x, y| image::Rgb([x as u8, y as u8, 9]))
            .write_to(&mut file, image::ImageFormat::Png)
            .unwrap();
        Sample {
            name: "a.png".into(),
            source: Source::Bytes(file.into_inner().into()),
            labels: Vec::new(),
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            for file in fs::read_dir(entry.unwrap().path()).unwrap() {
                files.push(file.unwrap().path());
            }
        }
        files
    }

    #[test]
    fn memory_holds_what_fits_and_gives_the_same_picture_either_way() {
        let sample = sample();
        let one_picture = 32 * 16 * 3;
        let options = CacheOptions::Ram {
            limit_bytes: one_picture,
        };
        let cache = PictureCache::new(2, SIDE, &options);
        let first = cache.get(0, &sample).unwrap();
        assert_eq!((first.width(), first.height()), (32, 16));
        assert!(Arc::ptr_eq(&first, &cache.get(0, &sample).unwrap()));
        let second = cache.get(1, &sample).unwrap();
        assert!(
            !Arc::ptr_eq(&second, &cache.get(1, &sample).unwrap()),
            "no room for a second"
        );
        assert_eq!(first, second);
        assert_eq!(cache.used_bytes(), one_picture);
        let whole = PictureCache::new(1, LoadedSize::Whole, &CacheOptions::None);
        assert_eq!(whole.get(0, &sample).unwrap().width(), 64);
    }

    #[test]
    fn a_folder_serves_the_next_run_and_what_is_damaged_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let options = CacheOptions::Disk {
            folder: folder.path().to_owned(),
        };
        let mut sample = sample();
        let wanted = PictureCache::new(1, SIDE, &options)
            .get(0, &sample)
            .unwrap();
        let [file] = &files(folder.path())[..] else {
            panic!("one file");
        };
        let whole = fs::read(file).unwrap();
        let mut flipped = whole.clone();
        flipped[100] ^= 1;
        let truncated = whole[..whole.len() - 1].to_vec();
        for damaged in [flipped, truncated, Vec::new()] {
            fs::write(file, damaged).unwrap();
            let cache = PictureCache::new(1, SIDE, &options);
            assert_eq!(cache.get(0, &sample).unwrap(), wanted);
            assert_eq!(fs::read(file).unwrap(), whole);
        }
        // What is read back is the file's content, not the source's.
        let other = Picture::filled(32, 16, [1, 2, 3]);
        Folder::new(folder.path()).try_write(file, &other).unwrap();
        let cache = PictureCache::new(1, SIDE, &options);
        assert_eq!(*cache.get(0, &sample).unwrap(), other);
        // Another source or size is another file.
        cache.get(0, &sample).unwrap();
        PictureCache::new(1, LoadedSize::Whole, &options)
            .get(0, &sample)
            .unwrap();
        let path = folder.path().join("a.png");
        fs::write(&path, sample.source.read().unwrap()).unwrap();
        sample.source = Source::File(path);
        assert_eq!(cache.get(0, &sample).unwrap(), wanted);
        fs::remove_file(folder.path().join("a.png")).unwrap();
        assert_eq!(files(folder.path()).len(), 3);
    }

    #[test]
    fn a_folder_that_cannot_be_written_costs_speed_only() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        fs::write(&blocked, b"").unwrap();
        let options = CacheOptions::Disk { folder: blocked };
        let cache = PictureCache::new(1, SIDE, &options);
        assert_eq!(cache.trouble(), None);
        cache.get(0, &sample()).unwrap();
        assert!(cache.trouble().unwrap().contains("decoded each time"));
        cache.get(0, &sample()).unwrap();
    }
}

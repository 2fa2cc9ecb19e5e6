//! Decoded pictures of one split, resized once to the training size and kept in memory up to a limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Sample;
use super::decode::decode;
use super::letterbox::loaded_size;
use super::picture::Picture;
use crate::Result;

/// Memory for decoded pictures where the caller names no other limit.
pub const CACHE_BYTES_DEFAULT: u64 = 2 << 30;

/// The decoded pictures of a split.
#[derive(Debug)]
pub struct PictureCache {
    size: usize,
    limit_bytes: u64,
    used_bytes: AtomicU64,
    slots: Vec<OnceLock<Arc<Picture>>>,
}

impl PictureCache {
    /// Makes an empty cache for `count` pictures whose long side becomes `size`.
    pub fn new(count: usize, size: usize, limit_bytes: u64) -> Self {
        Self {
            size,
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            slots: (0..count).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns picture `index`, which is `sample`'s, decoding it unless it is held.
    pub fn get(&self, index: usize, sample: &Sample) -> Result<Arc<Picture>> {
        if let Some(picture) = self.slots[index].get() {
            return Ok(Arc::clone(picture));
        }
        let picture = decode(&sample.name, &sample.source.read()?)?;
        let (width, height) = loaded_size((picture.width(), picture.height()), self.size);
        let picture = if (width, height) == (picture.width(), picture.height()) {
            Arc::new(picture)
        } else {
            Arc::new(picture.resized(width, height))
        };
        self.keep(index, &picture);
        Ok(picture)
    }

    /// Returns the bytes held.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn keep(&self, index: usize, picture: &Arc<Picture>) {
        let bytes = picture.pixels().len() as u64;
        let reserved = self
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                Some(used + bytes).filter(|&total| total <= self.limit_bytes)
            });
        // Another thread may have decoded the same picture meanwhile; its copy stays.
        if reserved.is_ok() && self.slots[index].set(Arc::clone(picture)).is_err() {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::Source;
    use super::*;

    #[test]
    fn the_cache_holds_what_fits_and_gives_the_same_picture_either_way() {
        let mut file = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_fn(64, 32, |x, y| image::Rgb([x as u8, y as u8, 9]))
            .write_to(&mut file, image::ImageFormat::Png)
            .unwrap();
        let sample = Sample {
            name: "a.png".into(),
            source: Source::Bytes(file.into_inner().into()),
            labels: Vec::new(),
        };
        let one_picture = 32 * 16 * 3;
        let cache = PictureCache::new(2, 32, one_picture);
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
    }
}

//! Training batches: which samples, and what training makes of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Batch, STRIDE, Unreadable, stand_in};
use crate::Result;
use crate::data::augment::{self, Augmentation, Scene, Warp, classify};
use crate::data::cache::{CacheOptions, LoadedSize, PictureCache};
use crate::data::picture::Picture;
use crate::data::yolo::Strictness;
use crate::data::{Dataset, Label, targets};
use crate::models::Task;
use crate::random::{Permutation, Philox, Use};

/// How training batches are made.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingOptions {
    pub task: Task,
    pub seed: u64,
    /// Side of the pictures.
    pub size: usize,
    /// How far the side may differ from batch to batch, as a fraction of it.
    pub multi_scale: f64,
    pub batch: usize,
    pub augmentation: Augmentation,
    /// From this epoch on pictures are shown whole and alone.
    pub close_mosaic_at: u32,
    pub strictness: Strictness,
    pub cache: CacheOptions,
}

/// Where the random numbers of a picture's making come from.
struct Streams {
    mosaic: Use,
    affine: Use,
}

/// For the sample itself, the one blended in and the one laid over.
const OWN: Streams = Streams {
    mosaic: Use::Mosaic,
    affine: Use::Affine,
};
const BLENDED: Streams = Streams {
    mosaic: Use::MixMosaic,
    affine: Use::MixAffine,
};
const LAID_OVER: Streams = Streams {
    mosaic: Use::CutMosaic,
    affine: Use::CutAffine,
};

/// Unreadable pictures to classify are replaced by the next readable one, at most so far on.
const REPLACEMENTS_MAX: usize = 64;

/// The training batches of a data set.
#[derive(Debug)]
pub struct TrainingBatches {
    dataset: Arc<Dataset>,
    options: TrainingOptions,
    close_mosaic_at: AtomicU32,
    cache: PictureCache,
    unreadable: Unreadable,
}

impl TrainingBatches {
    /// Prepares to make batches; decodes nothing yet.
    pub fn new(dataset: Arc<Dataset>, options: TrainingOptions) -> Self {
        let count = dataset.train.len();
        // A part of a picture to classify is cut out of the whole of it.
        let loaded = match options.task {
            Task::Classify => LoadedSize::Whole,
            _ => LoadedSize::LongSide(options.size),
        };
        Self {
            cache: PictureCache::new(count, loaded, &options.cache),
            unreadable: Unreadable::new(options.strictness),
            close_mosaic_at: AtomicU32::new(options.close_mosaic_at),
            dataset,
            options,
        }
    }

    /// Returns the number of batches of an epoch; the last one may be short.
    pub fn per_epoch(&self) -> usize {
        self.dataset.train.len().div_ceil(self.options.batch)
    }

    /// Returns how many pictures batch `number` of an epoch has.
    pub fn size_of(&self, number: usize) -> usize {
        let start = number * self.options.batch;
        self.options.batch.min(self.dataset.train.len() - start)
    }

    /// Says anew from which epoch on pictures are shown whole and alone, for batches not made yet.
    pub fn close_mosaic_at(&self, epoch: u32) {
        self.close_mosaic_at.store(epoch, Ordering::Release);
    }

    /// Returns the sides that pictures may have.
    pub fn sides(&self) -> std::ops::RangeInclusive<usize> {
        let size = self.options.size as f64;
        let reach = self.options.multi_scale;
        if reach == 0.0 {
            return self.options.size..=self.options.size;
        }
        let step = STRIDE as f64;
        let low = (size * (1.0 - reach) / step).ceil().max(1.0) as usize;
        let high = ((size * (1.0 + reach) + step) / step).ceil() as usize - 1;
        low * STRIDE..=high.max(low) * STRIDE
    }

    /// Returns the side of the pictures of a batch.
    pub fn side_of(&self, epoch: u32, number: usize) -> usize {
        let sides = self.sides();
        let steps = (sides.end() - sides.start()) / STRIDE;
        if steps == 0 {
            return *sides.start();
        }
        let mut stream = Philox::new(self.options.seed, epoch, number as u32, Use::Scale);
        sides.start() + STRIDE * stream.below(steps as u32 + 1) as usize
    }

    /// Makes batch `number` of `epoch`.
    pub fn batch(&self, epoch: u32, number: usize) -> Result<Batch> {
        let TrainingOptions {
            task, seed, batch, ..
        } = self.options;
        let order = Permutation::new(seed, epoch, self.dataset.train.len() as u32);
        let side = self.side_of(epoch, number);
        let count = self.size_of(number);
        let mut images = Vec::with_capacity(count * side * side * 3);
        let mut targets = targets::empty(task, count, (side, side));
        let mut samples = Vec::with_capacity(count);
        for image in 0..count {
            let sample = order.at((number * batch + image) as u32);
            let scene = match task {
                Task::Classify => self.classified(epoch, sample)?,
                _ => self.scene(epoch, sample)?,
            };
            let scene = scene.resized(side);
            images.extend_from_slice(scene.picture.pixels());
            targets::push(&mut targets, task, image, &scene.objects, (side, side));
            samples.push(sample);
        }
        Ok(Batch {
            images,
            count,
            height: side,
            width: side,
            targets,
            samples,
        })
    }

    /// Returns what training sees of one sample in one epoch.
    pub fn scene(&self, epoch: u32, sample: u32) -> Result<Scene> {
        let seed = self.options.seed;
        let is_closed = epoch >= self.close_mosaic_at.load(Ordering::Acquire);
        let options = match is_closed {
            true => self.options.augmentation.closed(),
            false => self.options.augmentation,
        };
        let count = self.dataset.train.len() as u32;
        let key = (epoch, sample);
        let mut scene = self.composed(key, sample, &options, &OWN)?;
        let mut stream = Philox::new(seed, epoch, sample, Use::Mix);
        if stream.chance(options.mixup) {
            let other = self.composed(key, stream.below(count), &options, &BLENDED)?;
            augment::mixup(&mut scene, other, &mut stream);
        }
        let mut stream = Philox::new(seed, epoch, sample, Use::Cut);
        if stream.chance(options.cutmix) {
            let other = self.composed(key, stream.below(count), &options, &LAID_OVER)?;
            augment::cutmix(&mut scene, &other, &mut stream);
        }
        let keypoints = self.dataset.keypoints.as_ref();
        let keypoints = keypoints.filter(|_| self.options.task == Task::Pose);
        augment::recolour_and_flip(&mut scene, &options, seed, epoch, sample, keypoints);
        Ok(scene)
    }

    /// Returns the pictures that could not be read so far: name and reason.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.list()
    }

    /// Returns the memory the decoded pictures take.
    pub fn cache_used_bytes(&self) -> u64 {
        self.cache.used_bytes()
    }

    /// Returns why decoded pictures are not kept in their folder any more, if that is so.
    pub fn cache_trouble(&self) -> Option<&str> {
        self.cache.trouble()
    }

    /// Puts sample `index` into a mosaic or leaves it alone, pastes copies and warps the whole to the training size;
    /// drawn for `(epoch, sample)`.
    fn composed(
        &self,
        (epoch, sample): (u32, u32),
        index: u32,
        options: &Augmentation,
        streams: &Streams,
    ) -> Result<Scene> {
        let TrainingOptions { seed, size, .. } = self.options;
        let mut stream = Philox::new(seed, epoch, sample, streams.mosaic);
        let own = self.part(index)?;
        let mut scene = if stream.chance(options.mosaic) {
            let centre = augment::mosaic_centre(&mut stream, size);
            let count = self.dataset.train.len() as u32;
            let partners: [u32; 3] = std::array::from_fn(|_| stream.below(count));
            let others = [
                self.part(partners[0])?,
                self.part(partners[1])?,
                self.part(partners[2])?,
            ];
            let [one, two, three] = &others;
            let parts = [&own, one, two, three].map(|(picture, labels)| (&**picture, *labels));
            augment::mosaic(parts, centre, size)
        } else {
            Scene::new(Picture::clone(&own.0), own.1)
        };
        augment::copy_paste(&mut scene, options.copy_paste);
        let mut stream = Philox::new(seed, epoch, sample, streams.affine);
        let source = (scene.picture.width(), scene.picture.height());
        let warp = Warp::draw(&mut stream, options, source, size);
        Ok(warp.apply(&scene, size))
    }

    /// Returns what training sees of a picture to classify, its class as the only object.
    fn classified(&self, epoch: u32, sample: u32) -> Result<Scene> {
        let TrainingOptions {
            seed,
            size,
            augmentation,
            ..
        } = &self.options;
        let count = self.dataset.train.len();
        let mut read = None;
        for step in 0..REPLACEMENTS_MAX.min(count) {
            let index = (sample as usize + step) % count;
            let picture = self.cache.get(index, &self.dataset.train[index]);
            if let Some(picture) = self.unreadable.leave_out(index as u32, picture)? {
                read = Some((picture, index));
                break;
            }
        }
        let (picture, index) = read.unwrap_or_else(|| (stand_in(), sample as usize));
        let view = classify::training_view(&picture, augmentation, *size, (*seed, epoch, sample));
        Ok(Scene::new(view, &self.dataset.train[index].labels))
    }

    /// Returns a sample's picture and labels; an unreadable one is left out with its labels.
    fn part(&self, index: u32) -> Result<(Arc<Picture>, &[Label])> {
        let sample = &self.dataset.train[index as usize];
        let picture = self.cache.get(index as usize, sample);
        Ok(match self.unreadable.leave_out(index, picture)? {
            Some(picture) => (picture, &sample.labels),
            None => (stand_in(), &[]),
        })
    }
}

//! Validation batches: pictures of similar shape together, each batch in a frame that fits.

use std::sync::Arc;

use super::{Batch, STRIDE, Split, Unreadable, stand_in};
use crate::Result;
use crate::data::augment::{Object, classify};
use crate::data::cache::{CacheOptions, LoadedSize, PictureCache};
use crate::data::letterbox::{Letterbox, loaded_size};
use crate::data::yolo::Strictness;
use crate::data::{Dataset, decode, targets};
use crate::models::Task;

/// Cells of extra border round validation pictures, as the reference adds.
const VALIDATION_PADDING: f64 = 0.5;

/// How validation batches are made.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationOptions {
    pub task: Task,
    pub split: Split,
    /// The longer side with which pictures are shown; the only one of pictures to classify.
    pub size: usize,
    pub batch: usize,
    pub strictness: Strictness,
    pub cache: CacheOptions,
}

/// The validation batches of one split: pictures of similar shape together, each batch in a frame that fits.
#[derive(Debug)]
pub struct ValidationBatches {
    dataset: Arc<Dataset>,
    task: Task,
    split: Split,
    size: usize,
    frames: Vec<Frame>,
    cache: PictureCache,
    unreadable: Unreadable,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frame {
    pub samples: Vec<u32>,
    pub width: usize,
    pub height: usize,
}

impl ValidationBatches {
    /// Reads the size of every picture and plans the batches.
    pub fn new(dataset: Arc<Dataset>, options: ValidationOptions) -> Result<Self> {
        let ValidationOptions {
            task,
            split,
            size,
            batch,
            strictness,
            cache,
        } = options;
        let samples = split.samples(&dataset);
        let unreadable = Unreadable::new(strictness);
        let mut sizes = Vec::with_capacity(samples.len());
        for (index, sample) in samples.iter().enumerate() {
            let size = decode::dimensions(&sample.name, &sample.source);
            let size = unreadable.leave_out(index as u32, size)?;
            sizes.push(size.unwrap_or((STRIDE, STRIDE)));
        }
        let (frames, loaded) = match task {
            Task::Classify => (square_frames(sizes.len(), size, batch), LoadedSize::Whole),
            _ => (plan_frames(&sizes, size, batch), LoadedSize::LongSide(size)),
        };
        Ok(Self {
            task,
            split,
            size,
            frames,
            cache: PictureCache::new(samples.len(), loaded, &cache),
            unreadable,
            dataset,
        })
    }

    /// Returns the number of batches.
    pub fn count(&self) -> usize {
        self.frames.len()
    }

    /// Returns the shape of batch `number`: pictures, height, width.
    pub fn shape(&self, number: usize) -> (usize, usize, usize) {
        let frame = &self.frames[number];
        (frame.samples.len(), frame.height, frame.width)
    }

    /// Makes batch `number`.
    pub fn batch(&self, number: usize) -> Result<Batch> {
        let frame = &self.frames[number];
        let count = frame.samples.len();
        let image_bytes = frame.width * frame.height * 3;
        let mut images = vec![0; count * image_bytes];
        let frame_size = (frame.width, frame.height);
        let mut targets = targets::empty(self.task, count, frame_size);
        for (image, (&index, target)) in frame
            .samples
            .iter()
            .zip(images.chunks_exact_mut(image_bytes))
            .enumerate()
        {
            let sample = &self.split.samples(&self.dataset)[index as usize];
            let picture = self.cache.get(index as usize, sample);
            let (picture, labels) = match self.unreadable.leave_out(index, picture)? {
                Some(picture) => (picture, &sample.labels[..]),
                None => (stand_in(), &[][..]),
            };
            let objects = if self.task == Task::Classify {
                let view = classify::validation_view(&picture, self.size);
                target.copy_from_slice(view.pixels());
                // The class is known even where the picture is not.
                let place = |label| Object::placed(label, frame_size, (0.0, 0.0));
                sample.labels.iter().map(place).collect()
            } else {
                let source = (picture.width(), picture.height());
                let fit = Letterbox::fit(source, frame_size, false);
                fit.apply(&picture, target);
                let offset = (fit.offset.0 as f32, fit.offset.1 as f32);
                let place = |label| Object::placed(label, fit.inside, offset);
                labels.iter().map(place).collect::<Vec<_>>()
            };
            targets::push(&mut targets, self.task, image, &objects, frame_size);
        }
        Ok(Batch {
            images,
            count,
            height: frame.height,
            width: frame.width,
            targets,
            samples: frame.samples.clone(),
        })
    }

    /// Returns the side with which pictures are loaded.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the pictures that could not be read so far: name and reason.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.list()
    }
}

/// Cuts pictures that all become squares into batches.
fn square_frames(count: usize, size: usize, batch: usize) -> Vec<Frame> {
    let order: Vec<u32> = (0..count as u32).collect();
    let frame = |samples: &[u32]| Frame {
        samples: samples.to_vec(),
        width: size,
        height: size,
    };
    order.chunks(batch.max(1)).map(frame).collect()
}

/// Sorts pictures by shape, cuts the row into batches and gives each the smallest frame that holds its pictures.
pub(super) fn plan_frames(sizes: &[(usize, usize)], size: usize, batch: usize) -> Vec<Frame> {
    let ratio = |index: u32| {
        let (width, height) = loaded_size(sizes[index as usize], size);
        height as f64 / width as f64
    };
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by(|&a, &b| ratio(a).total_cmp(&ratio(b)).then(a.cmp(&b)));
    order
        .chunks(batch.max(1))
        .map(|samples| {
            let lowest = ratio(samples[0]);
            let highest = ratio(samples[samples.len() - 1]);
            let (tall, wide) = if highest < 1.0 {
                (highest, 1.0)
            } else if lowest > 1.0 {
                (1.0, 1.0 / lowest)
            } else {
                (1.0, 1.0)
            };
            let pixels = |share: f64| {
                let cells = share * size as f64 / STRIDE as f64 + VALIDATION_PADDING;
                cells.ceil() as usize * STRIDE
            };
            Frame {
                samples: samples.to_vec(),
                width: pixels(wide),
                height: pixels(tall),
            }
        })
        .collect()
}

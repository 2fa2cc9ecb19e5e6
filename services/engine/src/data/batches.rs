//! Puts batches together: training batches by epoch and number, validation batches by similar shape.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::augment::{self, Augmentation, Scene, Warp};
use super::cache::PictureCache;
use super::decode;
use super::letterbox::{Letterbox, loaded_size};
use super::picture::{PADDING, Picture};
use super::yolo::Strictness;
use super::{Dataset, Label, Sample};
use crate::loss::Targets;
use crate::random::{Permutation, Philox, Use};
use crate::{Error, Result};

/// Frames have sides that are multiples of the model's largest stride.
pub const STRIDE: usize = 32;
/// Cells of extra border round validation pictures, as the reference adds.
const VALIDATION_PADDING: f64 = 0.5;

/// Names a part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    Train,
    Val,
    Test,
}

impl Split {
    /// Returns the samples of this part.
    pub fn samples<'a>(&self, dataset: &'a Dataset) -> &'a [Sample] {
        match self {
            Self::Train => &dataset.train,
            Self::Val => &dataset.val,
            Self::Test => &dataset.test,
        }
    }
}

/// What the network gets in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Pictures one after the other, RGB rows from the top.
    pub images: Vec<u8>,
    pub count: usize,
    pub height: usize,
    pub width: usize,
    pub targets: Targets,
    /// Which sample of the split each picture is.
    pub samples: Vec<u32>,
}

/// How training batches are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingOptions {
    pub seed: u64,
    /// Side of the pictures.
    pub size: usize,
    pub batch: usize,
    pub augmentation: Augmentation,
    /// From this epoch on there is no mosaic.
    pub close_mosaic_at: u32,
    pub strictness: Strictness,
    pub cache_bytes: u64,
}

/// The training batches of a data set.
#[derive(Debug)]
pub struct TrainingBatches {
    dataset: Arc<Dataset>,
    options: TrainingOptions,
    cache: PictureCache,
    unreadable: Unreadable,
}

impl TrainingBatches {
    /// Prepares to make batches; decodes nothing yet.
    pub fn new(dataset: Arc<Dataset>, options: TrainingOptions) -> Self {
        let count = dataset.train.len();
        Self {
            cache: PictureCache::new(count, options.size, options.cache_bytes),
            unreadable: Unreadable::new(options.strictness),
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

    /// Makes batch `number` of `epoch`.
    pub fn batch(&self, epoch: u32, number: usize) -> Result<Batch> {
        let order = Permutation::new(self.options.seed, epoch, self.dataset.train.len() as u32);
        let size = self.options.size;
        let count = self.size_of(number);
        let mut images = Vec::with_capacity(count * size * size * 3);
        let mut targets = Targets::empty(count);
        let mut samples = Vec::with_capacity(count);
        for image in 0..count {
            let sample = order.at((number * self.options.batch + image) as u32);
            let scene = self.scene(epoch, sample)?;
            images.extend_from_slice(scene.picture.pixels());
            for object in &scene.objects {
                targets.push(image as u32, object.class, object.bounds((size, size)));
            }
            samples.push(sample);
        }
        Ok(Batch {
            images,
            count,
            height: size,
            width: size,
            targets,
            samples,
        })
    }

    /// Returns what training sees of one sample in one epoch.
    pub fn scene(&self, epoch: u32, sample: u32) -> Result<Scene> {
        let TrainingOptions {
            seed,
            size,
            augmentation,
            ..
        } = &self.options;
        let mut stream = Philox::new(*seed, epoch, sample, Use::Mosaic);
        let own = self.part(sample)?;
        let is_mosaic = stream.chance(augmentation.mosaic) && epoch < self.options.close_mosaic_at;
        let scene = if is_mosaic {
            let centre = augment::mosaic_centre(&mut stream, *size);
            let count = self.dataset.train.len() as u32;
            let partners: [u32; 3] = std::array::from_fn(|_| stream.below(count));
            let others = [
                self.part(partners[0])?,
                self.part(partners[1])?,
                self.part(partners[2])?,
            ];
            let [one, two, three] = &others;
            let parts = [&own, one, two, three].map(|(picture, labels)| (&**picture, *labels));
            augment::mosaic(parts, centre, *size)
        } else {
            Scene::new(Picture::clone(&own.0), own.1)
        };
        let mut stream = Philox::new(*seed, epoch, sample, Use::Affine);
        let source = (scene.picture.width(), scene.picture.height());
        let warp = Warp::draw(&mut stream, augmentation, source, *size);
        let mut scene = warp.apply(&scene, *size);
        augment::recolour_and_flip(&mut scene, augmentation, *seed, epoch, sample, None);
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

/// The validation batches of one split: pictures of similar shape together, each batch in a frame that fits.
#[derive(Debug)]
pub struct ValidationBatches {
    dataset: Arc<Dataset>,
    split: Split,
    size: usize,
    frames: Vec<Frame>,
    cache: PictureCache,
    unreadable: Unreadable,
}

#[derive(Debug, Clone, PartialEq)]
struct Frame {
    samples: Vec<u32>,
    width: usize,
    height: usize,
}

impl ValidationBatches {
    /// Reads the size of every picture and plans the batches.
    pub fn new(
        dataset: Arc<Dataset>,
        split: Split,
        size: usize,
        batch: usize,
        strictness: Strictness,
        cache_bytes: u64,
    ) -> Result<Self> {
        let samples = split.samples(&dataset);
        let unreadable = Unreadable::new(strictness);
        let mut sizes = Vec::with_capacity(samples.len());
        for (index, sample) in samples.iter().enumerate() {
            let size = decode::dimensions(&sample.name, &sample.source);
            let size = unreadable.leave_out(index as u32, size)?;
            sizes.push(size.unwrap_or((STRIDE, STRIDE)));
        }
        Ok(Self {
            split,
            size,
            frames: plan_frames(&sizes, size, batch),
            cache: PictureCache::new(samples.len(), size, cache_bytes),
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
        let mut targets = Targets::empty(count);
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
            let source = (picture.width(), picture.height());
            let fit = Letterbox::fit(source, (frame.width, frame.height), false);
            fit.apply(&picture, target);
            for label in labels {
                targets.push(image as u32, label.class, fit.bounds_in_frame(label.bounds));
            }
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

/// Sorts pictures by shape, cuts the row into batches and gives each the smallest frame that holds its pictures.
fn plan_frames(sizes: &[(usize, usize)], size: usize, batch: usize) -> Vec<Frame> {
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

/// Returns the grey picture that takes an unreadable one's place: a batch keeps its size.
fn stand_in() -> Arc<Picture> {
    Arc::new(Picture::filled(STRIDE, STRIDE, [PADDING; 3]))
}

/// What happens to pictures that turn out unreadable only when they are decoded.
#[derive(Debug)]
struct Unreadable {
    strictness: Strictness,
    seen: Mutex<Seen>,
}

/// Unreadable pictures in the order in which they were met.
#[derive(Debug, Default)]
struct Seen {
    samples: HashSet<u32>,
    reasons: Vec<String>,
}

impl Unreadable {
    fn new(strictness: Strictness) -> Self {
        Self {
            strictness,
            seen: Mutex::new(Seen::default()),
        }
    }

    /// Passes a picture on; where bad ones are left out, keeps the reason and returns none.
    fn leave_out<T>(&self, sample: u32, picture: Result<T>) -> Result<Option<T>> {
        match picture {
            Err(error @ (Error::Data { .. } | Error::Io { .. }))
                if self.strictness == Strictness::LeaveOut =>
            {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.samples.insert(sample) {
                    seen.reasons.push(error.to_string());
                }
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    fn list(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.reasons.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::Source;
    use super::*;

    fn sample(index: u8, width: u32, height: u32) -> Sample {
        let mut file = std::io::Cursor::new(Vec::new());
        image::RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8, y as u8, index]))
            .write_to(&mut file, image::ImageFormat::Png)
            .unwrap();
        Sample {
            name: format!("{index}.png"),
            source: Source::Bytes(file.into_inner().into()),
            labels: vec![Label::boxed(u32::from(index % 2), [0.5, 0.5, 0.5, 0.5])],
        }
    }

    fn dataset() -> Arc<Dataset> {
        Arc::new(Dataset {
            classes: vec!["a".into(), "b".into()],
            train: (0..7)
                .map(|index| sample(index, 60 + 10 * u32::from(index), 80))
                .collect(),
            val: vec![
                sample(0, 40, 80),
                sample(1, 80, 40),
                sample(2, 80, 50),
                sample(3, 64, 64),
            ],
            ..Dataset::default()
        })
    }

    fn options(cache_bytes: u64) -> TrainingOptions {
        TrainingOptions {
            seed: 11,
            size: 64,
            batch: 3,
            augmentation: Augmentation::default(),
            close_mosaic_at: 2,
            strictness: Strictness::Refuse,
            cache_bytes,
        }
    }

    #[test]
    fn a_batch_is_a_function_of_epoch_and_number_whatever_was_made_before() {
        let one = TrainingBatches::new(dataset(), options(u64::MAX));
        let other = TrainingBatches::new(dataset(), options(0));
        assert_eq!((one.per_epoch(), one.size_of(0), one.size_of(2)), (3, 3, 1));
        let forward: Vec<_> = (0..3).map(|number| one.batch(1, number).unwrap()).collect();
        for number in (0..3).rev() {
            assert_eq!(other.batch(1, number).unwrap(), forward[number]);
        }
        assert_ne!(one.batch(0, 0).unwrap().images, forward[0].images);
        let mut seen: Vec<u32> = forward
            .iter()
            .flat_map(|batch| batch.samples.clone())
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn after_mosaic_closes_a_picture_holds_its_own_objects_only() {
        let batches = TrainingBatches::new(dataset(), options(0));
        assert!((0..7).any(|index| batches.scene(1, index).unwrap().objects.len() > 1));
        for index in 0..7 {
            assert!(batches.scene(2, index).unwrap().objects.len() <= 1);
        }
    }

    #[test]
    fn validation_frames_hold_similar_shapes_with_half_a_cell_more() {
        let batches =
            ValidationBatches::new(dataset(), Split::Val, 64, 2, Strictness::Refuse, 0).unwrap();
        // Shapes h/w .5 and .625 first: 64 wide, 40 high → 96 × 64; then 1 and 2 → square.
        assert_eq!(batches.count(), 2);
        assert_eq!(batches.shape(0), (2, 64, 96));
        assert_eq!(batches.shape(1), (2, 96, 96));
        let batch = batches.batch(0).unwrap();
        assert_eq!(batch.samples, [1, 2]);
        let [x, y, width, height] = batch.targets.boxes[0];
        assert_eq!([x, y], [0.5, 0.5]);
        assert!((width * 96.0 - 32.0).abs() < 1e-4 && (height * 64.0 - 16.0).abs() < 1e-4);
    }

    #[test]
    fn the_frame_of_a_640_by_480_set_at_320_is_352_by_256() {
        let frames = plan_frames(&[(640, 480); 3], 320, 2);
        assert_eq!(frames.len(), 2);
        assert_eq!((frames[0].width, frames[0].height), (352, 256));
        let tall = plan_frames(&[(480, 640)], 320, 2);
        assert_eq!((tall[0].width, tall[0].height), (256, 352));
    }

    #[test]
    fn a_picture_that_breaks_while_training_refuses_or_is_replaced_and_named() {
        let mut broken = (*dataset()).clone();
        broken.train[4].source = Source::Bytes((*b"\xFF\xD8\xFFoops").into());
        let broken = Arc::new(broken);
        let strict = TrainingBatches::new(Arc::clone(&broken), options(0));
        assert!(
            strict
                .scene(3, 4)
                .unwrap_err()
                .to_string()
                .starts_with("4.png: ")
        );
        let mut lenient = options(0);
        lenient.strictness = Strictness::LeaveOut;
        let lenient = TrainingBatches::new(broken, lenient);
        assert!(lenient.scene(3, 4).unwrap().objects.is_empty());
        assert_eq!(lenient.unreadable().len(), 1);
    }
}

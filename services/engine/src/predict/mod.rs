//! Finding objects in pictures, and drawing what was found.
//!
//! For callers (inference, command line):
//!
//! * `Predictor::new(&checkpoint, imgsz, threads) -> Result<Predictor>` with a model file or a checkpoint;
//! * `data::decode::decode(name, bytes) -> Result<Picture>` for the bytes of an image file;
//! * `predictor.predict(&[&picture], &PredictOptions::default()) -> Result<Vec<Vec<Found>>>`, boxes in the pixels of
//!   each picture; pictures that fit one frame run together;
//! * `draw::draw(&mut picture, &found)` and `draw::encode(&picture, ImageKind::Jpeg) -> Result<Vec<u8>>`.

pub mod draw;
mod font;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::data::augment::classify;
use crate::data::batches::STRIDE;
use crate::data::letterbox::Letterbox;
use crate::data::picture::Picture;
use crate::metrics::{Detector, NmsOptions};
use crate::models::{ModelSpec, Task};
use crate::network::{Images, InputShape, State};
use crate::parallel::Threads;
use crate::plan::Mode;
use crate::train::Networks;
use crate::{Error, Result};

/// The most pictures that go through the network at once.
pub const BATCH_MAX: usize = 16;
/// Networks held for frames and batch sizes last used.
const NETWORKS_HELD: usize = 8;

/// What counts as found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictOptions {
    /// Scores must be above it.
    pub conf: f32,
    /// Overlap above which a surer box suppresses another.
    pub iou: f32,
    /// The most objects of a picture.
    pub max_det: usize,
    /// Whether boxes of different classes suppress each other.
    pub agnostic_nms: bool,
}

impl Default for PredictOptions {
    fn default() -> Self {
        let nms = NmsOptions::prediction();
        Self {
            conf: nms.confidence,
            iou: nms.iou,
            max_det: nms.detection_count_max,
            agnostic_nms: nms.is_class_agnostic,
        }
    }
}

impl PredictOptions {
    /// Refuses values out of range.
    pub fn check(&self) -> Result<()> {
        for (argument, value) in [("conf", self.conf), ("iou", self.iou)] {
            if !(0.0..=1.0).contains(&value) {
                let rule = format!("{value} is not between 0 and 1");
                return Err(Error::Argument { argument, rule });
            }
        }
        Ok(())
    }

    fn nms(&self) -> NmsOptions {
        NmsOptions {
            confidence: self.conf,
            iou: self.iou,
            detection_count_max: self.max_det,
            is_class_agnostic: self.agnostic_nms,
            ..NmsOptions::prediction()
        }
    }
}

/// An object in a picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub class: u32,
    pub name: String,
    pub score: f32,
    /// Left, top, right, bottom in pixels of the picture; of whole pictures all of it.
    pub bounds: [f32; 4],
}

/// A model ready to look at pictures.
#[derive(Debug)]
pub struct Predictor {
    spec: ModelSpec,
    classes: Vec<String>,
    state: State,
    size: usize,
    networks: Networks,
    threads: Threads,
}

impl Predictor {
    /// Makes a model ready; the long side of pictures becomes `imgsz`.
    pub fn new(checkpoint: &Checkpoint, imgsz: usize, threads: &Threads) -> Result<Self> {
        InputShape::square(1, imgsz).check()?;
        let spec = checkpoint.header.model.clone();
        let networks = Networks::new(spec.clone(), Mode::Infer, threads.clone(), NETWORKS_HELD);
        Ok(Self {
            classes: checkpoint.header.classes.clone(),
            state: checkpoint.inference_state().clone(),
            size: imgsz,
            networks,
            threads: threads.clone(),
            spec,
        })
    }

    /// Returns what the model is.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the class names.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the objects of each picture, the surest first.
    pub fn predict(
        &mut self,
        pictures: &[&Picture],
        options: &PredictOptions,
    ) -> Result<Vec<Vec<Found>>> {
        options.check()?;
        if self.spec.task == Task::Classify {
            return self.classify(pictures, options);
        }
        let fits: Vec<Letterbox> = pictures
            .iter()
            .map(|picture| Letterbox::tight((picture.width(), picture.height()), self.size, STRIDE))
            .collect();
        let mut order: Vec<usize> = (0..pictures.len()).collect();
        order.sort_by_key(|&index| fits[index].frame);
        let mut found = vec![Vec::new(); pictures.len()];
        for same_frame in order.chunk_by(|&a, &b| fits[a].frame == fits[b].frame) {
            for chunk in same_frame.chunks(BATCH_MAX) {
                self.predict_chunk(pictures, &fits, chunk, options, &mut found)?;
            }
        }
        Ok(found)
    }

    /// Returns the classes of each whole picture that are likely enough, the surest first.
    fn classify(
        &mut self,
        pictures: &[&Picture],
        options: &PredictOptions,
    ) -> Result<Vec<Vec<Found>>> {
        let size = self.size;
        let mut found = Vec::with_capacity(pictures.len());
        for chunk in pictures.chunks(BATCH_MAX) {
            let mut images = vec![0; chunk.len() * size * size * 3];
            let targets = images.chunks_exact_mut(size * size * 3);
            self.threads
                .run_each(chunk.iter().zip(targets), |_, (picture, target)| {
                    target.copy_from_slice(classify::validation_view(picture, size).pixels());
                });
            let shape = InputShape::square(chunk.len(), size);
            let network = self.networks.get_loaded(shape, &self.state)?;
            network.infer_forward(Images::U8(&images));
            let logits = network.outputs().logits;
            let logits = logits.expect("invariant: a classifier has logits");
            let rows = logits.values.chunks_exact(logits.pixel_stride);
            for (picture, row) in chunk.iter().zip(rows) {
                let bounds = [0.0, 0.0, picture.width() as f32, picture.height() as f32];
                let mut classes: Vec<_> = probabilities(&row[..self.classes.len()])
                    .zip(0u32..)
                    .filter(|(score, _)| *score > options.conf)
                    .collect();
                classes.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                let classes = classes.into_iter().take(options.max_det);
                let classes = classes.map(|(score, class)| Found {
                    class,
                    name: self.classes[class as usize].clone(),
                    score,
                    bounds,
                });
                found.push(classes.collect());
            }
        }
        Ok(found)
    }

    fn predict_chunk(
        &mut self,
        pictures: &[&Picture],
        fits: &[Letterbox],
        chunk: &[usize],
        options: &PredictOptions,
        found: &mut [Vec<Found>],
    ) -> Result<()> {
        let (width, height) = fits[chunk[0]].frame;
        let mut images = vec![0; chunk.len() * width * height * 3];
        let targets = images.chunks_exact_mut(width * height * 3);
        self.threads
            .run_each(chunk.iter().zip(targets), |_, (&index, target)| {
                fits[index].apply(pictures[index], target);
            });
        let shape = InputShape {
            batch: chunk.len(),
            height,
            width,
        };
        let network = self.networks.get_loaded(shape, &self.state)?;
        network.infer_forward(Images::U8(&images));
        let detector = Detector::new(&self.spec, options.nms());
        let outputs = network.outputs();
        let mut detections = vec![Vec::new(); chunk.len()];
        self.threads
            .run_each(detections.iter_mut(), |image, detections| {
                *detections = detector.boxes(&outputs, image);
            });
        for (&index, detections) in chunk.iter().zip(detections) {
            found[index] = detections
                .into_iter()
                .map(|detection| Found {
                    class: detection.class,
                    name: self.classes[detection.class as usize].clone(),
                    score: detection.score,
                    bounds: fits[index].corners_in_source(detection.bounds),
                })
                .collect();
        }
        Ok(())
    }
}

/// Returns the softmax of logits.
fn probabilities(logits: &[f32]) -> impl Iterator<Item = f32> + '_ {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exp = move |logit: &f32| f64::from(logit - largest).exp();
    let sum: f64 = logits.iter().map(exp).sum();
    logits.iter().map(move |logit| (exp(logit) / sum) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::example;

    #[test]
    fn pictures_together_give_what_each_gives_alone() {
        let threads = Threads::new(2).unwrap();
        let mut predictor = Predictor::new(&example(), 64, &threads).unwrap();
        let pictures: Vec<Picture> = [(90, 60), (60, 90), (90, 60), (64, 64)]
            .into_iter()
            .enumerate()
            .map(|(index, (width, height))| {
                Picture::filled(width, height, [40 * index as u8, 90, 20])
            })
            .collect();
        // Fresh weights find nothing sure, so everything counts.
        let options = PredictOptions {
            conf: 0.0,
            max_det: 5,
            ..PredictOptions::default()
        };
        let all: Vec<&Picture> = pictures.iter().collect();
        let together = predictor.predict(&all, &options).unwrap();
        for (picture, together) in pictures.iter().zip(&together) {
            let alone = predictor.predict(&[picture], &options).unwrap().remove(0);
            assert_eq!(&alone, together);
            assert!(!alone.is_empty());
            for found in alone {
                let [left, top, right, bottom] = found.bounds;
                assert!(left >= 0.0 && top >= 0.0);
                assert!(right <= picture.width() as f32 && bottom <= picture.height() as f32);
                assert_eq!(found.name, predictor.classes()[found.class as usize]);
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let options = PredictOptions {
            conf: f32::NAN,
            ..PredictOptions::default()
        };
        assert!(options.check().unwrap_err().to_string().starts_with("conf"));
        assert!(Predictor::new(&example(), 100, &Threads::new(1).unwrap()).is_err());
    }
}

//! Finding objects in pictures, and drawing what was found.
//!
//! For callers (inference, command line):
//!
//! * `Predictor::new(&checkpoint, imgsz, threads) -> Result<Predictor>` with a model file or a checkpoint;
//! * `data::decode::decode(name, bytes) -> Result<Picture>` for the bytes of an image file;
//! * `predictor.predict(&[&picture], &PredictOptions::default()) -> Result<Vec<Vec<Found>>>`, boxes, masks, keypoints
//!   and corners in the pixels of each picture; pictures that fit one frame run together;
//! * `draw::draw(&mut picture, &found)` and `draw::encode(&picture, ImageKind::Jpeg) -> Result<Vec<u8>>`.

pub mod draw;
mod font;
pub(crate) mod look;
mod mask;
mod outline;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Checkpoint;
use crate::data::letterbox::Letterbox;
use crate::data::picture::Picture;
use crate::metrics::{Detector, NmsOptions};
use crate::models::ModelSpec;
use crate::network::{Images, InputShape, State};
use crate::parallel::Threads;
use crate::plan::Mode;
use crate::train::Networks;
use crate::{Error, Result};
use look::Look;

/// The most pictures that go through the network at once.
pub const BATCH_MAX: usize = 16;
/// Networks held for frames and batch sizes last used.
const NETWORKS_HELD: usize = 8;
/// The most classes told of a whole picture.
pub const CLASSES_MAX: usize = 5;

/// What counts as found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PredictOptions {
    /// Scores must be above it; of whole pictures the likeliest classes are told in any case.
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
    /// What the model's task tells beside the box.
    #[serde(flatten)]
    pub shape: Option<Shape>,
}

/// More than a box, in pixels of the picture. In JSON it is one more field, named after the kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    Mask {
        /// Round the largest part, clockwise; empty where no pixel belongs to the object.
        outline: Vec<[f32; 2]>,
        /// Pixels of all parts.
        area: usize,
    },
    /// x, y, and how likely the point is seen: 1 where the model doesn't tell.
    Keypoints(Vec<[f32; 3]>),
    Turned {
        /// Going round; a corner may lie beside the picture.
        corners: [[f32; 2]; 4],
        /// From the x axis to the side called width, towards the y axis, in radians.
        angle: f32,
    },
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
        let fits: Vec<Letterbox> = pictures
            .iter()
            .map(|picture| look::fit(self.spec.task, picture, self.size))
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

    fn predict_chunk(
        &mut self,
        pictures: &[&Picture],
        fits: &[Letterbox],
        chunk: &[usize],
        options: &PredictOptions,
        found: &mut [Vec<Found>],
    ) -> Result<()> {
        let task = self.spec.task;
        let (width, height) = fits[chunk[0]].frame;
        let mut images = vec![0; chunk.len() * width * height * 3];
        let targets = images.chunks_exact_mut(width * height * 3);
        self.threads
            .run_each(chunk.iter().zip(targets), |_, (&index, target)| {
                look::show(task, pictures[index], &fits[index], target);
            });
        let shape = InputShape {
            batch: chunk.len(),
            height,
            width,
        };
        let network = self.networks.get_loaded(shape, &self.state)?;
        network.infer_forward(Images::U8(&images));
        let detector = Detector::new(&self.spec, options.nms());
        let look = Look {
            task,
            detector: &detector,
            outputs: &network.outputs(),
            classes: &self.classes,
            found_max: options.max_det,
        };
        let fits: Vec<Letterbox> = chunk.iter().map(|&index| fits[index]).collect();
        let found_now = look.find(&fits, &self.threads);
        for (&index, found_now) in chunk.iter().zip(found_now) {
            found[index] = found_now;
        }
        Ok(())
    }
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

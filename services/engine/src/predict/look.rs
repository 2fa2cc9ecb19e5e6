//! From a network's raw outputs to what is found in each picture: candidates, suppression, then for the few that stay
//! what their task tells.

use super::mask::Mask;
use super::{CLASSES_MAX, Found, Shape};
use crate::data::augment::classify;
use crate::data::batches::STRIDE;
use crate::data::letterbox::Letterbox;
use crate::data::picture::Picture;
use crate::loss::Prototypes;
use crate::metrics::{Detection, Detector, TurnedDetection};
use crate::models::Task;
use crate::network::Outputs;
use crate::parallel::Threads;

/// One look at a batch.
pub(crate) struct Look<'a> {
    pub task: Task,
    pub detector: &'a Detector,
    pub outputs: &'a Outputs<'a>,
    pub classes: &'a [String],
    /// The most classes of a whole picture, if fewer than usual.
    pub found_max: usize,
}

/// Returns how a picture comes into a frame: as tight as the network's stride allows, or a square of which a
/// classifier sees the middle.
pub(crate) fn fit(task: Task, picture: &Picture, size: usize) -> Letterbox {
    let source = (picture.width(), picture.height());
    match task {
        Task::Classify => Letterbox::fit(source, (size, size), true),
        _ => Letterbox::tight(source, size, STRIDE),
    }
}

/// Writes what the network sees of a picture into `target`.
pub(crate) fn show(task: Task, picture: &Picture, fit: &Letterbox, target: &mut [u8]) {
    match task {
        Task::Classify => {
            let view = classify::validation_view(picture, fit.frame.0);
            target.copy_from_slice(view.pixels());
        }
        _ => fit.apply(picture, target),
    }
}

/// An object whose shape isn't worked out yet.
struct Kept {
    image: usize,
    detection: Detection,
    turned: Option<TurnedDetection>,
}

impl Look<'_> {
    /// Returns the objects of each picture of the batch, the surest first; `fits` tells how each lies in its frame.
    pub fn find(&self, fits: &[Letterbox], threads: &Threads) -> Vec<Vec<Found>> {
        if let Some(logits) = self.outputs.logits {
            let rows = logits.values.chunks_exact(logits.pixel_stride);
            return fits
                .iter()
                .zip(rows)
                .map(|(fit, row)| self.whole(fit, row))
                .collect();
        }
        let mut kept: Vec<Vec<Kept>> = Vec::new();
        kept.resize_with(fits.len(), Vec::new);
        threads.run_each(kept.iter_mut(), |image, kept| *kept = self.keep(image));
        let kept: Vec<Kept> = kept.into_iter().flatten().collect();
        // A picture of its own has as many shapes as threads can take.
        let mut objects: Vec<Option<Found>> = vec![None; kept.len()];
        threads.run_each(kept.iter().zip(&mut objects), |_, (kept, object)| {
            *object = Some(self.found(kept, &fits[kept.image]));
        });
        let mut found = vec![Vec::new(); fits.len()];
        for (kept, object) in kept.iter().zip(objects) {
            found[kept.image].extend(object);
        }
        found
    }

    /// Returns the likeliest classes of a whole picture.
    fn whole(&self, fit: &Letterbox, logits: &[f32]) -> Vec<Found> {
        let mut classes: Vec<_> = probabilities(&logits[..self.classes.len()])
            .zip(0u32..)
            .collect();
        classes.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        classes.truncate(self.found_max.min(CLASSES_MAX));
        let found = classes.into_iter().map(|(score, class)| Found {
            class,
            name: self.classes[class as usize].clone(),
            score,
            bounds: [0.0, 0.0, fit.source.0 as f32, fit.source.1 as f32],
            shape: None,
        });
        found.collect()
    }

    fn keep(&self, image: usize) -> Vec<Kept> {
        if self.task == Task::Obb {
            let kept = self.detector.turned(self.outputs, image).into_iter();
            return kept
                .map(|turned| Kept {
                    image,
                    detection: turned.around(),
                    turned: Some(turned),
                })
                .collect();
        }
        let kept = self.detector.upright(self.outputs, image).into_iter();
        kept.map(|detection| Kept {
            image,
            detection,
            turned: None,
        })
        .collect()
    }

    fn found(&self, kept: &Kept, fit: &Letterbox) -> Found {
        let detection = &kept.detection;
        let bounds = fit.corners_in_source(detection.bounds);
        Found {
            class: detection.class,
            name: self.classes[detection.class as usize].clone(),
            score: detection.score,
            bounds,
            shape: self.shape(kept, fit, bounds),
        }
    }

    fn shape(&self, kept: &Kept, fit: &Letterbox, bounds: [f32; 4]) -> Option<Shape> {
        let (image, index) = (kept.image, kept.detection.index);
        if let Some(turned) = &kept.turned {
            return Some(Shape::Turned {
                corners: turned.corners().map(|corner| fit.point_in_source(corner)),
                angle: turned.bounds[4],
            });
        }
        match self.task {
            Task::Segment => {
                let prototypes = Prototypes::of_image(self.outputs.prototypes.as_ref()?, image);
                let coefficients = self.detector.coefficients(self.outputs, image, index);
                let mask = Mask::new(prototypes, coefficients, fit, bounds);
                Some(Shape::Mask {
                    outline: mask.outline(),
                    area: mask.bitmap.area(),
                })
            }
            Task::Pose => {
                let points = self.detector.keypoints(self.outputs, image, index);
                let in_picture = |[x, y, seen]: [f32; 3]| {
                    let [x, y] = fit.clipped(fit.point_in_source([x, y]));
                    [x, y, seen]
                };
                Some(Shape::Keypoints(
                    points.into_iter().map(in_picture).collect(),
                ))
            }
            Task::Detect | Task::Classify | Task::Obb => None,
        }
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
    use crate::metrics::NmsOptions;
    use crate::models::{KeypointShape, ModelSpec};
    use crate::network::{HeadLevel, Map};

    /// A picture of 640 × 448 at half its size, with 16 rows of border, in a frame of 320 × 256.
    fn fit() -> Letterbox {
        Letterbox::fit((640, 448), (320, 256), true)
    }

    /// Finds what the one sure cell of a level of stride 32 tells: cell (4, 3), whose sides are 1, 2, 3 and 1 cells
    /// away, so a box from (112, 48) to (240, 144) of the frame.
    fn find(spec: &ModelSpec, extra: &[f32], prototypes: Option<Map<'_>>) -> Vec<Found> {
        const CELLS: usize = 10 * 8;
        const SURE: usize = 3 * 10 + 4;
        let mut boxes = vec![0.0; CELLS * 64];
        for (side, distance) in [1, 2, 3, 1].into_iter().enumerate() {
            boxes[SURE * 64 + side * 16 + distance] = 60.0;
        }
        let mut scores = vec![-20.0; CELLS * 16];
        scores[SURE * 16] = 3.0;
        let mut extras = vec![0.0; CELLS * 32];
        extras[SURE * 32..][..extra.len()].copy_from_slice(extra);
        let level = HeadLevel {
            stride: 32,
            height: 8,
            width: 10,
            boxes: &boxes,
            box_stride: 64,
            scores: &scores,
            score_stride: 16,
            extra: &extras,
            extra_stride: 32,
            ..HeadLevel::default()
        };
        let outputs = Outputs {
            branches: vec![vec![level]],
            prototypes,
            ..Outputs::default()
        };
        let look = Look {
            task: spec.task,
            detector: &Detector::new(spec, NmsOptions::prediction()),
            outputs: &outputs,
            classes: &["thing".to_owned()],
            found_max: 300,
        };
        let mut found = look.find(&[fit()], &Threads::new(2).unwrap());
        assert_eq!((found.len(), found[0].len()), (1, 1));
        found.remove(0)
    }

    fn assert_near(seen: &[f32], wanted: &[f32]) {
        assert_eq!(seen.len(), wanted.len());
        for (seen_one, wanted_one) in seen.iter().zip(wanted) {
            assert!((seen_one - wanted_one).abs() < 0.01, "{seen:?} {wanted:?}");
        }
    }

    #[test]
    fn a_mask_is_an_outline_in_the_picture() {
        let spec = ModelSpec::parse("yolo11n-seg", 1).unwrap();
        // One prototype: how far a column of the frame is left of 160, so 320 of the picture.
        let values: Vec<f32> = (0..80 * 64)
            .flat_map(|pixel| {
                let mut row = [0.0; 32];
                row[0] = 160.0 - ((pixel % 80) as f32 + 0.5) * 4.0;
                row
            })
            .collect();
        let map = Map {
            height: 64,
            width: 80,
            channels: 32,
            pixel_stride: 32,
            values: &values,
        };
        let found = &find(&spec, &[1.0], Some(map))[0];
        assert_near(&found.bounds, &[224.0, 64.0, 480.0, 256.0]);
        let Some(Shape::Mask { outline, area }) = &found.shape else {
            panic!("{found:?}");
        };
        assert_eq!(*area, (320 - 224) * (256 - 64));
        assert_eq!(outline.len(), 4);
        for corner in [[224.0, 64.0], [320.0, 64.0], [320.0, 256.0], [224.0, 256.0]] {
            assert!(outline.contains(&corner), "{outline:?}");
        }
        let text = serde_json::to_value(found).unwrap();
        assert_eq!(text["mask"]["area"], 18432);
        assert_eq!(serde_json::from_value::<Found>(text).unwrap(), *found);
    }

    #[test]
    fn keypoints_are_places_in_the_picture() {
        let shape = KeypointShape { count: 2, dims: 3 };
        let spec = ModelSpec::parse("yolo11n-pose", 1).unwrap();
        let spec = spec.with_keypoints(shape).unwrap();
        // Twice the number from the cell's corner at (128, 96), in cells of 32; the second far outside.
        let found = &find(&spec, &[0.25, -0.5, 0.0, -9.0, 9.0, 50.0], None)[0];
        let Some(Shape::Keypoints(points)) = &found.shape else {
            panic!("{found:?}");
        };
        assert_near(
            &points[0],
            &[(128.0 + 16.0) * 2.0, (96.0 - 32.0 - 16.0) * 2.0, 0.5],
        );
        assert_near(&points[1], &[0.0, 448.0, 1.0]);
        let text = serde_json::to_value(found).unwrap();
        assert_eq!(text["keypoints"].as_array().unwrap().len(), 2);
        assert_eq!(serde_json::from_value::<Found>(text).unwrap(), *found);
    }

    #[test]
    fn corners_of_a_turned_box_go_round_in_the_picture() {
        let spec = ModelSpec::parse("yolo11n-obb", 1).unwrap();
        // What is squeezed into a right angle.
        let raw = (0.75f32 / 0.25).ln();
        let found = &find(&spec, &[raw], None)[0];
        let Some(Shape::Turned { corners, angle }) = &found.shape else {
            panic!("{found:?}");
        };
        assert!((angle - std::f32::consts::FRAC_PI_2).abs() < 1e-4);
        // 128 wide and 96 high, its centre 32 right of and 16 above the cell's, (144, 112), before it is turned about
        // that: then 16 right and 32 below. In the picture, of twice the size and without 16 rows of border:
        let centre = [(144.0 + 16.0) * 2.0, (112.0 + 32.0 - 16.0) * 2.0];
        let (left, right) = (centre[0] - 96.0, centre[0] + 96.0);
        let (top, bottom) = (centre[1] - 128.0, centre[1] + 128.0);
        assert_near(&found.bounds, &[left, top, right, bottom]);
        let wanted = [[left, bottom], [right, bottom], [right, top], [left, top]];
        for corner in wanted {
            let is_there =
                |seen: &[f32; 2]| (seen[0] - corner[0]).hypot(seen[1] - corner[1]) < 0.05;
            assert!(corners.iter().any(is_there), "{corners:?} {corner:?}");
        }
        // Neighbours share a side.
        for (one, next) in corners.iter().zip(corners.iter().cycle().skip(1)) {
            let side = (one[0] - next[0]).hypot(one[1] - next[1]);
            assert!(
                (side - 192.0).abs() < 0.1 || (side - 256.0).abs() < 0.1,
                "{side}"
            );
        }
        let text = serde_json::to_value(found).unwrap();
        assert_eq!(text["turned"]["corners"].as_array().unwrap().len(), 4);
        assert_eq!(serde_json::from_value::<Found>(text).unwrap(), *found);
    }

    #[test]
    fn of_a_whole_picture_the_five_likeliest_classes_are_told() {
        let spec = ModelSpec::parse("yolo11n-cls", 7).unwrap();
        let classes: Vec<String> = (0..7).map(|class| format!("class {class}")).collect();
        let values = [0.0, 3.0, 1.0, 2.0, -1.0, 5.0, 4.0, 99.0];
        let logits = Map {
            height: 1,
            width: 1,
            channels: 7,
            pixel_stride: 8,
            values: &values,
        };
        let look = Look {
            task: spec.task,
            detector: &Detector::new(&spec, NmsOptions::prediction()),
            outputs: &Outputs {
                logits: Some(logits),
                ..Outputs::default()
            },
            classes: &classes,
            found_max: 300,
        };
        let found = look.find(&[fit()], &Threads::new(1).unwrap()).remove(0);
        let order: Vec<u32> = found.iter().map(|found| found.class).collect();
        assert_eq!(order, [5, 6, 1, 3, 2]);
        assert_eq!(found[0].bounds, [0.0, 0.0, 640.0, 448.0]);
        let whole: f32 = values[..7].iter().map(|logit| (logit - 5.0).exp()).sum();
        assert!((found[0].score - 1.0 / whole).abs() < 1e-6);
    }

    #[test]
    fn a_plain_box_has_no_shape() {
        let spec = ModelSpec::parse("yolo11n", 1).unwrap();
        let found = &find(&spec, &[], None)[0];
        assert_eq!(found.shape, None);
        let text = serde_json::to_value(found).unwrap();
        assert_eq!(text.as_object().unwrap().len(), 4);
        assert_eq!(serde_json::from_value::<Found>(text).unwrap(), *found);
    }
}

//! What is read from raw outputs for the anchors that are kept is what the rows of all anchors say, which are compared
//! with recorded ones.

use engine::metrics::{Detector, NmsOptions};
use engine::models::{ModelSpec, Task};
use engine::network::Network;

use super::BATCH;

/// Boxes and places in pixels may deviate by this, scores and angles by a hundredth of it.
const PIXELS_MAX: f32 = 1e-2;

/// Compares every anchor of a network whose rows are decoded.
pub fn agree(spec: &ModelSpec, network: &Network) {
    let predictions = network.predictions();
    let options = NmsOptions {
        confidence: 0.0,
        iou: 1.0,
        detection_count_max: usize::MAX,
        ..NmsOptions::prediction()
    };
    let detector = Detector::new(spec, options);
    let outputs = network.outputs();
    for image in 0..BATCH {
        let rows: Vec<&[f32]> = predictions
            .image(image)
            .chunks_exact(predictions.row_length())
            .collect();
        let kept: Vec<(usize, f32, [f32; 4])> = if spec.task == Task::Obb {
            let turned = detector.turned(&outputs, image).into_iter();
            let anchor = |found: engine::metrics::TurnedDetection| {
                let row = rows[found.index as usize];
                near(
                    &row[4 + spec.class_count..],
                    &found.bounds[4..],
                    PIXELS_MAX / 100.0,
                );
                let [x, y, width, height, _] = found.bounds;
                (found.index as usize, found.score, [x, y, width, height])
            };
            turned.map(anchor).collect()
        } else {
            let upright = detector.upright(&outputs, image).into_iter();
            let anchor = |found: engine::metrics::Detection| {
                let [left, top, right, bottom] = found.bounds;
                let centre = [(left + right) / 2.0, (top + bottom) / 2.0];
                let bounds = [centre[0], centre[1], right - left, bottom - top];
                (found.index as usize, found.score, bounds)
            };
            upright.map(anchor).collect()
        };
        assert!(
            kept.len() > rows.len() / 2,
            "{} of {}",
            kept.len(),
            rows.len()
        );
        for (index, score, bounds) in kept {
            let (row, extras) = rows[index].split_at(4 + spec.class_count);
            near(&row[..4], &bounds, PIXELS_MAX);
            let best = row[4..].iter().copied().fold(0.0, f32::max);
            near(&[best], &[score], PIXELS_MAX / 100.0);
            match (spec.task, spec.keypoints) {
                (Task::Segment, _) => {
                    near(
                        extras,
                        detector.coefficients(&outputs, image, index as u32),
                        0.0,
                    );
                }
                (Task::Pose, Some(shape)) => {
                    let points = detector.keypoints(&outputs, image, index as u32);
                    let numbers = points.iter().flat_map(|point| &point[..shape.dims]);
                    near(extras, &numbers.copied().collect::<Vec<_>>(), PIXELS_MAX);
                }
                _ => {}
            }
        }
    }
}

fn near(recorded: &[f32], seen: &[f32], most: f32) {
    assert_eq!(recorded.len(), seen.len());
    for (recorded_one, seen_one) in recorded.iter().zip(seen) {
        let deviation = (recorded_one - seen_one).abs() / recorded_one.abs().max(1.0);
        assert!(deviation <= most, "{recorded:?} {seen:?}");
    }
}

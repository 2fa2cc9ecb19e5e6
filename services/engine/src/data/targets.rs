//! From a picture's objects to what the loss of a task compares with.

use super::augment::{Object, polygon};
use super::masks::{self, MASK_RATIO};
use crate::loss::{InstanceMaps, Targets};
use crate::models::Task;

/// Returns the targets of `count` pictures of `size` (width, height) before any object is added.
pub fn empty(task: Task, count: usize, size: (usize, usize)) -> Targets {
    let mut targets = Targets::empty(count);
    if task == Task::Segment {
        let (width, height) = (size.0 / MASK_RATIO, size.1 / MASK_RATIO);
        targets.masks = Some(InstanceMaps {
            height,
            width,
            values: Vec::with_capacity(count * height * width),
        });
    }
    targets
}

/// Adds the objects of picture `image` of the batch; pictures come in order, each once.
pub fn push(
    targets: &mut Targets,
    task: Task,
    image: usize,
    objects: &[Object],
    size: (usize, usize),
) {
    let image = image as u32;
    let (across, down) = (size.0 as f32, size.1 as f32);
    match task {
        Task::Detect => {
            for object in objects {
                targets.push(image, object.class, object.bounds(size));
            }
        }
        Task::Segment => {
            let outlines: Vec<&[polygon::Point]> = objects
                .iter()
                .map(|object| object.polygon.as_slice())
                .collect();
            let (map, order) = masks::index_map(&outlines, size);
            for index in order {
                let object = &objects[index];
                targets.push(image, object.class, object.bounds(size));
            }
            let maps = targets.masks.as_mut();
            let maps = maps.expect("invariant: segmentation has maps from the start");
            maps.values.extend_from_slice(&map.indices);
        }
        Task::Pose => {
            for object in objects {
                let points = object.keypoints.iter();
                let points = points.map(|&[x, y, visibility]| [x / across, y / down, visibility]);
                targets.push_posed(image, object.class, object.bounds(size), points);
            }
        }
        Task::Obb => {
            for object in objects {
                let Some(turned) = polygon::turned_rectangle(&object.polygon) else {
                    continue;
                };
                let bounds = [
                    turned.centre[0] / across,
                    turned.centre[1] / down,
                    turned.width / across,
                    turned.height / down,
                ];
                targets.push_turned(image, object.class, bounds, turned.angle);
            }
        }
        Task::Classify => {
            let class = objects.first().map_or(0, |object| object.class);
            targets.labels.push(class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects() -> Vec<Object> {
        let small = Object {
            class: 1,
            corners: [8.0, 8.0, 16.0, 16.0],
            polygon: vec![[8.0, 8.0], [16.0, 8.0], [16.0, 16.0], [8.0, 16.0]],
            keypoints: vec![[8.0, 16.0, 2.0], [32.0, 64.0, 0.0]],
        };
        let large = Object {
            class: 2,
            corners: [0.0, 0.0, 64.0, 32.0],
            polygon: vec![[0.0, 0.0], [64.0, 0.0], [64.0, 32.0], [0.0, 32.0]],
            keypoints: vec![[0.0; 3]; 2],
        };
        vec![small, large]
    }

    #[test]
    fn masks_and_rows_have_the_same_order_the_largest_first() {
        let mut targets = empty(Task::Segment, 2, (64, 64));
        push(&mut targets, Task::Segment, 0, &[], (64, 64));
        push(&mut targets, Task::Segment, 1, &objects(), (64, 64));
        assert_eq!(
            (&targets.class[..], &targets.image[..]),
            (&[2, 1][..], &[1, 1][..])
        );
        let maps = targets.masks.unwrap();
        assert!(maps.image(0).iter().all(|&index| index == 0));
        assert_eq!((maps.image(1)[0], maps.image(1)[2 * 16 + 2]), (1, 2));
        assert_eq!(targets.boxes[1], [0.1875, 0.1875, 0.125, 0.125]);
    }

    #[test]
    fn turned_boxes_have_their_longer_side_as_width() {
        let mut targets = empty(Task::Obb, 1, (64, 64));
        push(&mut targets, Task::Obb, 0, &objects(), (64, 64));
        assert_eq!(targets.boxes[1], [0.5, 0.25, 1.0, 0.5]);
        assert_eq!(targets.angles.len(), 2);
        assert_eq!(targets.angles[1], 0.0);
    }

    #[test]
    fn keypoints_are_fractions_and_keep_their_visibility() {
        let mut targets = empty(Task::Pose, 1, (64, 64));
        push(&mut targets, Task::Pose, 0, &objects(), (64, 64));
        assert_eq!(
            targets.keypoints_of(0, 2),
            [[0.125, 0.25, 2.0], [0.5, 1.0, 0.0]]
        );
        assert_eq!(targets.len(), 2);
    }

    #[test]
    fn a_whole_picture_has_a_label_and_no_row() {
        let mut targets = empty(Task::Classify, 1, (64, 64));
        push(&mut targets, Task::Classify, 0, &objects()[..1], (64, 64));
        assert_eq!((&targets.labels[..], targets.len()), (&[1][..], 0));
    }
}

//! Batches: what is in them, that they depend on nothing else, and how bad pictures are met.

use super::validation::plan_frames;
use super::*;
use crate::data::augment::{Augmentation, AutoAugment};
use crate::data::cache::CacheOptions;
use crate::data::{Label, Source, testing};
use crate::models::Task;

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
        task: Task::Detect,
        seed: 11,
        size: 64,
        multi_scale: 0.0,
        batch: 3,
        augmentation: Augmentation::default(),
        close_mosaic_at: 2,
        strictness: Strictness::Refuse,
        cache: CacheOptions::Ram {
            limit_bytes: cache_bytes,
        },
    }
}

fn validation(task: Task) -> ValidationOptions {
    ValidationOptions {
        task,
        split: Split::Val,
        size: 64,
        batch: 2,
        strictness: Strictness::Refuse,
        cache: CacheOptions::None,
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
    let batches = ValidationBatches::new(dataset(), validation(Task::Detect)).unwrap();
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

/// The most that pictures can be changed.
const EVERYTHING: Augmentation = Augmentation {
    degrees: 20.0,
    shear: 5.0,
    perspective: 0.0005,
    flipud: 0.5,
    bgr: 0.2,
    mosaic: 0.7,
    mixup: 0.5,
    cutmix: 0.5,
    copy_paste: 0.5,
    ..DEFAULT
};
const DEFAULT: Augmentation = Augmentation {
    hsv_h: 0.015,
    hsv_s: 0.7,
    hsv_v: 0.4,
    translate: 0.1,
    scale: 0.5,
    fliplr: 0.5,
    erasing: 0.4,
    auto_augment: AutoAugment::RandAugment,
    ..Augmentation::NONE
};

/// Archive, task, folder or YAML.
const SETS: [(&str, Task); 5] = [
    ("bccd-yolo.zip", Task::Detect),
    ("nuts-yolo-seg.zip", Task::Segment),
    ("mouse-yolo-pose.zip", Task::Pose),
    ("nuts-yolo-obb.zip", Task::Obb),
    ("clothing-cls.zip", Task::Classify),
];

#[test]
fn real_data_of_every_task_makes_sound_batches_that_depend_on_nothing_else() {
    for (archive, task) in SETS {
        let Some(folder) = testing::unpacked(archive) else {
            return;
        };
        let (dataset, _) = crate::data::open(folder.path(), Strictness::Refuse).unwrap();
        dataset.check_task(task).unwrap();
        let dataset = Arc::new(dataset);
        let options = TrainingOptions {
            task,
            size: 160,
            batch: 6,
            augmentation: EVERYTHING,
            ..options(u64::MAX)
        };
        let batches = TrainingBatches::new(Arc::clone(&dataset), options.clone());
        let again = TrainingBatches::new(
            Arc::clone(&dataset),
            TrainingOptions {
                cache: CacheOptions::None,
                ..options
            },
        );
        let mut objects = 0;
        for (epoch, number) in [(0, 0), (1, 1), (2, 0)] {
            let batch = batches.batch(epoch, number).unwrap();
            assert_eq!(batch, again.batch(epoch, number).unwrap(), "{archive}");
            objects += check_targets(&batch, task, &dataset);
        }
        assert!(objects > 0, "{archive}");
        let validation = ValidationBatches::new(Arc::clone(&dataset), validation(task)).unwrap();
        assert!(check_targets(&validation.batch(0).unwrap(), task, &dataset) > 0);
    }
}

/// Checks that targets fit their batch; returns how many there are.
fn check_targets(batch: &Batch, task: Task, dataset: &Dataset) -> usize {
    let targets = &batch.targets;
    assert_eq!(
        batch.images.len(),
        batch.count * batch.height * batch.width * 3
    );
    assert_eq!(targets.batch, batch.count);
    let classes = targets.class.iter().chain(&targets.labels);
    assert!(
        classes
            .into_iter()
            .all(|&class| (class as usize) < dataset.classes.len())
    );
    let rows = targets.len();
    if task != Task::Obb {
        for [x, y, width, height] in &targets.boxes {
            assert!(*width > 0.0 && *height > 0.0);
            assert!(x - width / 2.0 > -0.02 && x + width / 2.0 < 1.02);
            assert!(y - height / 2.0 > -0.02 && y + height / 2.0 < 1.02);
        }
    }
    let is_of = |wanted: Task| usize::from(task == wanted);
    assert_eq!(targets.angles.len(), rows * is_of(Task::Obb));
    assert_eq!(targets.labels.len(), batch.count * is_of(Task::Classify));
    let points = dataset
        .keypoints
        .as_ref()
        .map_or(0, |layout| layout.shape.count);
    assert_eq!(targets.keypoints.len(), rows * points * is_of(Task::Pose));
    for [x, y, visibility] in &targets.keypoints {
        let is_inside = (0.0..=1.0).contains(x) && (0.0..=1.0).contains(y);
        assert!(is_inside || *visibility == 0.0);
    }
    assert_eq!(targets.masks.is_some(), task == Task::Segment);
    if let Some(maps) = &targets.masks {
        assert_eq!(
            (maps.width * 4, maps.height * 4),
            (batch.width, batch.height)
        );
        for image in 0..batch.count {
            let count = targets
                .image
                .iter()
                .filter(|&&of| of as usize == image)
                .count();
            let highest = maps.image(image).iter().max().copied().unwrap_or(0);
            assert!(usize::from(highest) <= count);
            // A mask lies in its box.
            let first = targets.image.iter().position(|&of| of as usize == image);
            for (pixel, &index) in maps
                .image(image)
                .iter()
                .enumerate()
                .filter(|(_, index)| **index > 0)
            {
                let [x, y, width, height] = targets.boxes[first.unwrap() + usize::from(index) - 1];
                let column = (pixel % maps.width) as f32 + 0.5;
                let row = (pixel / maps.width) as f32 + 0.5;
                let away = |place: f32, side: usize, middle: f32, span: f32| {
                    (place / side as f32 - middle).abs() - span / 2.0
                };
                assert!(away(column, maps.width, x, width) < 1.0 / maps.width as f32);
                assert!(away(row, maps.height, y, height) < 1.0 / maps.height as f32);
            }
        }
    }
    rows + targets.labels.len()
}

#[test]
fn sides_vary_by_whole_cells_within_the_reach() {
    let multi_scale = TrainingOptions {
        size: 160,
        multi_scale: 0.5,
        ..options(0)
    };
    let batches = TrainingBatches::new(dataset(), multi_scale);
    assert_eq!(batches.sides(), 96..=256);
    let sides: Vec<usize> = (0..60).map(|epoch| batches.side_of(epoch, 0)).collect();
    for side in [96, 128, 160, 192, 224, 256] {
        assert!(sides.contains(&side), "{side}");
    }
    assert!(
        sides
            .iter()
            .all(|side| side % 32 == 0 && (96..=256).contains(side))
    );
    let epoch = (0..60)
        .find(|&epoch| batches.side_of(epoch, 0) != 160)
        .unwrap();
    let batch = batches.batch(epoch, 0).unwrap();
    assert_eq!(batch.width, batches.side_of(epoch, 0));
    assert_eq!(batch.images.len(), 3 * batch.width * batch.width * 3);
    assert_eq!(TrainingBatches::new(dataset(), options(0)).sides(), 64..=64);
}

#[test]
fn the_last_epochs_may_be_moved_while_a_run_goes_on() {
    let batches = TrainingBatches::new(dataset(), options(0));
    batches.close_mosaic_at(0);
    for index in 0..7 {
        assert!(batches.scene(1, index).unwrap().objects.len() <= 1);
    }
}

#[test]
fn ten_thousand_objects_one_class_and_one_picture_make_a_batch() {
    let mut crowded = sample(0, 320, 320);
    crowded.labels = (0..10_000)
        .map(|index| {
            let (x, y) = ((index % 100) as f32, (index / 100) as f32);
            let (left, top) = (x / 100.0, y / 100.0);
            let mut label = Label::boxed(0, [left + 0.005, top + 0.005, 0.01, 0.01]);
            label.polygon = vec![[left, top], [left + 0.01, top], [left + 0.01, top + 0.01]];
            label
        })
        .collect();
    let dataset = Arc::new(Dataset {
        classes: vec!["a".into()],
        train: vec![crowded.clone()],
        val: vec![crowded],
        ..Dataset::default()
    });
    for task in [Task::Detect, Task::Segment, Task::Obb] {
        dataset.check_task(task).unwrap();
        let options = TrainingOptions {
            task,
            size: 640,
            augmentation: EVERYTHING,
            ..options(0)
        };
        let batches = TrainingBatches::new(Arc::clone(&dataset), options);
        assert!(batches.batch(0, 0).unwrap().targets.len() > 100);
        let validation = ValidationOptions {
            size: 640,
            ..validation(task)
        };
        let batches = ValidationBatches::new(Arc::clone(&dataset), validation).unwrap();
        assert_eq!(batches.batch(0).unwrap().targets.len(), 10_000);
    }
}

#[test]
fn a_broken_picture_to_classify_is_replaced_by_the_next_with_its_class() {
    let mut broken = (*dataset()).clone();
    broken.train[4].source = Source::Bytes((*b"\xFF\xD8\xFFoops").into());
    let options = TrainingOptions {
        task: Task::Classify,
        strictness: Strictness::LeaveOut,
        augmentation: Augmentation::NONE,
        ..options(0)
    };
    let batches = TrainingBatches::new(Arc::new(broken), options);
    let order = (0..3).map(|number| batches.batch(0, number).unwrap());
    for batch in order {
        for (sample, label) in batch.samples.iter().zip(&batch.targets.labels) {
            assert_eq!(*label, if *sample == 4 { 1 } else { sample % 2 });
        }
    }
    assert_eq!(batches.unreadable().len(), 1);
}

#[test]
fn a_data_set_is_refused_by_the_tasks_it_lacks_something_for() {
    let boxes = dataset();
    let refused = |dataset: &Dataset, task| dataset.check_task(task).unwrap_err().to_string();
    boxes.check_task(Task::Detect).unwrap();
    assert!(refused(&boxes, Task::Segment).starts_with("0.png: 1 of 1 objects are boxes"));
    assert!(refused(&boxes, Task::Obb).contains("without an outline"));
    assert!(refused(&boxes, Task::Pose).contains("kpt_shape is missing"));
    assert!(refused(&boxes, Task::Classify).contains("folder of pictures"));
    let mut few = (*boxes).clone();
    few.classes.truncate(1);
    assert!(refused(&few, Task::Detect).contains("class 1 is not in the data set"));
    let mut whole = (*boxes).clone();
    whole.is_classification = true;
    assert!(refused(&whole, Task::Detect).contains("not where"));
    let single = few.with_single_class();
    single.check_task(Task::Detect).unwrap();
    assert_eq!((single.class_counts(), single.classes.len()), (vec![7], 1));
    assert_eq!(boxes.class_counts(), [4, 3]);
}

#[test]
fn pictures_without_objects_make_batches_without_targets() {
    let mut empty = (*dataset()).clone();
    for sample in &mut empty.train {
        sample.labels.clear();
    }
    for task in [Task::Detect, Task::Segment, Task::Obb] {
        let options = TrainingOptions {
            task,
            augmentation: EVERYTHING,
            ..options(0)
        };
        let batches = TrainingBatches::new(Arc::new(empty.clone()), options);
        assert!(batches.batch(0, 0).unwrap().targets.is_empty());
    }
}

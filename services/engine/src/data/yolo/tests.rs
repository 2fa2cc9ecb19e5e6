//! Data sets in the YOLO layout: what is read, what is refused and in which words.

use std::fs;

use super::*;

fn write_image(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image::RgbImage::new(32, 16).save(path).unwrap();
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Two training images, one of them without labels, and one validation image.
fn small_set(yaml: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for name in ["train/b", "train/a", "val/v"] {
        write_image(&root.join(format!("images/{name}.png")));
    }
    write(&root.join("labels/train/a.txt"), "0 .5 .5 .2 .2\n");
    write(&root.join("labels/val/v.txt"), "1 .5 .5 .2 .2\n");
    write(&root.join("data.yaml"), yaml);
    folder
}

const PLAIN: &str = "train: images/train\nval: images/val\nnames: {0: cat, 1: dog}\n";

#[test]
fn a_plain_set_is_read_sorted_with_its_backgrounds() {
    let folder = small_set(PLAIN);
    let (dataset, report) = open(folder.path(), Strictness::Refuse).unwrap();
    assert_eq!(dataset.classes, ["cat", "dog"]);
    let names: Vec<_> = dataset
        .train
        .iter()
        .map(|sample| &sample.name[..])
        .collect();
    assert_eq!(names, ["images/train/a.png", "images/train/b.png"]);
    assert_eq!((dataset.val.len(), dataset.test.len()), (1, 0));
    assert_eq!((report.images, report.unlabelled), (3, 1));
}

#[test]
fn names_may_be_a_list_or_only_a_count() {
    for (yaml, classes) in [
        ("names: [yes, 'no']", ["yes", "no"]),
        ("nc: 2", ["class_0", "class_1"]),
        ("nc: 2\nnames: [7, true]", ["7", "true"]),
    ] {
        let folder = small_set(&format!("train: images/train\nval: images/val\n{yaml}\n"));
        let (dataset, _) = open(folder.path(), Strictness::Refuse).unwrap();
        assert_eq!(dataset.classes, classes);
    }
}

#[test]
fn entries_may_be_lists_of_files_or_paths_of_another_machine() {
    let folder = small_set(
        "path: /somewhere/else\ntrain: train.txt\nval: ../other/images/val\nnames: [cat, dog]\n",
    );
    write(
        &folder.path().join("train.txt"),
        "./images/train/a.png\nimages/train/b.png\n\n",
    );
    let (dataset, report) = open(&folder.path().join("data.yaml"), Strictness::Refuse).unwrap();
    assert_eq!((dataset.train.len(), dataset.val.len()), (2, 1));
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
}

#[test]
fn a_bad_description_is_refused_with_the_rule() {
    for (yaml, rule) in [
        ("train: images/train\nnames: [a, b]", "val is missing"),
        (
            "train: images/train\nval: images/val",
            "names (or nc) is missing",
        ),
        (
            "train: images/train\nval: images/val\nnc: 5\nnames: [a, b]",
            "nc is 5 and names holds 2",
        ),
        (
            "train: nowhere\nval: images/val\nnames: [a, b]",
            "there is no 'nowhere'",
        ),
        (
            "train: labels\nval: images/val\nnames: [a, b]",
            "no usable image",
        ),
        (
            "train: images/train\nval: images/val\nnames: {0: a, 2: b}",
            "without gaps",
        ),
        ("train: [\n", "not valid YAML"),
    ] {
        let folder = small_set(yaml);
        let error = open(folder.path(), Strictness::Refuse)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(rule) && error.contains("data.yaml"),
            "{yaml}: {error}"
        );
    }
}

#[test]
fn a_bad_row_refuses_the_set_or_is_left_out_alone() {
    let folder = small_set(PLAIN);
    write(
        &folder.path().join("labels/train/b.txt"),
        "0 .5 .5 .2 .2\n7 .5 .5 .2 .2\n",
    );
    let error = open(folder.path(), Strictness::Refuse)
        .unwrap_err()
        .to_string();
    let place = "labels/train/b.txt:2: class 7 is not in the data set";
    assert!(error.starts_with(place), "{error}");
    let (dataset, report) = open(folder.path(), Strictness::LeaveOut).unwrap();
    assert_eq!(dataset.train[1].labels.len(), 1);
    assert_eq!(report.rows_left_out[0].0, "labels/train/b.txt:2");
    assert!(report.left_out.is_empty());
}

#[test]
fn an_image_without_one_good_row_is_left_out_and_no_background() {
    let folder = small_set(PLAIN);
    write(&folder.path().join("labels/train/b.txt"), "7 .5 .5 .2 .2\n");
    let (dataset, report) = open(folder.path(), Strictness::LeaveOut).unwrap();
    assert_eq!(dataset.train.len(), 1);
    assert_eq!(report.left_out[0].0, "labels/train/b.txt:1");
    assert!(
        report.left_out[0]
            .1
            .contains("no row of the file can be used")
    );
}

#[test]
fn keypoints_are_described_once_for_all_objects() {
    let yaml = format!(
        "{PLAIN}kpt_shape: [3, 2]\nflip_idx: [0, 2, 1]\nkpt_oks_sigmas: [.1, .2, .3]\nkpt_names: {{0: [a, b, c]}}\n"
    );
    let folder = small_set(&yaml);
    write(
        &folder.path().join("labels/train/a.txt"),
        "0 .5 .5 .2 .2 .4 .4 .5 .5 .6 .6\n",
    );
    write(&folder.path().join("labels/val/v.txt"), "");
    let (dataset, _) = open(folder.path(), Strictness::Refuse).unwrap();
    let layout = dataset.keypoints.unwrap();
    assert_eq!((layout.shape.count, layout.shape.dims), (3, 2));
    assert_eq!(layout.flip, Some(vec![0, 2, 1]));
    assert_eq!(
        (&layout.sigmas[..], layout.names.len()),
        (&[0.1, 0.2, 0.3][..], 3)
    );
    let points = &dataset.train[0].labels[0].keypoints;
    assert_eq!(
        points[..],
        [[0.4, 0.4, 1.0], [0.5, 0.5, 1.0], [0.6, 0.6, 1.0]]
    );
    for (line, rule) in [
        ("kpt_shape: [3]", "kpt_shape is"),
        ("kpt_shape: [3, 4]", "kpt_shape is"),
        ("kpt_shape: [3, 3]\nflip_idx: [1, 2, 0]", "pairs"),
        ("kpt_shape: [3, 3]\nflip_idx: [0, 1]", "3 numbers"),
        ("kpt_shape: [3, 3]\nkpt_oks_sigmas: [1, 0, 1]", "above 0"),
    ] {
        let folder = small_set(&format!("{PLAIN}{line}\n"));
        let error = open(folder.path(), Strictness::Refuse)
            .unwrap_err()
            .to_string();
        assert!(error.contains(rule), "{line}: {error}");
    }
}

/// Archive, images of the three splits, objects of the three splits.
type RealSet = (&'static str, [usize; 3], [usize; 3]);

#[test]
fn real_data_sets_of_every_task_are_read_whole() {
    let sets: [RealSet; 4] = [
        ("bccd-yolo.zip", [205, 87, 72], [2804, 1137, 945]),
        ("nuts-yolo-seg.zip", [12, 3, 3], [120, 14, 31]),
        ("nuts-yolo-obb.zip", [12, 3, 3], [120, 14, 31]),
        ("mouse-yolo-pose.zip", [85, 23, 8], [85, 23, 8]),
    ];
    for (archive, images, objects) in sets {
        let Some(folder) = crate::data::testing::unpacked(archive) else {
            return;
        };
        let (dataset, report) = open(folder.path(), Strictness::Refuse).unwrap();
        let splits = [&dataset.train, &dataset.val, &dataset.test];
        assert_eq!(splits.map(Vec::len), images, "{archive}");
        let count = |samples: &Vec<Sample>| -> usize {
            samples.iter().map(|sample| sample.labels.len()).sum()
        };
        let seen = splits.map(count);
        assert_eq!(
            seen.iter().sum::<usize>() + report.duplicates,
            objects.iter().sum::<usize>(),
            "{archive}"
        );
        let mut labels = splits
            .into_iter()
            .flatten()
            .flat_map(|sample| &sample.labels);
        let (polygon, keypoints) = match archive {
            "nuts-yolo-seg.zip" => (3..usize::MAX, 0),
            "nuts-yolo-obb.zip" => (4..5, 0),
            "mouse-yolo-pose.zip" => (0..1, 4),
            _ => (0..1, 0),
        };
        assert!(labels.all(|label| {
            polygon.contains(&label.polygon.len()) && label.keypoints.len() == keypoints
        }));
    }
}

#[test]
fn an_unreadable_image_is_left_out_or_refuses_the_set() {
    let folder = small_set(PLAIN);
    write(&folder.path().join("images/train/c.jpg"), "hello");
    let error = open(folder.path(), Strictness::Refuse)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "images/train/c.jpg: not an image");
    let (dataset, _) = open(folder.path(), Strictness::LeaveOut).unwrap();
    assert_eq!(dataset.train.len(), 2);
}

#[test]
fn odd_data_sets_are_read_or_refused_in_words() {
    let Some(expected) = crate::data::testing::shared_file("hard/expected.json") else {
        return;
    };
    let cases: Vec<serde_json::Value> = serde_json::from_slice(&expected).unwrap();
    let mut seen = 0;
    for case in cases {
        let file = case["file"].as_str().unwrap_or_default();
        if !file.starts_with("yaml/") && !file.starts_with("yolo/") {
            continue;
        }
        let folder = crate::data::testing::unpacked(&format!("hard/{file}")).unwrap();
        match open(folder.path(), Strictness::LeaveOut) {
            Ok((dataset, report)) => {
                assert_ne!(case["verdict"], "REJECT", "{file}");
                let samples = [&dataset.train, &dataset.val, &dataset.test];
                let samples = samples.into_iter().flatten();
                let kept = samples.clone().count();
                assert_eq!(report.images, kept + report.left_out.len(), "{file}");
                if file.starts_with("yolo/") {
                    let objects = samples.map(|sample| sample.labels.len()).sum::<usize>();
                    let others = case["also_ok"].as_array().into_iter().flatten();
                    let is_right = std::iter::once(&case)
                        .chain(others)
                        .any(|right| right["images"] == kept && right["annotations"] == objects);
                    // The only row there has another number of keypoints: without it the image is no background.
                    let is_right = is_right || file.contains("kpt-mismatch") && kept == 3;
                    assert!(is_right, "{file}: {kept} images, {objects} objects");
                }
            }
            Err(error) => {
                println!("{file} ({}): {error}", case["verdict"]);
                assert!(!file.starts_with("yolo/"), "{file}: {error}");
            }
        }
        seen += 1;
    }
    assert!(seen > 40, "{seen} cases");
}

#[test]
fn only_the_last_images_folder_becomes_labels() {
    let path = |text: &str| label_path(Path::new(text)).to_string_lossy().into_owned();
    assert_eq!(
        path("/images/set/images/train/a.b.jpg"),
        "/images/set/labels/train/a.b.txt"
    );
    assert_eq!(path("flat/a.jpg"), "flat/a.txt");
    assert_eq!(path("flat/images"), "flat/images.txt");
}

//! Average precisions against COCO's own tool, on the same made-up detections: boxes of every size, and keypoints.
//!
//! It runs where `python3` imports pycocotools; with `FOVEA_TEST_PYCOCOTOOLS` set it installs it in a throw-away
//! environment first. Else it says *skipped*.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test that can't go on fails, its figures are read by people, and the environment says where Python is"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use engine::metrics::{
    DetectMetrics, DetectReport, Detection, Interpolation, Label, Scored, Truth,
    keypoint_similarity,
};
use serde_json::{Value, json};

const IMAGES: u64 = 60;
const CLASSES: usize = 5;
const KEYPOINTS: usize = 4;
const SIGMA: f64 = 0.08;
const LIMIT: f64 = 1e-4;

/// Numbers that are always the same.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * (self.next() % (1 << 24)) as f32 / (1 << 24) as f32
    }
}

/// One picture with what is there and what was found.
#[derive(Default)]
struct Picture {
    labels: Vec<Label>,
    detections: Vec<Detection>,
    /// Keypoints of the labels and of the detections.
    poses: Vec<Vec<[f32; 3]>>,
    found_poses: Vec<Vec<[f32; 3]>>,
}

fn pictures() -> Vec<Picture> {
    let mut stream = Stream(12);
    (0..IMAGES).map(|_| picture(&mut stream)).collect()
}

fn picture(stream: &mut Stream) -> Picture {
    let mut picture = Picture::default();
    let mut found = Vec::new();
    for _ in 0..stream.below(9) {
        let side = |stream: &mut Stream| {
            let size = stream.between(0.0, 1.0);
            6.0 + 250.0 * size * size
        };
        let (width, height) = (side(stream), side(stream));
        let (x, y) = (stream.between(0.0, 380.0), stream.between(0.0, 380.0));
        let class = stream.below(CLASSES as u64) as u32;
        let bounds = [x, y, x + width, y + height];
        let pose: Vec<_> = (0..KEYPOINTS)
            .map(|_| {
                let at = [stream.between(x, x + width), stream.between(y, y + height)];
                [at[0], at[1], stream.below(3) as f32]
            })
            .collect();
        for _ in 0..stream.below(4) {
            let blur = stream.between(0.0, 0.3);
            let moved =
                |stream: &mut Stream, at: f32, side: f32| at + stream.between(-blur, blur) * side;
            let detection = Detection {
                bounds: std::array::from_fn(|k| {
                    moved(stream, bounds[k], if k % 2 == 0 { width } else { height })
                }),
                score: stream.between(0.0, 1.0 - 2.0 * blur),
                class: if stream.below(8) == 0 {
                    stream.below(CLASSES as u64) as u32
                } else {
                    class
                },
                index: 0,
            };
            let pose = pose
                .iter()
                .map(|[x, y, _]| [moved(stream, *x, width), moved(stream, *y, height), 1.0]);
            found.push((detection, pose.collect()));
        }
        picture.labels.push(Label { bounds, class });
        picture.poses.push(pose);
    }
    found.sort_by(|a, b| b.0.score.total_cmp(&a.0.score));
    (picture.detections, picture.found_poses) = found.into_iter().unzip();
    picture
}

/// Returns a Python with pycocotools, or says why there is none. The folder is where one may be installed.
fn python(folder: &Path) -> Option<PathBuf> {
    let imports = |python: &Path| {
        let ran = Command::new(python)
            .args(["-c", "import pycocotools.cocoeval"])
            .output();
        ran.is_ok_and(|output| output.status.success())
    };
    let system = PathBuf::from("python3");
    if imports(&system) {
        return Some(system);
    }
    if std::env::var_os("FOVEA_TEST_PYCOCOTOOLS").is_none() {
        println!("skipped: python3 has no pycocotools, and FOVEA_TEST_PYCOCOTOOLS is not set");
        return None;
    }
    let venv = folder.join("venv");
    let made = Command::new(system)
        .args(["-m", "venv"])
        .arg(&venv)
        .status();
    let python = venv.join("bin/python");
    let installed = made.is_ok_and(|status| status.success())
        && Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "pycocotools"])
            .status()
            .is_ok_and(|status| status.success());
    assert!(
        installed && imports(&python),
        "pycocotools can't be installed"
    );
    Some(python)
}

/// Returns the tool's average precisions by area, class and overlap.
fn judged(pictures: &[Picture], kind: &str) -> Option<Vec<Vec<Option<Vec<f64>>>>> {
    let folder = tempfile::tempdir().unwrap();
    let python = python(folder.path())?;
    let bounds = |[x1, y1, x2, y2]: [f32; 4]| {
        let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(f64::from);
        [x1, y1, x2 - x1, y2 - y1]
    };
    let (mut annotations, mut detections) = (Vec::new(), Vec::new());
    for (image, picture) in pictures.iter().enumerate() {
        for (label, pose) in picture.labels.iter().zip(&picture.poses) {
            let [x, y, width, height] = bounds(label.bounds);
            let share = if kind == "keypoints" { 0.53 } else { 1.0 };
            let visible = pose.iter().filter(|point| point[2] > 0.0).count();
            annotations.push(json!({
                "id": annotations.len() + 1,
                "image_id": image,
                "category_id": label.class,
                "bbox": [x, y, width, height],
                "area": share * width * height,
                "iscrowd": 0,
                "num_keypoints": visible,
                "keypoints": pose.concat(),
            }));
        }
        for (found, pose) in picture.detections.iter().zip(&picture.found_poses) {
            let mut detection = json!({
                "image_id": image,
                "category_id": found.class,
                "score": found.score,
            });
            if kind == "keypoints" {
                detection["keypoints"] = json!(pose.concat());
            } else {
                detection["bbox"] = json!(bounds(found.bounds));
            }
            detections.push(detection);
        }
    }
    let task = json!({
        "kind": kind,
        "sigmas": vec![SIGMA; KEYPOINTS],
        "dataset": {
            "images": (0..pictures.len()).map(|id| json!({"id": id})).collect::<Vec<Value>>(),
            "categories": (0..CLASSES).map(|id| json!({"id": id})).collect::<Vec<Value>>(),
            "annotations": annotations,
            "info": {},
        },
        "detections": detections,
    });
    let file = folder.path().join("task.json");
    std::fs::write(&file, task.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/coco/judge.py");
    let ran = Command::new(python).arg(script).arg(file).output().unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    Some(serde_json::from_slice(&ran.stdout).unwrap())
}

fn metrics() -> DetectMetrics {
    DetectMetrics::new(CLASSES).with_interpolation(Interpolation::Coco)
}

/// Returns the largest difference over all classes and overlaps.
fn compare_classes(report: &DetectReport, judged: &[Option<Vec<f64>>]) -> f64 {
    let mut worst = 0.0f64;
    for class in &report.classes {
        let Some(expected) = &judged[class.class as usize] else {
            panic!("the tool sees no object of class {}", class.class);
        };
        for (found, expected) in class.average_precision.iter().zip(expected) {
            worst = worst.max((found - expected).abs());
        }
    }
    worst
}

#[test]
fn boxes_score_as_in_cocos_own_tool() {
    let pictures = pictures();
    let Some(judged) = judged(&pictures, "bbox") else {
        return;
    };
    let mut metrics = metrics();
    for picture in &pictures {
        metrics.add(&picture.detections, &picture.labels);
    }
    let report = metrics.report();
    assert_eq!(report.classes.len(), CLASSES);
    let mut worst = compare_classes(&report, &judged[0]);
    for (size, judged) in report.sizes.iter().zip(&judged[1..]) {
        let seen: Vec<_> = judged.iter().flatten().collect();
        let mean = |number: fn(&Vec<f64>) -> f64| {
            seen.iter().map(|class| number(class)).sum::<f64>() / seen.len() as f64
        };
        let expected = [
            mean(|class| class[0]),
            mean(|class| class.iter().sum::<f64>() / 10.0),
        ];
        assert!(expected[0] > 0.1, "there are objects of each size");
        for (found, expected) in [size.map50, size.map50_95].iter().zip(expected) {
            worst = worst.max((found - expected).abs());
        }
    }
    println!(
        "boxes: mAP50-95 {:.4}, largest difference {worst:.1e}",
        report.map50_95
    );
    assert!(report.map50_95 > 0.1 && worst < LIMIT, "{worst}");
}

#[test]
fn keypoints_score_as_in_cocos_own_tool() {
    let mut pictures = pictures();
    // The tool ignores poses without a visible keypoint, and takes at most 20 detections.
    for picture in &mut pictures {
        for pose in &mut picture.poses {
            pose[0][2] = 2.0;
        }
        picture.detections.truncate(20);
        picture.found_poses.truncate(20);
    }
    let Some(judged) = judged(&pictures, "keypoints") else {
        return;
    };
    let spreads = [2.0 * (2.0 * SIGMA).powi(2); KEYPOINTS];
    let mut metrics = metrics();
    for picture in &pictures {
        let objects: Vec<Scored> = picture.detections.iter().map(Detection::scored).collect();
        let truths: Vec<Truth> = picture.labels.iter().map(Label::truth).collect();
        metrics.add_by(&objects, &truths, |label, found| {
            keypoint_similarity(
                &picture.poses[label],
                &picture.found_poses[found],
                &spreads,
                truths[label].area,
            )
        });
    }
    let report = metrics.report();
    let worst = compare_classes(&report, &judged[0]);
    println!(
        "keypoints: mAP50-95 {:.4}, largest difference {worst:.1e}",
        report.map50_95
    );
    assert!(report.map50_95 > 0.1 && worst < LIMIT, "{worst}");
}

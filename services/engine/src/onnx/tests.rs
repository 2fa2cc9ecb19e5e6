//! The ONNX file: read back, and run by ONNX Runtime against our own forward.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::checkpoint::files;
use crate::data::decode;
use crate::data::letterbox::Letterbox;
use crate::graph::{Convolution, Op};
use crate::metrics::{Detector, NmsOptions, nms};
use crate::network::{Images, Network};
use crate::parallel::Threads;
use crate::random::{Philox, Use};

const SIZE: usize = 64;

fn spec() -> ModelSpec {
    ModelSpec::parse("yolo11n", 3).unwrap()
}

fn options() -> ExportOptions {
    ExportOptions {
        height: SIZE,
        width: SIZE + 32,
        dynamic_batch: false,
        branches: Branches::default(),
        class_names: ["cat", "it's", "dog"].map(String::from).to_vec(),
        description: "a test".into(),
        date: "2026-01-01T00:00:00Z".into(),
    }
}

/// Weights whose norms scale and shift, with the statistics that real pictures give: without those, values fade or
/// explode on the way through and nothing is compared.
fn lively_state(spec: &ModelSpec) -> State {
    const FORWARDS: usize = 100;
    let mut state = models::initialise(spec, 5);
    let mut stream = Philox::new(5, 0, 0, Use::Test);
    let graph = models::graph(spec);
    for node in &graph.nodes {
        let Op::Convolution(Convolution {
            norm: Some(norm), ..
        }) = node.op
        else {
            continue;
        };
        for (index, low, high) in [(norm.weight, 0.8, 1.4), (norm.bias, -0.3, 0.3)] {
            for value in &mut state.parameters[graph.parameters[index].range()] {
                *value = stream.between(low, high) as f32;
            }
        }
    }
    let threads = Threads::new(2).unwrap();
    let mut network = Network::train(spec, InputShape::square(2, 64), &threads).unwrap();
    let images: Vec<f32> = (0..2 * 64 * 64 * 3).map(|_| stream.uniform_f32()).collect();
    for _ in 0..FORWARDS {
        network.forward(&mut state, Images::F32(&images));
    }
    state
}

/// Runs a model in ONNX Runtime on `images` (batch, 3, height, width) and returns its first output, or says why not.
pub fn run_onnx(
    model: &[u8],
    images: &[f32],
    sides: [usize; 3],
) -> Option<(serde_json::Value, Vec<f32>)> {
    let (told, mut outputs) = run_all(model, images, sides)?;
    Some((told, outputs.swap_remove(0)))
}

/// As [`run_onnx`], with every output.
fn run_all(
    model: &[u8],
    images: &[f32],
    sides: [usize; 3],
) -> Option<(serde_json::Value, Vec<Vec<f32>>)> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/onnx-venv.sh");
    let made = Command::new("sh").arg(script).output();
    let python = match made {
        Ok(made) if made.status.success() => String::from_utf8(made.stdout).unwrap(),
        Ok(made) => {
            println!("skipped: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Err(error) => {
            println!("skipped: no shell: {error}");
            return None;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("model.onnx"), model).unwrap();
    std::fs::write(path("check.py"), include_str!("check.py")).unwrap();
    let bytes: Vec<u8> = images
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    std::fs::write(path("input"), bytes).unwrap();
    let ran = Command::new(Path::new(python.trim()))
        .args([
            path("check.py"),
            path("model.onnx"),
            path("input"),
            path("output"),
        ])
        .args(sides.map(|side| side.to_string()))
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let outputs = (0..told["outputs"].as_array().unwrap().len()).map(|index| {
        let bytes = std::fs::read(path(&format!("output{index}"))).unwrap();
        let (values, _) = bytes.as_chunks::<4>();
        values
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect()
    });
    let outputs = outputs.collect();
    Some((told, outputs))
}

/// Returns one RGB picture's samples channel by channel.
pub fn planes(rows: &[f32]) -> Vec<f32> {
    let channel = |channel: usize| rows.iter().skip(channel).step_by(3).copied();
    (0..3).flat_map(channel).collect()
}

#[test]
fn onnx_runtime_loads_the_file_and_reads_its_metadata() {
    let options = ExportOptions {
        dynamic_batch: true,
        ..options()
    };
    let model = export(&spec(), &lively_state(&spec()), &options).unwrap();
    let sides = [2, options.height, options.width];
    let images = vec![0.5; 2 * 3 * options.height * options.width];
    let Some((told, output)) = run_onnx(&model, &images, sides) else {
        return;
    };
    let anchors = [8, 16, 32]
        .map(|stride| (64 / stride) * (96 / stride))
        .iter()
        .sum::<usize>();
    assert_eq!(told["shapes"], serde_json::json!([[2, 7, anchors]]));
    assert_eq!(told["names"], r#"{0: 'cat', 1: "it's", 2: 'dog'}"#);
    assert_eq!(told["imgsz"], "[64, 96]");
    assert_eq!(
        (&told["task"], &told["stride"]),
        (&"detect".into(), &"32".into())
    );
    assert!(output.iter().all(|value| value.is_finite()));
    let (first, second) = output.split_at(output.len() / 2);
    assert_eq!(first, second, "equal pictures give equal results");
}

/// A model in ONNX Runtime and in our own engine, on the same picture.
struct Compared {
    name: String,
    network: Network,
    told: serde_json::Value,
    outputs: Vec<Vec<f32>>,
}

/// Runs a model on both sides; nothing where there is no ONNX Runtime.
fn both_sides(name: &str, branches: Branches) -> Option<Compared> {
    let spec = ModelSpec::parse(name, 3).unwrap();
    let state = lively_state(&spec);
    let options = ExportOptions {
        branches,
        ..options()
    };
    let (height, width) = (options.height, options.width);
    let mut stream = Philox::new(1, 0, 0, Use::Test);
    let rows: Vec<f32> = (0..height * width * 3)
        .map(|_| stream.uniform_f32())
        .collect();
    let model = export(&spec, &state, &options).unwrap();
    let (told, outputs) = run_all(&model, &planes(&rows), [1, height, width])?;
    let threads = Threads::new(2).unwrap();
    let shape = InputShape {
        batch: 1,
        height,
        width,
    };
    let plan = plan::Options {
        branches,
        ..plan::Options::new(plan::Mode::Infer, threads.count())
    };
    let mut network = Network::with_options(&spec, shape, plan, &threads).unwrap();
    network.load(&state);
    network.infer_forward(Images::F32(&rows));
    Some(Compared {
        name: name.to_owned(),
        network,
        told,
        outputs,
    })
}

impl Compared {
    /// Checks a number against the largest of its kind, and that there was something to compare.
    fn check(&self, what: &str, pairs: impl Iterator<Item = (f32, f32)>) {
        let (mut worst, mut scale) = (0f32, 1f32);
        let (mut low, mut high) = (f32::MAX, f32::MIN);
        for (ours, theirs) in pairs {
            assert!(ours.is_finite() && theirs.is_finite());
            worst = worst.max((ours - theirs).abs());
            scale = scale.max(theirs.abs());
            (low, high) = (low.min(ours), high.max(ours));
        }
        println!("{} {what}: {:.1e} of {scale:.3}", self.name, worst / scale);
        assert!(high > low, "{} {what}: {low} everywhere", self.name);
        assert!(
            worst <= 1e-4 * scale,
            "{} {what}: {worst} of {scale}",
            self.name
        );
    }

    /// Checks rows of anchors, which the other side has as columns.
    fn check_anchors(&self) {
        let ours = self.network.predictions();
        let (length, anchors) = (ours.row_length(), ours.anchors);
        assert_eq!(
            self.told["shapes"][0],
            serde_json::json!([1, length, anchors])
        );
        let columns = |range: std::ops::Range<usize>| {
            let (ours, theirs) = (ours.values, &self.outputs[0]);
            range.flat_map(move |index| {
                (0..anchors).map(move |anchor| {
                    (
                        ours[anchor * length + index],
                        theirs[index * anchors + anchor],
                    )
                })
            })
        };
        let scores = 4 + ours.class_count;
        self.check("boxes", columns(0..4));
        self.check("scores", columns(4..scores));
        if scores < length {
            self.check("extras", columns(scores..length));
        }
    }

    /// Checks detections in any order: of two that are equal but for rounding either may come first, and at the end
    /// either may be the one that is left out.
    fn check_detections(&self) {
        let ours = self.network.predictions();
        let length = ours.row_length();
        assert_eq!(
            self.told["shapes"][0],
            serde_json::json!([1, ours.anchors, length])
        );
        assert_eq!(self.told["end2end"], "True");
        let rows = || {
            ours.values
                .chunks_exact(length)
                .zip(self.outputs[0].chunks_exact(length))
        };
        self.check("scores", rows().map(|(ours, theirs)| (ours[4], theirs[4])));
        let scale = |range: std::ops::Range<usize>| {
            let values = rows().flat_map(|(_, theirs)| &theirs[range.clone()]);
            values.fold(1f32, |scale, value| scale.max(value.abs()))
        };
        let (boxes, extras) = (scale(0..4), scale(6..length));
        let limit = |column: usize| match column {
            0..4 => 1e-4 * boxes,
            4..6 => 1e-4,
            _ => 1e-4 * extras,
        };
        let is_same = |ours: &[f32], theirs: &[f32]| {
            let mut pairs = ours.iter().zip(theirs).enumerate();
            pairs.all(|(column, (ours, theirs))| (ours - theirs).abs() <= limit(column))
        };
        let last = rows().next_back().unwrap().0[4];
        let mut matched = 0;
        for (ours, _) in rows() {
            let mut theirs = self.outputs[0].chunks_exact(length);
            let is_there = theirs.any(|theirs| is_same(ours, theirs));
            let is_at_the_end = ours[4] <= last + 1e-5;
            assert!(
                is_there || is_at_the_end,
                "{}: {ours:?} is not among theirs",
                self.name
            );
            matched += usize::from(is_there);
        }
        println!("{}: {matched} of {} detections", self.name, ours.anchors);
        assert!(
            matched * 10 >= ours.anchors * 9,
            "{matched} of {}",
            ours.anchors
        );
    }

    /// Checks the prototypes of masks.
    fn check_prototypes(&self) {
        let map = self.network.outputs().prototypes.unwrap();
        assert_eq!(
            self.told["shapes"][1],
            serde_json::json!([1, map.channels, map.height, map.width])
        );
        let pixels = map.height * map.width;
        let pairs = (0..map.channels).flat_map(|channel| {
            (0..pixels).map(move |pixel| {
                (
                    map.values[pixel * map.pixel_stride + channel],
                    channel * pixels + pixel,
                )
            })
        });
        self.check(
            "prototypes",
            pairs.map(|(ours, place)| (ours, self.outputs[1][place])),
        );
    }
}

#[test]
fn onnx_runtime_computes_what_our_own_forward_computes() {
    for name in [
        "yolo11n",
        "yolo11m",
        "yolov8n",
        "yolo26n",
        "yolo11n-seg",
        "yolo26n-seg",
        "yolo11n-pose",
        "yolo26n-pose",
        "yolo11n-obb",
        "yolo26n-obb",
    ] {
        let Some(compared) = both_sides(name, Branches::OneToMany) else {
            return;
        };
        assert_eq!(compared.told["end2end"], "False");
        compared.check_anchors();
        if name.ends_with("-seg") {
            compared.check_prototypes();
        }
    }
}

#[test]
fn one_to_one_branches_give_the_same_detections() {
    for name in ["yolo26n", "yolo26n-seg", "yolo26n-pose", "yolo26n-obb"] {
        let Some(compared) = both_sides(name, Branches::OneToOne) else {
            return;
        };
        compared.check_detections();
        if name.ends_with("-seg") {
            compared.check_prototypes();
        }
    }
}

#[test]
fn classifiers_give_the_same_probabilities() {
    for name in ["yolo11n-cls", "yolov8n-cls"] {
        let Some(compared) = both_sides(name, Branches::OneToMany) else {
            return;
        };
        assert_eq!(compared.told["shapes"], serde_json::json!([[1, 3]]));
        let ours = compared.network.predictions().values.to_vec();
        compared.check(
            "probabilities",
            ours.into_iter().zip(compared.outputs[0].clone()),
        );
    }
}

#[test]
fn names_and_sizes_that_do_not_fit_the_model_are_refused() {
    let state = models::initialise(&spec(), 0);
    for (change, argument) in [
        (
            ExportOptions {
                height: 100,
                ..options()
            },
            "imgsz",
        ),
        (
            ExportOptions {
                class_names: vec!["one".into()],
                ..options()
            },
            "class_names",
        ),
    ] {
        let error = export(&spec(), &state, &change).unwrap_err().to_string();
        assert!(error.starts_with(argument), "{error}");
    }
    let other = models::initialise(&ModelSpec::parse("yolo11n", 9).unwrap(), 0);
    let error = export(&spec(), &other, &options()).unwrap_err().to_string();
    assert!(error.starts_with("state: the model has"), "{error}");
}

/// What good weights find in real pictures, box by box. `FOVEA_TEST_MODEL` names a trained detector and
/// `FOVEA_TEST_PICTURES` a folder: `cargo test -p engine --lib -- --ignored --nocapture trained_model`.
#[test]
#[ignore = "needs a trained model"]
fn a_trained_model_finds_the_same_in_onnx_runtime() {
    const PICTURES: usize = 10;
    const SIDE: usize = 320;
    let setting =
        |name: &str| std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set"));
    let checkpoint = files::read(Path::new(&setting("FOVEA_TEST_MODEL"))).unwrap();
    let spec = &checkpoint.header.model;
    let options = ExportOptions {
        height: SIDE,
        width: SIDE,
        class_names: checkpoint.header.classes.clone(),
        ..options()
    };
    let model = export(spec, checkpoint.inference_state(), &options).unwrap();
    let mut network =
        Network::infer(spec, InputShape::square(1, SIDE), &Threads::new(2).unwrap()).unwrap();
    network.load(checkpoint.inference_state());
    let nms_options = NmsOptions::prediction();
    let mut paths: Vec<_> = std::fs::read_dir(setting("FOVEA_TEST_PICTURES"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let (mut boxes, mut corner_error, mut score_error) = (0, 0f32, 0f32);
    for path in paths.into_iter().take(PICTURES) {
        let picture = decode::decode("picture", &std::fs::read(path).unwrap()).unwrap();
        let size = (picture.width(), picture.height());
        let mut bytes = vec![0; 3 * SIDE * SIDE];
        Letterbox::fit(size, (SIDE, SIDE), true).apply(&picture, &mut bytes);
        let floats: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect();
        let Some((_, columns)) = run_onnx(&model, &planes(&floats), [1, SIDE, SIDE]) else {
            return;
        };
        let anchors = columns.len() / (4 + spec.class_count);
        let row = |anchor: usize| columns.iter().skip(anchor).step_by(anchors).copied();
        let rows: Vec<f32> = (0..anchors).flat_map(row).collect();
        let theirs = nms(&rows, spec.class_count, &nms_options);
        network.infer_forward(Images::U8(&bytes));
        let ours = Detector::new(spec, nms_options).upright(&network.outputs(), 0);
        assert_eq!(ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours.class, theirs.class);
            score_error = score_error.max((ours.score - theirs.score).abs());
            for (a, b) in ours.bounds.iter().zip(theirs.bounds) {
                corner_error = corner_error.max((a - b).abs() / SIDE as f32);
            }
        }
        boxes += ours.len();
    }
    println!("{boxes} boxes: corners {corner_error:.1e} of the side, scores {score_error:.1e}");
    assert!(boxes > PICTURES && corner_error <= 1e-4 && score_error <= 1e-4);
}

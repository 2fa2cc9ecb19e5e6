//! The ONNX file: read back, and run by ONNX Runtime against our own forward.

use std::path::Path;
use std::process::Command;

use super::*;
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

/// Runs a model in ONNX Runtime on `images` (batch, 3, height, width), or says why not.
pub fn run_onnx(
    model: &[u8],
    images: &[f32],
    sides: [usize; 3],
) -> Option<(serde_json::Value, Vec<f32>)> {
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
    let told = serde_json::from_slice(&ran.stdout).unwrap();
    let output = std::fs::read(path("output")).unwrap();
    let output = output
        .as_chunks::<4>()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes));
    Some((told, output.collect()))
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
    assert_eq!(told["shape"], serde_json::json!([2, 7, anchors]));
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

#[test]
fn onnx_runtime_computes_what_our_own_forward_computes() {
    for name in ["yolo11n", "yolo11m"] {
        let spec = ModelSpec::parse(name, 3).unwrap();
        let state = lively_state(&spec);
        let options = options();
        let (height, width) = (options.height, options.width);
        let mut stream = Philox::new(1, 0, 0, Use::Test);
        let rows: Vec<f32> = (0..height * width * 3)
            .map(|_| stream.uniform_f32())
            .collect();
        let planes = planes(&rows);
        let model = export(&spec, &state, &options).unwrap();
        let Some((_, theirs)) = run_onnx(&model, &planes, [1, height, width]) else {
            return;
        };
        let threads = Threads::new(2).unwrap();
        let shape = InputShape {
            batch: 1,
            height,
            width,
        };
        let mut network = Network::infer(&spec, shape, &threads).unwrap();
        network.load(&state);
        network.infer_forward(Images::F32(&rows));
        let ours = network.predictions();
        let row = ours.row_length();
        let mut worst = [0f32; 2];
        let (mut low, mut high) = (f32::MAX, f32::MIN);
        for (anchor, ours) in ours.values.chunks_exact(row).enumerate() {
            for (index, &ours) in ours.iter().enumerate() {
                let theirs = theirs[index * (theirs.len() / row) + anchor];
                assert!(ours.is_finite() && theirs.is_finite());
                // Boxes are as large as the picture, scores at most one.
                let (kind, scale) = if index < 4 {
                    (0, width as f32)
                } else {
                    (1, 1.0)
                };
                worst[kind] = worst[kind].max((ours - theirs).abs() / scale);
                if index >= 4 {
                    low = low.min(ours);
                    high = high.max(ours);
                }
            }
        }
        println!(
            "{name}: boxes differ by {:.1e} of the width, scores by {:.1e}",
            worst[0], worst[1]
        );
        assert!(
            high > 2.0 * low,
            "scores from {low} to {high} compare nothing"
        );
        assert!(
            worst[0] > 0.0 && worst[0] <= 1e-4 && worst[1] <= 1e-4,
            "{name}: {worst:?}"
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

//! Whole networks against recorded numbers: every parameter is filled by a formula of its name, and layers,
//! loss, assignment, gradients, statistics and optimiser steps are compared with a double-precision run of the
//! reference. How far single precision may be off is recorded beside the numbers; ten times that is allowed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that can't go on fails, and its figures are read by people"
)]

mod case;
mod detections;
mod formula;
mod optimisers;
mod record;

use std::path::PathBuf;

use case::Case;
use engine::loss::{Loss, LossInput, LossSettings};
use engine::models::{self, ModelSpec};
use engine::network::{Images, InputShape, Network};
use engine::parallel::Threads;
use engine::plan::{Mode, Options};
use serde_json::Value;

const BATCH: usize = 2;
const SIDE: usize = 96;
/// The loss of single precision deviates by a tenth of this.
const LOSS_LIMIT: f64 = 2e-4;

fn golden(name: &str) -> Option<Value> {
    let folder = std::env::var_os("FOVEA_TEST_SPEC").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec"),
        PathBuf::from,
    );
    let path = folder.join("golden").join(format!("{name}.json"));
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is absent", path.display());
        return None;
    };
    Some(serde_json::from_str(&text).unwrap())
}

fn agree(name: &str) {
    let Some(golden) = golden(name) else {
        return;
    };
    let case = Case::new(name, golden);
    let mut failures = case.eval_layers();
    failures.extend(case.train_layers());
    let (of_step, gradient) = case.step();
    failures.extend(of_step);
    failures.extend(case.optimisers(&gradient));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// One test for each model, so that a failure names it.
macro_rules! models_agree {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                agree($name);
            }
        )*
    };
}

models_agree! {
    yolo11n_agrees: "yolo11n",
    yolo11s_agrees: "yolo11s",
    yolo11m_agrees: "yolo11m",
    yolo11n_seg_agrees: "yolo11n-seg",
    yolo11n_cls_agrees: "yolo11n-cls",
    yolo11n_pose_agrees: "yolo11n-pose",
    yolo11n_obb_agrees: "yolo11n-obb",
    yolo26n_agrees: "yolo26n",
    yolo26n_seg_agrees: "yolo26n-seg",
    yolo26n_cls_agrees: "yolo26n-cls",
    yolo26n_pose_agrees: "yolo26n-pose",
    yolo26n_obb_agrees: "yolo26n-obb",
    yolov8n_agrees: "yolov8n",
    yolov8n_seg_agrees: "yolov8n-seg",
}

#[test]
fn the_formula_gives_its_published_values() {
    let spec = ModelSpec::parse("yolo11n", 80).unwrap();
    let tables = models::tables(&spec);
    let mut values = vec![0.0; tables.parameters[0].element_count()];
    formula::fill(&tables.parameters[0], "model.23", &mut values);
    let expected = [-0.341_987_997, 0.379_760_802, 0.361_344_069, -0.283_009_47];
    for (value, expected) in values.iter().zip(expected) {
        assert!((f64::from(*value) - expected).abs() < 1e-8);
    }
    let images = formula::images();
    let expected = [0.048_909_157_5, 0.341_805_19, 0.133_062_124, 0.184_097_32];
    for (x, expected) in expected.into_iter().enumerate() {
        assert!((f64::from(images[3 * x]) - expected).abs() < 1e-8);
    }
}

#[test]
fn a_step_gives_the_same_bits_on_any_number_of_threads() {
    for name in ["yolo11n", "yolo26n-seg", "yolo26n-pose", "yolov8n-cls"] {
        let spec = ModelSpec::parse(name, 80).unwrap();
        let start = models::initialise(&spec, 7);
        let images = formula::images();
        let targets = formula::targets(&spec);
        let step = |count: usize, keep_everything: bool| {
            let threads = Threads::new(count).unwrap();
            let options = Options {
                keep_everything,
                ..Options::new(Mode::Train, count)
            };
            let shape = InputShape::square(BATCH, SIDE);
            let mut network = Network::with_options(&spec, shape, options, &threads).unwrap();
            let mut state = start.clone();
            network.forward(&mut state, Images::F32(&images));
            let mut loss = Loss::new(&spec, LossSettings::default());
            let (outputs, mut output_gradients) = network.outputs_and_gradients();
            let input = LossInput {
                targets: &targets,
                image_size: (SIDE, SIDE),
                parameters: &state.parameters,
                threads: &threads,
            };
            let mut gradient = vec![0.0; state.parameters.len()];
            loss.compute(&outputs, &mut output_gradients, &mut gradient, &input);
            network.backward(&state, &mut gradient);
            (state, gradient)
        };
        let one = step(1, false);
        assert!(one == step(2, false), "{name}: two threads");
        assert!(one == step(3, false), "{name}: three threads");
        assert!(
            one == step(2, true),
            "{name}: memory of its own for every value"
        );
    }
}

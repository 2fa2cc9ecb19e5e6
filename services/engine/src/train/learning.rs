//! The long proof: a run on real data reaches what the reference trainer reaches, and its export agrees with it.
//! Ignored by default, it takes tens of minutes: `cargo test -p engine learning -- --ignored --nocapture`.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::checkpoint::{Checkpoint, files};
use crate::data::letterbox::Letterbox;
use crate::data::yolo::{self, Strictness};
use crate::data::{Dataset, Split, decode, testing};
use crate::metrics::{NmsOptions, nms};
use crate::network::{Images, InputShape, Network};
use crate::onnx::{self, ExportOptions};
use crate::parallel::Threads;
use crate::plan::Branches;
use crate::validate::{ValidateOptions, validate};
use crate::{Result, onnx::tests::planes, onnx::tests::run_onnx};

const SIZE: usize = 320;
const EPOCHS: u32 = 60;
/// The reference trainer's mean over three seeds less two standard deviations, on the test split.
const MAP50_MIN: f64 = 0.74;
const MAP50_95_MIN: f64 = 0.46;

/// Prints a line now and then.
struct Printer;

impl Progress for Printer {
    fn on_start(&mut self, started: &Started) -> Result<()> {
        println!("{started:?}");
        Ok(())
    }

    fn on_step(&mut self, step: &StepReport) -> Result<()> {
        if step.batch == step.batches || step.epoch == 1 {
            println!(
                "epoch {} batch {} losses {:.4?} rates {:.6?} norm {:?} {:.1} images/s, data {:.1} %",
                step.epoch,
                step.batch,
                step.mean_losses,
                step.learning_rates,
                step.gradient_norm,
                step.images_per_second,
                100.0 * step.data_wait_share
            );
        }
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochReport) -> Result<()> {
        println!("{epoch:.5?}");
        Ok(())
    }

    fn on_note(&mut self, note: &str) -> Result<()> {
        println!("{note}");
        Ok(())
    }
}

/// Returns a number or path that a person running this sets, to look closer.
fn setting(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

#[test]
#[ignore = "takes tens of minutes"]
fn yolo11n_from_nothing_learns_bccd_as_the_reference_does() {
    let Some(data) = testing::unpacked("bccd-yolo.zip") else {
        return;
    };
    let epochs = setting("FOVEA_LEARN_EPOCHS").map_or(EPOCHS, |epochs| epochs.parse().unwrap());
    let options = TrainOptions {
        data: data.path().to_owned(),
        epochs,
        imgsz: SIZE,
        seed: setting("FOVEA_LEARN_SEED").map_or(0, |seed| seed.parse().unwrap()),
        ..TrainOptions::default()
    };
    let kept = setting("FOVEA_LEARN_FOLDER").map(PathBuf::from);
    let folder = kept.unwrap_or_else(|| data.path().join("run"));
    let stop = StopHandle::default();
    let run = if folder.join("weights").exists() {
        resume_folder(&folder, Some(data.path()), 0, &stop, &mut Printer)
    } else {
        run_folder(options, &folder, &stop, &mut Printer)
    };
    let run = run.unwrap();
    println!("best on val: {:.4?}", run.validation.unwrap().scores());
    let best = files::read(&run.best.unwrap()).unwrap();
    let (dataset, _) = yolo::open(data.path(), Strictness::Refuse).unwrap();
    let dataset = Arc::new(dataset);
    let test = ValidateOptions {
        split: Split::Test,
        imgsz: SIZE,
        ..ValidateOptions::default()
    };
    let test = validate(&best, Arc::clone(&dataset), test, &mut |_, _| Ok(())).unwrap();
    println!("on test: {:.4?} in {:.1} s", test.scores(), test.seconds);
    for class in &test.report.classes {
        let name = &dataset.classes[class.class as usize];
        println!(
            "  {name}: AP50 {:.3}, AP50-95 {:.3}",
            class.ap50(),
            class.ap50_95()
        );
    }
    compare_with_onnx(&best, &dataset);
    if epochs >= EPOCHS {
        assert!(
            test.report.map50 >= MAP50_MIN,
            "mAP50 {}",
            test.report.map50
        );
        assert!(
            test.report.map50_95 >= MAP50_95_MIN,
            "mAP50-95 {}",
            test.report.map50_95
        );
    }
}

/// Compares our boxes after suppression with those from ONNX Runtime's output, on ten pictures.
fn compare_with_onnx(model: &Checkpoint, dataset: &Dataset) {
    let spec = &model.header.model;
    let options = ExportOptions {
        height: SIZE,
        width: SIZE,
        dynamic_batch: false,
        branches: Branches::default(),
        class_names: dataset.classes.clone(),
        description: "test".into(),
        date: String::new(),
    };
    let file = onnx::export(spec, model.inference_state(), &options).unwrap();
    let shape = InputShape::square(1, SIZE);
    let mut network = Network::infer(spec, shape, &Threads::available().unwrap()).unwrap();
    network.load(model.inference_state());
    let (mut boxes, mut worst) = (0, [0f32; 2]);
    for sample in dataset.test.iter().take(10) {
        let picture = decode::decode(&sample.name, &sample.source.read().unwrap()).unwrap();
        let source = (picture.width(), picture.height());
        let mut frame = vec![0; SIZE * SIZE * 3];
        Letterbox::fit(source, (SIZE, SIZE), true).apply(&picture, &mut frame);
        let floats: Vec<f32> = frame
            .iter()
            .map(|&value| f32::from(value) / 255.0)
            .collect();
        let Some((_, theirs)) = run_onnx(&file, &planes(&floats), [1, SIZE, SIZE]) else {
            return;
        };
        network.infer_forward(Images::U8(&frame));
        let ours = network.predictions();
        let row = ours.row_length();
        let anchors = theirs.len() / row;
        let rows: Vec<f32> = (0..theirs.len())
            .map(|index| theirs[index % row * anchors + index / row])
            .collect();
        let nms_options = NmsOptions::prediction();
        let ours = nms(ours.image(0), spec.class_count, &nms_options);
        let theirs = nms(&rows, spec.class_count, &nms_options);
        assert_eq!(ours.len(), theirs.len(), "{}", sample.name);
        boxes += ours.len();
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!((ours.class, ours.index), (theirs.class, theirs.index));
            for (a, b) in ours.bounds.iter().zip(theirs.bounds) {
                worst[0] = worst[0].max((a - b).abs() / SIZE as f32);
            }
            worst[1] = worst[1].max((ours.score - theirs.score).abs());
        }
    }
    println!(
        "ten pictures, {boxes} boxes: corners differ by {:.1e} of the side, scores by {:.1e}",
        worst[0], worst[1]
    );
    assert!(worst.iter().all(|&worst| worst <= 1e-4));
}

//! `fovea engine bench …`: how fast the engine is here, as a table or as JSON for the scripts in `scripts/bench`.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use engine::Precision;
use engine::bench::{self, Case, PredictionCase, Report};
use engine::checkpoint::files;
use engine::data::{Picture, decode};
use engine::models::ModelSpec;
use engine::onnx::{self, ExportOptions};
use engine::parallel::Threads;
use engine::plan::Branches;

use crate::engine_cli::Arguments;
use crate::output::{Table, line};

/// The picture of a prediction where none is given.
const PICTURE_SIZE: (usize, usize) = (640, 480);
const PICTURE_COLOUR: [u8; 3] = [120, 90, 60];

/// Measures and prints.
pub(crate) fn run(mut arguments: Arguments, is_json: bool) -> Result<()> {
    let mode = arguments.take("mode").unwrap_or_else(|| "train".into());
    let model = arguments.take("model").unwrap_or_else(|| "yolo11n".into());
    let (batch, steps) = match mode.as_str() {
        "train" => (16, 5),
        "infer" => (1, 30),
        other => bail!("mode: '{other}' is not one of train, infer"),
    };
    let threads = match arguments.parsed("threads", 0)? {
        0 => Threads::available()?.count(),
        count => count,
    };
    let spec = ModelSpec::parse(&model, arguments.parsed("classes", 80)?)?;
    let case = Case {
        batch: arguments.parsed("batch", batch)?,
        size: arguments.parsed("imgsz", spec.task.image_side())?,
        spec,
        threads,
        precision: match arguments.take("precision").as_deref() {
            None | Some("f32") => Precision::F32,
            Some("mixed") => Precision::Mixed,
            Some(other) => bail!("precision: '{other}' is not one of f32, mixed"),
        },
        steps: arguments.parsed("steps", steps)?,
    };
    let report = if mode == "train" {
        arguments.finish()?;
        bench::training(&case)?
    } else {
        predict(case, arguments)?
    };
    if is_json {
        line(serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Measures predictions of `source=IMAGE` with as many `candidates=` as good weights would find; with
/// `export=FILE.onnx` the model goes there too, so that another runtime can be measured on the same weights.
fn predict(case: Case, mut arguments: Arguments) -> Result<Report> {
    const CANDIDATES: usize = 300;
    let picture = match arguments.take("source") {
        Some(path) => {
            let bytes = std::fs::read(&path).with_context(|| path.clone())?;
            decode::decode(&path, &bytes)?
        }
        None => Picture::filled(PICTURE_SIZE.0, PICTURE_SIZE.1, PICTURE_COLOUR),
    };
    let candidates = arguments.parsed("candidates", CANDIDATES)?;
    let export = arguments.take("export").map(PathBuf::from);
    arguments.finish()?;
    let state = bench::settled_state(&case.spec, &Threads::new(case.threads)?)?;
    if let Some(path) = export {
        let classes = 0..case.spec.class_count;
        let options = ExportOptions {
            height: case.size,
            width: case.size,
            dynamic_batch: false,
            branches: Branches::default(),
            class_names: classes.map(|class| format!("class {class}")).collect(),
            description: "weights that learnt nothing, to measure with".into(),
            date: kit::Clock::system().now().to_string(),
        };
        files::write_atomically(&path, &onnx::export(&case.spec, &state, &options)?)?;
    }
    let mut case = PredictionCase {
        case,
        picture,
        confidence: 0.0,
    };
    case.confidence = bench::threshold(&case, &state, candidates)?;
    Ok(bench::prediction(&case, &state)?)
}

fn print(report: &Report) {
    line(format!(
        "{} batch {} at {} px, {} threads, {}: {:.1} ms, {:.2} images/s, {:.1} GFLOP/s, {:.1} MB",
        report.model,
        report.batch,
        report.imgsz,
        report.threads,
        report.level,
        report.seconds_median * 1e3,
        report.images_per_second,
        report.flops as f64 / report.seconds_median / 1e9,
        report.plan_bytes as f64 / 1e6
    ));
    if let Some(part) = (report.parts.iter()).find(|part| part.name == bench::POST_PROCESSING) {
        line(format!(
            "  of that post-processing (candidates, suppression, masks) {:.2} ms",
            part.seconds * 1e3
        ));
    }
    let mut table = Table::new(["WORK", "LAUNCHES", "MS", "SHARE", "GFLOP/S", "GB/S"]);
    for part in &report.parts {
        table.row([
            part.name.clone(),
            part.launches.to_string(),
            format!("{:.2}", part.seconds * 1e3),
            format!("{:.1} %", part.share * 100.0),
            format!("{:.1}", part.flops_per_second / 1e9),
            format!("{:.1}", part.bytes_per_second / 1e9),
        ]);
    }
    table.print();
}

//! `fovea engine …` and `fovea datasets sample`: the engine without a fleet, with arguments as `name=value`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use engine::checkpoint::{Checkpoint, files};
use engine::data::sample::{self, SampleOptions};
use engine::data::yolo::Strictness;
use engine::data::{self, Split, decode};
use engine::device::cuda::compile;
use engine::models::{ModelSpec, Task};
use engine::network::InputShape;
use engine::onnx::{self, ExportOptions};
use engine::parallel::Threads;
use engine::plan::{self, Branches, Mode, Plan, TrainingMemory};
use engine::predict::draw::{self, ImageKind};
use engine::predict::{Found, PredictOptions, Predictor, Shape};
use engine::train::{
    self, Ending, EpochReport, Progress, Started, StepReport, StopHandle, TrainOptions,
};
use engine::validate::{ValidateOptions, validate};
use indicatif::ProgressBar;
use scheduler::catalogue;

use crate::cli::{Datasets, Engine};
use crate::engine_bench;
use crate::output::{self, Table, line, remark};

/// The extensions that `source=FOLDER` looks for.
const PICTURE_EXTENSIONS: [&str; 7] = ["jpg", "jpeg", "png", "webp", "bmp", "tif", "tiff"];

/// Runs one of the commands.
pub async fn run(command: Engine, is_json: bool) -> Result<()> {
    let stop = StopHandle::default();
    tokio::spawn(stop_on_interrupt(stop.clone()));
    tokio::task::spawn_blocking(move || match command {
        Engine::Train { arguments } => train(Arguments::read(&arguments)?, &stop, is_json),
        Engine::Val { arguments } => val(Arguments::read(&arguments)?, is_json),
        Engine::Predict { arguments } => predict(Arguments::read(&arguments)?, is_json),
        Engine::Export { arguments } => export(Arguments::read(&arguments)?),
        Engine::Plan {
            model,
            classes,
            imgsz,
            batch,
            mode,
            device,
            launches,
        } => {
            let spec = ModelSpec::parse(&model, classes)?;
            let side = imgsz.unwrap_or_else(|| spec.task.image_side());
            let shape = InputShape::square(batch, side);
            show_plan(&spec, shape, &mode, &device, launches)
        }
        Engine::Kernels { arch, check, lock } => kernels(&arch, check, lock),
        Engine::Bench { arguments } => engine_bench::run(Arguments::read(&arguments)?, is_json),
    })
    .await?
}

fn kernels(arch: &str, is_brief: bool, is_writing_lock: bool) -> Result<()> {
    let options = compile::Options {
        architectures: arch.split(',').map(str::to_owned).collect(),
        is_writing_lock,
        ..compile::Options::default()
    };
    let report = compile::run(&options)?;
    line(report.text(is_brief).trim_end());
    if !report.is_good() {
        bail!("the kernels are not what the lock file and the rules say");
    }
    Ok(())
}

/// The first Ctrl-C asks for a checkpoint and an end, the second ends at once.
async fn stop_on_interrupt(stop: StopHandle) {
    if tokio::signal::ctrl_c().await.is_ok() {
        remark("stopping after this step; once more stops at once");
        stop.stop();
    }
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(130);
    }
}

/// `name=value` arguments, each used once.
pub(crate) struct Arguments(BTreeMap<String, String>);

impl Arguments {
    fn read(given: &[String]) -> Result<Self> {
        let mut arguments = BTreeMap::new();
        for argument in given {
            let Some((name, value)) = argument.split_once('=') else {
                bail!("'{argument}' is not name=value");
            };
            if arguments
                .insert(name.to_owned(), value.to_owned())
                .is_some()
            {
                bail!("'{name}' is given twice");
            }
        }
        Ok(Self(arguments))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    fn need(&mut self, name: &str) -> Result<String> {
        self.take(name)
            .with_context(|| format!("'{name}=' is missing"))
    }

    pub(crate) fn parsed<T: std::str::FromStr>(&mut self, name: &str, default: T) -> Result<T> {
        match self.take(name) {
            Some(value) => value
                .parse()
                .ok()
                .with_context(|| format!("{name}: '{value}' can't be read")),
            None => Ok(default),
        }
    }

    /// Refuses what no one asked for: a typing error must not be ignored.
    pub(crate) fn finish(self) -> Result<()> {
        match self.0.keys().next() {
            Some(name) => bail!("there is no argument '{name}' here"),
            None => Ok(()),
        }
    }
}

fn train(mut arguments: Arguments, stop: &StopHandle, is_json: bool) -> Result<()> {
    let folder = PathBuf::from(
        arguments
            .take("project")
            .unwrap_or_else(|| "runs/train".into()),
    );
    let mut bar = Bar {
        bar: ProgressBar::hidden(),
        is_json,
    };
    let outcome = if let Some(resume) = arguments.take("resume") {
        let data = arguments.take("data").map(PathBuf::from);
        let threads = arguments.parsed("threads", 0)?;
        arguments.finish()?;
        train::resume_folder(Path::new(&resume), data.as_deref(), threads, stop, &mut bar)?
    } else {
        let mut options = TrainOptions::default();
        arguments.0.entry("data".to_owned()).or_default();
        for (name, value) in &arguments.0 {
            options.set(name, value)?;
        }
        // `model=FILE` is a model to begin with.
        let base = PathBuf::from(&options.model);
        if base.is_file() {
            options.model = engine::import::model_name(&base)?;
            options.pretrained.get_or_insert(base);
        }
        if !arguments.0.contains_key("imgsz") {
            options.take_side_of_task()?;
        }
        train::run_folder(options, &folder, stop, &mut bar)?
    };
    bar.bar.finish_and_clear();
    let word = match outcome.ending {
        Ending::Completed => "completed",
        Ending::OutOfPatience => "stopped early: no better epoch for as long as the patience",
        Ending::Stopped => "stopped; `fovea engine train resume=FOLDER` goes on",
    };
    let best = outcome
        .validation
        .as_ref()
        .map(|validation| validation.scores());
    if is_json {
        line(serde_json::to_string(&serde_json::json!({
            "ending": word, "last": outcome.last, "best": outcome.best, "validation": best,
        }))?);
        return Ok(());
    }
    line(format!("{word}; checkpoint {}", outcome.last.display()));
    if let (Some(best), Some(path)) = (best, outcome.best) {
        line(format!(
            "best model {}: mAP50 {:.4}, mAP50-95 {:.4}",
            path.display(),
            best.map50,
            best.map50_95
        ));
    }
    Ok(())
}

/// Returns loss items as text, such as `box 1.234 cls 0.567`.
fn named_losses(columns: train::Columns, losses: &[f64]) -> String {
    let names = columns.loss_names().iter();
    let items = names
        .zip(losses)
        .map(|(name, value)| format!("{} {value:.3}", name.trim_end_matches("_loss")));
    items.collect::<Vec<_>>().join(" ")
}

struct Bar {
    bar: ProgressBar,
    is_json: bool,
}

impl Progress for Bar {
    fn on_start(&mut self, started: &Started) -> engine::Result<()> {
        let total = u64::from(started.epochs) * u64::from(started.batches_per_epoch);
        self.bar = output::bar(total, "training", false, self.is_json);
        self.bar.suspend(|| {
            remark(format!(
                "{}: {} parameters, {} classes, {} training and {} validation images, {}, {} threads, {} planned",
                started.model,
                started.parameters,
                started.classes.len(),
                started.train_images,
                started.val_images,
                started.optimizer,
                started.threads,
                output::bytes(i64::try_from(started.plan_bytes).unwrap_or(i64::MAX))
            ));
        });
        Ok(())
    }

    fn on_step(&mut self, step: &StepReport) -> engine::Result<()> {
        self.bar.set_position(step.iteration);
        let losses = named_losses(step.columns, &step.mean_losses);
        let left = self.bar.eta();
        self.bar.set_message(format!(
            "epoch {}/{} · {losses} · {:.1} images/s · {} left",
            step.epoch,
            step.epochs,
            step.images_per_second,
            output::span(left)
        ));
        Ok(())
    }

    fn on_epoch(&mut self, epoch: &EpochReport) -> engine::Result<()> {
        let is_json = self.is_json;
        self.bar.suspend(|| {
            if is_json {
                if let Ok(text) = serde_json::to_string(epoch) {
                    line(text);
                }
                return;
            }
            let losses = named_losses(epoch.columns, &epoch.losses);
            let measures = epoch.validation.map(|scores| {
                let names = epoch.columns.metric_names().into_iter();
                names
                    .zip(scores.metrics(epoch.columns.task))
                    .map(|(name, value)| format!("{name} {value:.4}"))
                    .collect::<Vec<_>>()
                    .join("  ")
            });
            let measures = measures.unwrap_or_default();
            line(format!(
                "epoch {:>4}  {losses}  {measures}  {:.1} images/s{}",
                epoch.epoch,
                epoch.images_per_second,
                if epoch.is_best { "  best" } else { "" }
            ));
        });
        Ok(())
    }

    fn on_note(&mut self, note: &str) -> engine::Result<()> {
        self.bar.suspend(|| remark(format!("note: {note}")));
        Ok(())
    }
}

fn val(mut arguments: Arguments, is_json: bool) -> Result<()> {
    let checkpoint = model(&arguments.need("model")?)?;
    let data = PathBuf::from(arguments.need("data")?);
    let defaults = ValidateOptions::default();
    let split = match arguments.take("split").as_deref() {
        Some("train") => Split::Train,
        None | Some("val") => Split::Val,
        Some("test") => Split::Test,
        Some(other) => bail!("split: '{other}' is not one of train, val, test"),
    };
    let options = ValidateOptions {
        split,
        imgsz: arguments.parsed("imgsz", checkpoint.header.options.imgsz)?,
        batch: arguments.parsed("batch", defaults.batch)?,
        conf: arguments.parsed("conf", defaults.conf)?,
        iou: arguments.parsed("iou", defaults.iou)?,
        max_det: arguments.parsed("max_det", defaults.max_det)?,
        threads: arguments.parsed("threads", 0)?,
        ..defaults
    };
    arguments.finish()?;
    let (dataset, report) = data::open(&data, Strictness::LeaveOut)?;
    for (place, rule) in &report.left_out {
        remark(format!("left out: {place}: {rule}"));
    }
    let bar = output::bar(0, "validating", false, is_json);
    let validation = validate(&checkpoint, Arc::new(dataset), options, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        Ok(())
    })?;
    bar.finish_and_clear();
    if is_json {
        line(serde_json::to_string_pretty(&validation)?);
        return Ok(());
    }
    let mut table = Table::new(["CLASS", "IMAGES", "OBJECTS", "P", "R", "MAP50", "MAP50-95"]);
    let number = |value: f64| format!("{value:.4}");
    table.row([
        "all".to_owned(),
        validation.images.to_string(),
        validation.objects.to_string(),
        number(validation.report.precision),
        number(validation.report.recall),
        number(validation.report.map50),
        number(validation.report.map50_95),
    ]);
    for class in &validation.report.classes {
        table.row([
            checkpoint.header.classes[class.class as usize].clone(),
            class.image_count.to_string(),
            class.label_count.to_string(),
            number(class.precision),
            number(class.recall),
            number(class.ap50()),
            number(class.ap50_95()),
        ]);
    }
    table.print();
    Ok(())
}

fn predict(mut arguments: Arguments, is_json: bool) -> Result<()> {
    let checkpoint = model(&arguments.need("model")?)?;
    let source = PathBuf::from(arguments.need("source")?);
    let save = arguments.take("save").map(PathBuf::from);
    let defaults = PredictOptions::default();
    let options = PredictOptions {
        conf: arguments.parsed("conf", defaults.conf)?,
        iou: arguments.parsed("iou", defaults.iou)?,
        max_det: arguments.parsed("max_det", defaults.max_det)?,
        ..defaults
    };
    let imgsz = arguments.parsed("imgsz", checkpoint.header.options.imgsz)?;
    let threads = match arguments.parsed("threads", 0)? {
        0 => Threads::available()?,
        count => Threads::new(count)?,
    };
    arguments.finish()?;
    let mut predictor = Predictor::new(&checkpoint, imgsz, &threads)?;
    for path in pictures(&source)? {
        let name = path.display().to_string();
        let bytes = std::fs::read(&path).with_context(|| name.clone())?;
        let mut picture = decode::decode(&name, &bytes)?;
        let found = predictor
            .predict(&[&picture], &options)?
            .pop()
            .unwrap_or_default();
        if let Some(folder) = &save {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            draw::draw(&mut picture, &found);
            let target = folder
                .join(path.file_stem().unwrap_or_default())
                .with_extension("jpg");
            std::fs::write(&target, draw::encode(&picture, ImageKind::Jpeg)?)
                .with_context(|| target.display().to_string())?;
        }
        if is_json {
            line(serde_json::json!({"image": name, "found": found}).to_string());
        } else {
            line(format!(
                "{name}: {}",
                summary(&found, checkpoint.header.model.task)
            ));
            found.iter().filter_map(details).for_each(line);
        }
    }
    Ok(())
}

/// Returns how many objects of each class there are, or the classes of a whole picture with their scores.
fn summary(found: &[Found], task: Task) -> String {
    if task == Task::Classify {
        let words = found
            .iter()
            .map(|class| format!("{} {:.1} %", class.name, class.score * 100.0));
        return words.collect::<Vec<_>>().join(", ");
    }
    let mut counts = BTreeMap::<&str, usize>::new();
    for object in found {
        *counts.entry(&object.name).or_default() += 1;
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(class, count)| format!("{count} {class}"))
        .collect();
    if words.is_empty() {
        "nothing".to_owned()
    } else {
        words.join(", ")
    }
}

/// Returns what is told of an object beside its box, as text.
fn details(object: &Found) -> Option<String> {
    let text = match object.shape.as_ref()? {
        Shape::Mask { outline, area } => {
            format!("mask of {area} pixels, outline of {} points", outline.len())
        }
        Shape::Keypoints(points) => {
            let points = points
                .iter()
                .map(|[x, y, seen]| format!("({x:.0}, {y:.0}) {:.0} %", seen * 100.0));
            format!("keypoints {}", points.collect::<Vec<_>>().join("  "))
        }
        Shape::Turned { corners, angle } => {
            let corners = corners.iter().map(|[x, y]| format!("({x:.0}, {y:.0})"));
            let corners = corners.collect::<Vec<_>>().join(" ");
            format!("corners {corners}, turned by {:.1}°", angle.to_degrees())
        }
    };
    Some(format!(
        "  {} {:.0} %: {text}",
        object.name,
        object.score * 100.0
    ))
}

fn pictures(source: &Path) -> Result<Vec<PathBuf>> {
    if !source.is_dir() {
        return Ok(vec![source.to_path_buf()]);
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(source).with_context(|| source.display().to_string())? {
        let path = entry?.path();
        let extension = path
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .to_lowercase();
        if PICTURE_EXTENSIONS.contains(&extension.as_str()) {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        bail!("{}: there are no pictures", source.display());
    }
    Ok(paths)
}

fn export(mut arguments: Arguments) -> Result<()> {
    let path = arguments.need("model")?;
    let checkpoint = model(&path)?;
    let imgsz = arguments.parsed("imgsz", checkpoint.header.options.imgsz)?;
    let format = arguments
        .take("format")
        .unwrap_or_else(|| "onnx".to_owned());
    if format != "onnx" {
        bail!("format: '{format}' is not written; onnx is");
    }
    let target = match arguments.take("output") {
        Some(output) => PathBuf::from(output),
        None => Path::new(&path).with_extension("onnx"),
    };
    // The reference's word for an end-to-end head whose detections need no suppression.
    let branches = match arguments.take("nms").as_deref() {
        None => Branches::OneToMany,
        Some("false" | "False") => Branches::OneToOne,
        Some(other) => {
            bail!("nms: '{other}' is not written; false is, for models with an end-to-end head")
        }
    };
    let options = ExportOptions {
        height: imgsz,
        width: imgsz,
        dynamic_batch: arguments.parsed("dynamic", false)?,
        branches,
        class_names: checkpoint.header.classes.clone(),
        description: format!("Fovea {}", checkpoint.header.model.name()),
        date: kit::Clock::system().now().to_string(),
    };
    arguments.finish()?;
    let bytes = onnx::export(
        &checkpoint.header.model,
        checkpoint.inference_state(),
        &options,
    )?;
    files::write_atomically(&target, &bytes)?;
    line(target.display().to_string());
    Ok(())
}

fn model(path: &str) -> Result<Checkpoint> {
    Ok(files::read(Path::new(path))?)
}

fn show_plan(
    spec: &ModelSpec,
    shape: InputShape,
    mode: &str,
    device: &str,
    with_launches: bool,
) -> Result<()> {
    let mode = match mode {
        "train" => Mode::Train,
        "infer" => Mode::Infer,
        other => bail!("--mode '{other}' is not one of train, infer"),
    };
    let (name, memory) = match catalogue::find(device) {
        _ if device == catalogue::CPU => (
            "this machine".to_owned(),
            engine::device::total_memory_bytes(),
        ),
        Some(gpu) => (gpu.display_name.clone(), Some(gpu.memory_bytes)),
        None => {
            let known: Vec<_> = catalogue::gpus().iter().map(|gpu| &*gpu.gpu_type).collect();
            bail!(
                "--device '{device}' is not cpu or one of {}",
                known.join(", ")
            );
        }
    };
    let options = plan::Options {
        target: catalogue::target(device),
        ..plan::Options::new(mode, Threads::available()?.count())
    };
    let plan = Plan::new(spec, shape, options)?;
    if with_launches {
        line(plan.to_string());
    }
    let giga = |number: u64| number as f64 / 1e9;
    line(format!(
        "{}, batch {}, {} px, {name}",
        spec.name(),
        shape.batch,
        shape.width
    ));
    line(format!(
        "  launches  {} forward, {} backward",
        plan.forward.len(),
        plan.backward.len()
    ));
    line(format!("  work      {:.3} GFLOP", giga(plan.flops())));
    line(format!("  traffic   {:.3} GB", giga(plan.traffic_bytes())));
    line(format!("  peak      {:.3} GB", giga(plan.peak_bytes())));
    for (kind, bytes) in plan.bytes_by_kind() {
        let kind = format!("{kind:?}").to_lowercase();
        line(format!(
            "    {kind:<12} {:.3} GB before sharing",
            giga(bytes)
        ));
    }
    let fits = match mode {
        Mode::Train => {
            let needed = TrainingMemory::new(spec, shape, options)?;
            line(format!(
                "  training  {:.3} GB: plan {:.3}, validation {:.3}, parameters {:.3}, beside them {:.3}",
                giga(needed.total()),
                giga(needed.training),
                giga(needed.validation),
                giga(needed.parameters),
                giga(needed.overhead)
            ));
            plan::largest_training_batch
        }
        Mode::Infer => plan::largest_batch,
    };
    if let Some(memory) = memory {
        let largest = fits(spec, InputShape { batch: 1, ..shape }, options, memory)?;
        line(format!(
            "  largest batch in the {:.0} GB of {name}: {largest}",
            giga(memory)
        ));
    }
    Ok(())
}

/// Makes the sample dataset as a zip.
pub async fn sample(command: Datasets, is_json: bool) -> Result<()> {
    let Datasets::Sample {
        output: target,
        images,
        size,
        classes,
        seed,
    } = command
    else {
        unreachable!("invariant: only `datasets sample` comes here");
    };
    let options = SampleOptions {
        seed,
        images: u32::try_from(images).context("--images")?,
        width: size as usize,
        height: size as usize,
        classes,
        ..SampleOptions::default()
    };
    options.check()?;
    let shown = target.clone();
    tokio::task::spawn_blocking(move || -> Result<()> {
        let place = || target.display().to_string();
        let file = BufWriter::new(File::create(&target).with_context(place)?);
        // A picture and its labels are two files.
        let bar = output::bar(images as u64 * 2, "drawing", false, is_json);
        sample::write_zip(&options, file, |written| bar.set_position(written.into()))?;
        bar.finish_and_clear();
        Ok(())
    })
    .await??;
    line(shown.display().to_string());
    Ok(())
}

//! The engine's side of an attempt: a thread that trains and tells what happens through a bounded channel.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use engine::checkpoint::Checkpoint;
use engine::clock::Stopwatch;
use engine::data::Dataset;
use engine::onnx::{self, ExportOptions};
use engine::plan::Branches;
use engine::train::{
    Ending, EpochReport, Progress, Reason, Started, StepReport, StopHandle, TrainOptions, Trainer,
};
use tokio::sync::mpsc::Sender;

/// What a training tells.
#[derive(Debug)]
pub enum Told {
    Started(Started),
    Step(StepReport),
    Epoch(EpochReport),
    /// A state to go on from, and the compute that led to it in this attempt.
    Checkpoint {
        reason: Reason,
        bytes: Bytes,
        compute: Duration,
    },
    Note(String),
}

/// What a training came to.
#[derive(Debug)]
pub struct Outcome {
    pub ending: Ending,
    /// All compute of this attempt.
    pub compute: Duration,
    /// Images that went through a step, and the time of those steps alone.
    pub images_trained: u64,
    pub step_time: Duration,
    pub class_count: usize,
    pub epochs_done: u32,
}

/// What to train, and where to go on.
pub struct Assignment {
    pub options: TrainOptions,
    pub dataset: Arc<Dataset>,
    pub checkpoint: Option<Checkpoint>,
}

/// Trains to the end or until `stop` says so. Blocks.
pub fn train(
    assignment: Assignment,
    stop: &StopHandle,
    told: Sender<Told>,
) -> engine::Result<Outcome> {
    let Assignment {
        options,
        dataset,
        checkpoint,
    } = assignment;
    let class_count = dataset.classes.len();
    let stopwatch = Stopwatch::start();
    let mut trainer = match checkpoint {
        Some(checkpoint) => Trainer::resume(checkpoint, "of the run", dataset, options.threads)?,
        None => Trainer::new(options, dataset, None)?,
    };
    let mut teller = Teller {
        told,
        stopwatch,
        images_trained: 0,
        step_time: Duration::ZERO,
    };
    let ending = trainer.run(stop, &mut teller)?;
    Ok(Outcome {
        ending,
        compute: teller.stopwatch.elapsed(),
        images_trained: teller.images_trained,
        step_time: teller.step_time,
        class_count,
        epochs_done: u32::try_from(trainer.history().len()).unwrap_or(u32::MAX),
    })
}

struct Teller {
    told: Sender<Told>,
    stopwatch: Stopwatch,
    images_trained: u64,
    step_time: Duration,
}

impl Teller {
    /// Blocks while the other side is behind: telling is bounded, nothing is dropped.
    fn tell(&self, told: Told) -> engine::Result<()> {
        // Nobody listens any more: the attempt is over.
        self.told
            .blocking_send(told)
            .map_err(|_| engine::Error::Cancelled)
    }
}

impl Progress for Teller {
    fn on_start(&mut self, started: &Started) -> engine::Result<()> {
        self.tell(Told::Started(started.clone()))
    }

    fn on_step(&mut self, step: &StepReport) -> engine::Result<()> {
        if step.images_per_second > 0.0 {
            self.images_trained += step.images as u64;
            self.step_time += Duration::from_secs_f64(step.images as f64 / step.images_per_second);
        }
        self.tell(Told::Step(*step))
    }

    fn on_epoch(&mut self, epoch: &EpochReport) -> engine::Result<()> {
        self.tell(Told::Epoch(*epoch))
    }

    fn on_checkpoint(&mut self, reason: Reason, bytes: &[u8]) -> engine::Result<()> {
        let compute = self.stopwatch.elapsed();
        self.tell(Told::Checkpoint {
            reason,
            bytes: Bytes::copy_from_slice(bytes),
            compute,
        })
    }

    fn on_note(&mut self, note: &str) -> engine::Result<()> {
        self.tell(Told::Note(note.to_owned()))
    }
}

/// The files of a finished training: kind, file name and bytes.
pub type Files = Vec<(&'static str, String, Bytes)>;

/// Makes the files of a model from its best checkpoint: weights, ONNX, and the table of results; `date` is today's.
/// Blocks.
pub fn files(name: &str, best: Checkpoint, date: String) -> engine::Result<Files> {
    let results = engine::train::results(&best.header.history);
    let model = best.into_model();
    let header = &model.header;
    let side = header.options.imgsz;
    let export = ExportOptions {
        height: side,
        width: side,
        dynamic_batch: false,
        branches: Branches::default(),
        class_names: header.classes.clone(),
        description: format!("Fovea {} trained as {name}", header.model.name()),
        date,
    };
    let onnx = onnx::export(&header.model, model.inference_state(), &export)?;
    Ok(vec![
        (
            "weights",
            format!("{name}.fovea"),
            Bytes::from(model.to_bytes()),
        ),
        ("onnx", format!("{name}.onnx"), Bytes::from(onnx)),
        (
            "results",
            format!("{name}-results.csv"),
            Bytes::from(results),
        ),
    ])
}

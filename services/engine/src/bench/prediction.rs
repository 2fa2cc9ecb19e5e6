//! Whole predictions of one picture: letterbox, forward, suppression.

use super::{Case, Record, Report};
use crate::clock::Stopwatch;
use crate::data::letterbox::Letterbox;
use crate::data::picture::Picture;
use crate::metrics::{Detector, NmsOptions};
use crate::network::{Images, Network, State};
use crate::parallel::Threads;
use crate::plan::Mode;
use crate::{Error, Result};

/// Predictions before those that count.
const WARM_UP_STEPS: usize = 3;

/// What to predict.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictionCase {
    pub case: Case,
    /// Copies of it fill the batch.
    pub picture: Picture,
    /// Scores must be above it.
    pub confidence: f32,
}

impl PredictionCase {
    fn network(&self, state: &State) -> Result<(Network, Letterbox, Threads)> {
        self.case.check()?;
        let threads = Threads::new(self.case.threads)?;
        let source = (self.picture.width(), self.picture.height());
        let side = self.case.size;
        let fit = Letterbox::fit(source, (side, side), true);
        let mut network = self.case.network(Mode::Infer, &threads)?;
        network.load(state);
        Ok((network, fit, threads))
    }

    fn frame(&self, fit: &Letterbox, images: &mut [u8], threads: &Threads) {
        let length = images.len() / self.case.batch;
        threads.run_each(images.chunks_exact_mut(length), |_, image| {
            fit.apply(&self.picture, image);
        });
    }
}

/// Times predictions with the weights given.
pub fn prediction(case: &PredictionCase, state: &State) -> Result<Report> {
    let (mut network, fit, threads) = case.network(state)?;
    let options = NmsOptions {
        confidence: case.confidence,
        ..NmsOptions::prediction()
    };
    let detector = Detector::new(&case.case.spec, options);
    let mut images = vec![0; 3 * network.plan().shape.pixel_count()];
    let mut record = Record::new(&case.case);
    for step in 0..WARM_UP_STEPS + case.case.steps {
        if step == WARM_UP_STEPS {
            record = Record::new(&case.case);
            network.start_timing();
        }
        let whole = Stopwatch::start();
        case.frame(&fit, &mut images, &threads);
        record.add("letterbox", whole.elapsed());
        network.infer_forward(Images::U8(&images));
        let watch = Stopwatch::start();
        let outputs = network.outputs();
        threads.run(case.case.batch, |image| {
            detector.boxes(&outputs, image);
        });
        record.add("suppression", watch.elapsed());
        record.step(whole.elapsed());
    }
    Ok(record.report(network.plan(), network.timings()))
}

/// Returns the score that `candidates` anchors of the first picture exceed with their best class: a threshold that
/// gives weights that learnt nothing as much to suppress as good ones find.
pub fn threshold(case: &PredictionCase, state: &State, candidates: usize) -> Result<f32> {
    let (mut network, fit, threads) = case.network(state)?;
    let mut images = vec![0; 3 * network.plan().shape.pixel_count()];
    case.frame(&fit, &mut images, &threads);
    network.infer_forward(Images::U8(&images));
    let predictions = network.predictions();
    let mut scores: Vec<f32> = predictions
        .image(0)
        .chunks_exact(predictions.row_length())
        .map(|row| {
            let scores = &row[4..4 + predictions.class_count];
            scores.iter().copied().fold(0.0, f32::max)
        })
        .collect();
    if candidates >= scores.len() {
        return Err(Error::Argument {
            argument: "candidates",
            rule: format!("there are {} anchors only", scores.len()),
        });
    }
    scores.sort_by(|a, b| b.total_cmp(a));
    Ok(scores[candidates])
}

//! Whole predictions of one picture: letterbox, forward, and what [`crate::predict`] does with the raw outputs.

use std::hint::black_box;

use super::{Case, Record, Report};
use crate::clock::Stopwatch;
use crate::data::letterbox::Letterbox;
use crate::data::picture::Picture;
use crate::metrics::{Detector, NmsOptions};
use crate::models::Task;
use crate::network::{Images, InputShape, Network, State};
use crate::parallel::Threads;
use crate::plan::{self, Mode};
use crate::predict::look::{self, Look};
use crate::{Error, Result};

/// The part of a prediction that picks candidates, suppresses doubles, and works out masks and the like.
pub const POST_PROCESSING: &str = "post-processing";
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
    /// Makes the network that predictions use, or one that decodes every row.
    fn network(&self, state: &State, is_decoding: bool) -> Result<(Network, Letterbox, Threads)> {
        self.case.check()?;
        let threads = Threads::new(self.case.threads)?;
        let source = (self.picture.width(), self.picture.height());
        let side = self.case.size;
        // A square, so that runtimes whose models have one shape can be measured on the same pixels.
        let fit = Letterbox::fit(source, (side, side), true);
        let options = plan::Options {
            precision: self.case.precision.here(),
            is_decoding,
            ..plan::Options::new(Mode::Infer, threads.count())
        };
        let shape = InputShape::square(self.case.batch, side);
        let mut network = Network::with_options(&self.case.spec, shape, options, &threads)?;
        network.load(state);
        Ok((network, fit, threads))
    }

    fn frame(&self, fit: &Letterbox, images: &mut [u8], threads: &Threads) {
        let length = images.len() / self.case.batch;
        threads.run_each(images.chunks_exact_mut(length), |_, image| {
            look::show(self.case.spec.task, &self.picture, fit, image);
        });
    }
}

/// Times predictions with the weights given.
pub fn prediction(case: &PredictionCase, state: &State) -> Result<Report> {
    let (mut network, fit, threads) = case.network(state, false)?;
    let options = NmsOptions {
        confidence: case.confidence,
        ..NmsOptions::prediction()
    };
    let detector = Detector::new(&case.case.spec, options);
    let classes: Vec<String> = (0..case.case.spec.class_count)
        .map(|class| format!("class {class}"))
        .collect();
    let fits = vec![fit; case.case.batch];
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
        let look = Look {
            task: case.case.spec.task,
            detector: &detector,
            outputs: &network.outputs(),
            classes: &classes,
            found_max: options.detection_count_max,
        };
        black_box(look.find(&fits, &threads));
        record.add(POST_PROCESSING, watch.elapsed());
        record.step(whole.elapsed());
    }
    Ok(record.report(network.plan(), network.timings()))
}

/// Returns the score that `candidates` anchors of the first picture exceed with their best class: a threshold that
/// gives weights that learnt nothing as much to suppress as good ones find.
/// Classifiers, which have no anchors, need none.
pub fn threshold(case: &PredictionCase, state: &State, candidates: usize) -> Result<f32> {
    if case.case.spec.task == Task::Classify {
        return Ok(0.0);
    }
    let (mut network, fit, threads) = case.network(state, true)?;
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

//! Whole training steps on a batch that is ready.

use super::{Case, Record, Report, SEED, noise};
use crate::Result;
use crate::clock::Stopwatch;
use crate::loss::{DetectLoss, Gains, Targets};
use crate::models;
use crate::network::{Images, InputShape, Network};
use crate::optim::{self, GRADIENT_NORM_MAX, Optimizer, OptimizerSettings, Rates};
use crate::parallel::Threads;

/// Steps before those that count.
const WARM_UP_STEPS: usize = 1;
/// Boxes of each picture.
const OBJECTS: usize = 8;
const WEIGHT_DECAY: f64 = 5e-4;
const RATES: Rates = Rates {
    weight: 1e-3,
    norm: 1e-3,
    bias: 1e-3,
    momentum: 0.9,
};

/// Times forward, loss, backward, clip and a step of SGD.
pub fn training(case: &Case) -> Result<Report> {
    case.check()?;
    let Case { spec, .. } = case;
    let shape = InputShape::square(case.batch, case.size);
    let threads = Threads::new(case.threads)?;
    let mut network = Network::train(spec, shape, &threads)?;
    let mut state = models::initialise(spec, SEED);
    let mut loss = DetectLoss::new(spec.class_count, Gains::default());
    let settings = OptimizerSettings::sgd();
    let mut optimizer = Optimizer::new(&settings, WEIGHT_DECAY, &models::tables(spec).parameters);
    let mut gradient = vec![0.0; state.parameters.len()];
    let pictures = noise(shape.pixel_count());
    let targets = targets(case.batch, spec.class_count);
    let size = (case.size, case.size);

    let mut record = Record::new(case);
    for step in 0..WARM_UP_STEPS + case.steps {
        if step == WARM_UP_STEPS {
            record = Record::new(case);
            network.start_timing();
        }
        let whole = Stopwatch::start();
        network.forward(&mut state, Images::U8(&pictures));
        let watch = Stopwatch::start();
        let (outputs, mut gradients) = network.outputs_and_gradients();
        let (levels, gradients) = (&outputs.branches[0], &mut gradients.branches[0]);
        loss.compute(levels, gradients, &targets, size, &threads);
        record.add("loss", watch.elapsed());
        network.backward(&state, &mut gradient);
        let watch = Stopwatch::start();
        let clip = optim::clip_gradient_norm(&gradient, GRADIENT_NORM_MAX, &threads);
        optimizer.step(
            &mut state.parameters,
            &mut gradient,
            clip.factor,
            &RATES,
            &threads,
        );
        record.add("optimiser", watch.elapsed());
        record.step(whole.elapsed());
    }
    Ok(record.report(network.plan(), network.timings()))
}

/// Returns boxes spread over each picture.
fn targets(batch: usize, class_count: usize) -> Targets {
    let mut targets = Targets::empty(batch);
    for image in 0..batch {
        for object in 0..OBJECTS {
            let class = (object % class_count) as u32;
            let place = 0.1 + 0.1 * object as f32;
            targets.push(image as u32, class, [place, 0.5, 0.1, 0.2]);
        }
    }
    targets
}

//! Whole training steps on a batch that is ready.

use super::{Case, Record, Report, SEED, noise};
use crate::Result;
use crate::clock::Stopwatch;
use crate::loss::{InstanceMaps, Loss, LossInput, LossSettings, Targets};
use crate::models::{self, ModelSpec, Task};
use crate::network::{Images, InputShape};
use crate::optim::{self, GRADIENT_NORM_MAX, Optimizer, OptimizerSettings, Rates};
use crate::parallel::Threads;
use crate::plan::Mode;

/// Steps before those that count.
const WARM_UP_STEPS: usize = 1;
/// Boxes of each picture.
const OBJECTS: usize = 8;
/// Pixels of the input per pixel of a mask.
const MASK_STRIDE: usize = 4;
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
    let mut network = case.network(Mode::Train, &threads)?;
    let mut state = models::initialise(spec, SEED);
    let mut loss = Loss::new(spec, LossSettings::default());
    let settings = OptimizerSettings::sgd();
    let mut optimizer = Optimizer::new(&settings, WEIGHT_DECAY, &models::tables(spec).parameters);
    let mut gradient = vec![0.0; state.parameters.len()];
    let pictures = noise(shape.pixel_count());
    let targets = targets(spec, case.batch, case.size);

    let mut record = Record::new(case);
    for step in 0..WARM_UP_STEPS + case.steps {
        if step == WARM_UP_STEPS {
            record = Record::new(case);
            network.start_timing();
        }
        let whole = Stopwatch::start();
        network.forward(&mut state, Images::U8(&pictures));
        let watch = Stopwatch::start();
        let (outputs, mut output_gradients) = network.outputs_and_gradients();
        let input = LossInput {
            targets: &targets,
            image_size: (case.size, case.size),
            parameters: &state.parameters,
            threads: &threads,
        };
        loss.compute(&outputs, &mut output_gradients, &mut gradient, &input);
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

/// Returns a label for each picture, or boxes spread over it with what the task wants of them.
fn targets(spec: &ModelSpec, batch: usize, size: usize) -> Targets {
    let class_of = |object: usize| (object % spec.class_count) as u32;
    if spec.task == Task::Classify {
        return Targets::labelled((0..batch).map(class_of).collect());
    }
    let mut targets = Targets::empty(batch);
    for image in 0..batch as u32 {
        for object in 0..OBJECTS {
            let bounds = [0.1 + 0.1 * object as f32, 0.5, 0.1, 0.2];
            targets.push(image, class_of(object), bounds);
        }
    }
    if spec.task == Task::Obb {
        targets.angles = vec![0.0; targets.len()];
    }
    if let Some(shape) = spec.keypoints {
        let points = |bounds: &[f32; 4]| vec![[bounds[0], bounds[1], 2.0]; shape.count];
        targets.keypoints = targets.boxes.iter().flat_map(points).collect();
    }
    if spec.task == Task::Segment {
        targets.masks = Some(masks(batch, size / MASK_STRIDE));
    }
    targets
}

/// Returns maps of which the same eight upright strips are instances.
fn masks(batch: usize, side: usize) -> InstanceMaps {
    let strip = side / (OBJECTS + 1);
    let instance = |place: usize| ((place / strip.max(1)).min(OBJECTS)) as u16;
    let row: Vec<u16> = (0..side).map(instance).collect();
    InstanceMaps {
        height: side,
        width: side,
        values: row.repeat(side * batch),
    }
}

//! How fast a training step is, and where its time goes. Run by hand, on a quiet machine:
//! `cargo test -p engine --test speed -- --ignored --nocapture`, with `FOVEA_SPEED=yolo11n,320,16,2` (model, side,
//! batch, threads) for another case.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that can't go on fails, and its figures are read by people"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use engine::clock::Stopwatch;
use engine::loss::{Loss, LossInput, LossSettings, Targets};
use engine::models::{self, ModelSpec};
use engine::network::{Images, InputShape, Network};
use engine::optim::{Optimizer, OptimizerSettings, Rates, clip_gradient_norm};
use engine::parallel::Threads;

const STEPS: usize = 7;
const CLASSES: usize = 3;

struct Case {
    spec: ModelSpec,
    shape: InputShape,
    threads: Threads,
}

impl Case {
    fn from_environment() -> Self {
        let text = std::env::var_os("FOVEA_SPEED").map_or_else(
            || "yolo11n,320,16,2".to_owned(),
            |text| text.into_string().unwrap(),
        );
        let parts: Vec<&str> = text.split(',').collect();
        let number = |index: usize| parts[index].parse::<usize>().unwrap();
        Self {
            spec: ModelSpec::parse(parts[0], CLASSES).unwrap(),
            shape: InputShape::square(number(2), number(1)),
            threads: Threads::new(number(3)).unwrap(),
        }
    }

    fn targets(&self) -> Targets {
        let mut targets = Targets::empty(self.shape.batch);
        for image in 0..self.shape.batch as u32 {
            for index in 0..8 {
                let place = 0.1 + 0.1 * index as f32;
                targets.push(image, index % CLASSES as u32, [place, 0.5, 0.1, 0.2]);
            }
        }
        targets
    }
}

#[test]
#[ignore = "measures time; needs a quiet machine"]
fn how_long_a_step_takes() {
    let case = Case::from_environment();
    let Case {
        spec,
        shape,
        threads,
    } = &case;
    let tables = models::tables(spec);
    let mut state = models::initialise(spec, 1);
    let mut network = Network::train(spec, *shape, threads).unwrap();
    let mut loss = Loss::new(spec, LossSettings::default());
    let mut optimizer = Optimizer::new(&OptimizerSettings::sgd(), 5e-4, &tables.parameters);
    let mut gradient = vec![0.0; state.parameters.len()];
    let images: Vec<u8> = (0..3 * shape.pixel_count())
        .map(|i| (i * 31 % 251) as u8)
        .collect();
    let targets = case.targets();
    let rates = Rates {
        weight: 1e-3,
        norm: 1e-3,
        bias: 1e-3,
        momentum: 0.9,
    };

    let mut steps = Vec::new();
    let mut launches = Vec::new();
    let mut others: BTreeMap<&str, Duration> = BTreeMap::new();
    for step in 0..=STEPS {
        // The first step fills caches and predictors; of the others the quickest time of each launch counts, which
        // other programs disturb least.
        if step == 1 {
            others.clear();
            steps.clear();
        }
        network.start_timing();
        let whole = Stopwatch::start();
        network.forward(&mut state, Images::U8(&images));
        let watch = Stopwatch::start();
        let (outputs, mut outputs_gradients) = network.outputs_and_gradients();
        let input = LossInput {
            targets: &targets,
            image_size: (shape.height, shape.width),
            parameters: &state.parameters,
            threads,
        };
        let output = loss.compute(&outputs, &mut outputs_gradients, &mut gradient, &input);
        quickest(others.entry("loss").or_default(), watch.elapsed());
        assert!(output.total.is_finite());
        network.backward(&state, &mut gradient);
        let watch = Stopwatch::start();
        let clip = clip_gradient_norm(&gradient, 10.0, threads);
        optimizer.step(
            &mut state.parameters,
            &mut gradient,
            clip.factor,
            &rates,
            threads,
        );
        quickest(others.entry("optimiser").or_default(), watch.elapsed());
        steps.push(whole.elapsed());
        if step == 1 {
            launches = network.timings().to_vec();
        }
        for (best, &time) in launches.iter_mut().zip(network.timings()) {
            *best = (*best).min(time);
        }
    }
    steps.sort();
    let median = steps[steps.len() / 2].as_secs_f64();
    let plan = network.plan();
    println!(
        "{} batch {} at {}: {:.1} ms a step, {:.1} images/s (best {:.1}), {:.1} MB",
        spec.name(),
        shape.batch,
        shape.width,
        median * 1e3,
        shape.batch as f64 / median,
        shape.batch as f64 / steps[0].as_secs_f64(),
        plan.peak_bytes() as f64 / 1e6
    );

    let mut kinds: BTreeMap<String, (Duration, u64, u64, usize)> = BTreeMap::new();
    for (launch, time) in plan.launches().zip(&launches) {
        let shape = plan.launch_shape(launch);
        let kind = format!("{} {shape}", launch.kernel.kind());
        let entry = kinds.entry(kind).or_default();
        entry.0 += *time;
        entry.1 += launch.flops;
        entry.2 += launch.bytes;
        entry.3 += 1;
    }
    for (name, time) in others {
        kinds.entry(name.to_owned()).or_default().0 = time;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, (time, ..))| std::cmp::Reverse(*time));
    for (kind, (time, flops, bytes, count)) in kinds {
        let seconds = time.as_secs_f64();
        println!(
            "{kind:44} {:8.2} ms {:6.1} GFLOP/s {:6.1} GB/s, {count} launches",
            seconds * 1e3,
            flops as f64 / seconds / 1e9,
            bytes as f64 / seconds / 1e9
        );
    }
}

fn quickest(best: &mut Duration, time: Duration) {
    if best.is_zero() || time < *best {
        *best = time;
    }
}

//! The whole network against recorded numbers: every parameter is filled by a formula of its name, and layers,
//! loss, assignment, gradients, statistics and optimiser steps are compared with a double-precision run of the
//! reference. How far single precision may be off is recorded beside the numbers; ten times that is allowed.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that can't go on fails, and its figures are read by people"
)]

use std::path::PathBuf;

use engine::graph::Op;
use engine::loss::{Loss, LossInput, LossSettings, Targets};
use engine::models::{self, ModelSpec};
use engine::network::{Images, InputShape, Network, Role, State, TensorInfo};
use engine::optim::{
    GRADIENT_NORM_MAX, Optimizer, OptimizerKind, OptimizerSettings, Rates, clip_gradient_norm,
};
use engine::parallel::Threads;
use engine::plan::{Mode, Options};
use serde_json::Value;

const BATCH: usize = 2;
const SIDE: usize = 96;
/// How many times the recorded deviation of single precision is allowed.
const SLACK: f64 = 10.0;
/// What a tensor that is zero but for rounding may hold, in parts of the section's largest.
const ROUNDING: f64 = 1e-6;
/// The loss of single precision deviates by a tenth of this.
const LOSS_LIMIT: f64 = 2e-4;

/// The formula that fills tensors.
mod formula {
    use super::{BATCH, Role, SIDE, TensorInfo};

    const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

    fn seed(name: &str) -> u64 {
        name.bytes().fold(14_695_981_039_346_656_037, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
        })
    }

    /// Returns a number in [0, 1).
    fn unit(seed: u64, index: usize) -> f64 {
        let mut z = seed.wrapping_add((index as u64 + 1).wrapping_mul(GOLDEN_GAMMA));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        (z >> 40) as f64 / f64::from(1 << 24)
    }

    /// Fills one tensor.
    pub fn fill(tensor: &TensorInfo, head: &str, values: &mut [f32]) {
        let name = tensor.name.as_str();
        let (module, last) = name.rsplit_once('.').unwrap();
        let is_norm = module.ends_with(".bn");
        let in_branch = |branch: &str| name.starts_with(&format!("{head}.{branch}."));
        let (offset, scale) = match (last, is_norm) {
            ("weight", true) => (1.0, 0.25),
            ("bias" | "running_mean", true) => (0.0, 0.25),
            ("running_var", true) => (1.0, 0.5),
            ("weight", false) => {
                let inputs = tensor.element_count() / tensor.shape[0];
                (0.0, 1.45 * (3.0 / inputs as f64).sqrt())
            }
            ("bias", false) if in_branch("cv2") => (2.0, 0.5),
            ("bias", false) if in_branch("cv3") => (-4.0, 0.5),
            _ => panic!("no rule for {name}"),
        };
        let seed = seed(name);
        for (index, value) in values.iter_mut().enumerate() {
            *value = match tensor.role {
                Role::Frozen if !is_norm => index as f32,
                _ => (offset + scale * (2.0 * unit(seed, index) - 1.0)) as f32,
            };
        }
    }

    /// Returns the images, NHWC.
    pub fn images() -> Vec<f32> {
        let seed = seed("input");
        let mut values = vec![0.0; BATCH * SIDE * SIDE * 3];
        for (index, value) in values.iter_mut().enumerate() {
            let (channel, x) = (index % 3, index / 3 % SIDE);
            let (y, image) = (index / 3 / SIDE % SIDE, index / 3 / SIDE / SIDE);
            let flat = ((image * 3 + channel) * SIDE + y) * SIDE + x;
            let wave = (x * (channel + 1) + y * (image + 2)) % 32;
            *value = (0.5 * unit(seed, flat) + wave as f64 / 64.0) as f32;
        }
        values
    }
}

fn targets(class_count: usize) -> Targets {
    let mut targets = Targets::empty(BATCH);
    for (image, class, bounds) in [
        (0, 3, [0.30, 0.35, 0.40, 0.50]),
        (0, 17, [0.70, 0.60, 0.30, 0.35]),
        (0, 3, [0.52, 0.48, 0.10, 0.12]),
        (1, 0, [0.50, 0.50, 0.80, 0.70]),
        (1, 42, [0.20, 0.75, 0.22, 0.30]),
    ] {
        targets.push(image, class % class_count as u32, bounds);
    }
    targets
}

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

/// One recorded tensor: its size, its length as a vector, and samples at equal distances.
struct Record {
    name: String,
    rms: f64,
    samples: Vec<f64>,
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().unwrap().iter();
    list.map(|number| number.as_f64().unwrap()).collect()
}

impl Record {
    fn long(name: &str, value: &Value) -> Self {
        let count: f64 = numbers(&value["shape"]).into_iter().product();
        Self {
            name: name.to_owned(),
            rms: value["l2"].as_f64().unwrap() / count.sqrt(),
            samples: numbers(&value["at"]),
        }
    }

    fn short(name: &str, value: &Value, count: usize) -> Self {
        Self {
            name: name.to_owned(),
            rms: value[0].as_f64().unwrap() / (count as f64).sqrt(),
            samples: numbers(&value[2]),
        }
    }

    fn error(&self, values: &[f32]) -> f64 {
        let count = self.samples.len();
        let at = |j: usize| f64::from(values[j * values.len() / count]);
        let errors = self.samples.iter().enumerate();
        let worst = errors.map(|(j, sample)| (at(j) - sample).abs());
        let rms = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>();
        let rms_error = ((rms / values.len() as f64).sqrt() - self.rms).abs();
        worst.fold(rms_error, f64::max)
    }
}

/// Compares a section's tensors and says what was worst.
struct Section<'a> {
    name: &'a str,
    limit: f64,
    compared: Vec<(Record, f64)>,
}

impl<'a> Section<'a> {
    fn new(golden: &Value, name: &'a str) -> Self {
        let worst = golden["float32_deviation"][name]["worst"].as_f64().unwrap();
        Self {
            name,
            limit: SLACK * worst,
            compared: Vec::new(),
        }
    }

    fn compare(&mut self, record: Record, values: &[f32]) {
        let error = record.error(values);
        self.compared.push((record, error));
    }

    /// Returns what is out of bounds.
    fn finish(self, model: &str) -> Vec<String> {
        let largest = self.compared.iter().map(|(r, _)| r.rms).fold(0.0, f64::max);
        let floor = ROUNDING * largest;
        let mut ratios: Vec<(f64, &str)> = Vec::new();
        let mut failures = Vec::new();
        for (record, error) in &self.compared {
            if record.rms > floor {
                ratios.push((error / record.rms, &record.name));
            }
            if *error > (self.limit * record.rms).max(floor) || error.is_nan() {
                failures.push(format!(
                    "{model} {}: {} is off by {error:.2e}, its size is {:.2e}",
                    self.name, record.name, record.rms
                ));
            }
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (worst, place) = *ratios.last().unwrap();
        println!(
            "{model} {}: {} tensors, median {:.1e}, worst {worst:.1e} of {:.1e} allowed, at {place}",
            self.name,
            self.compared.len(),
            ratios[ratios.len() / 2].0,
            self.limit
        );
        failures
    }
}

/// Returns `[batch][channels][anchors]` of the levels' values.
fn joined(network: &Network, channels: usize, is_box: bool) -> Vec<f32> {
    let heads = network.outputs().branches.remove(0);
    let mut result = Vec::new();
    for image in 0..BATCH {
        for channel in 0..channels {
            for head in &heads {
                let cells = head.height * head.width;
                let (values, stride) = match is_box {
                    true => (head.boxes, head.box_stride),
                    false => (head.scores, head.score_stride),
                };
                let at = |cell: usize| values[(image * cells + cell) * stride + channel];
                result.extend((0..cells).map(at));
            }
        }
    }
    result
}

fn compare_rows(section: &mut Section<'_>, recorded: &Value, network: &Network) {
    for (index, &row) in network.plan().graph.rows.iter().enumerate() {
        let values = network.value(row).unwrap();
        let record = Record::long(&index.to_string(), &recorded[index.to_string()]);
        section.compare(record, &values);
    }
}

fn compare_heads(section: &mut Section<'_>, recorded: &Value, network: &Network) {
    let class_count = network.plan().spec.class_count;
    for (name, channels, is_box) in [("boxes", 64, true), ("scores", class_count, false)] {
        let record = Record::long(name, &recorded[name]);
        section.compare(record, &joined(network, channels, is_box));
    }
}

struct Case {
    golden: Value,
    spec: ModelSpec,
    state: State,
    images: Vec<f32>,
    threads: Threads,
}

impl Case {
    fn new(name: &str, golden: Value) -> Self {
        let class_count = golden["nc"].as_u64().unwrap() as usize;
        let spec = ModelSpec::parse(name, class_count).unwrap();
        let tables = models::tables(&spec);
        assert_eq!(
            Some(tables.parameter_count() as u64),
            golden["parameters"].as_u64()
        );
        let mut state = State {
            parameters: vec![0.0; tables.parameter_count()],
            buffers: vec![0.0; tables.buffer_count()],
        };
        for tensor in &tables.parameters {
            formula::fill(tensor, "model.23", &mut state.parameters[tensor.range()]);
        }
        for tensor in &tables.buffers {
            formula::fill(tensor, "model.23", &mut state.buffers[tensor.range()]);
        }
        Self {
            golden,
            spec,
            state,
            images: formula::images(),
            threads: Threads::new(2).unwrap(),
        }
    }

    fn network(&self, mode: Mode, keep_everything: bool) -> Network {
        let options = Options {
            keep_everything,
            ..Options::new(mode, self.threads.count())
        };
        let shape = InputShape::square(BATCH, SIDE);
        Network::with_options(&self.spec, shape, options, &self.threads).unwrap()
    }

    fn eval_layers(&self) -> Vec<String> {
        let mut section = Section::new(&self.golden, "eval_layers");
        let recorded = &self.golden["eval_layers"];
        let mut network = self.network(Mode::Infer, true);
        network.load(&self.state);
        network.infer_forward(Images::F32(&self.images));
        compare_rows(&mut section, recorded, &network);
        compare_heads(&mut section, &recorded["23"][1], &network);

        let mut reusing = self.network(Mode::Infer, false);
        reusing.load(&self.state);
        reusing.infer_forward(Images::F32(&self.images));
        let predictions = reusing.predictions();
        let mut turned = Vec::with_capacity(predictions.values.len());
        for image in 0..BATCH {
            let rows = predictions.image(image);
            for column in 0..predictions.row_length() {
                turned.extend(rows.iter().skip(column).step_by(predictions.row_length()));
            }
        }
        section.compare(Record::long("predictions", &recorded["23"][0]), &turned);
        section.finish(&self.spec.name())
    }

    fn train_layers(&self) -> Vec<String> {
        let mut rows = Section::new(&self.golden, "train_layers");
        let mut network = self.network(Mode::Train, true);
        network.forward(&mut self.state.clone(), Images::F32(&self.images));
        compare_rows(&mut rows, &self.golden["train_layers"], &network);
        compare_heads(&mut rows, &self.golden["train_layers"]["23"], &network);

        let mut convolutions = Section::new(&self.golden, "train_convs");
        for node in &network.plan().graph.nodes {
            if matches!(node.op, Op::Convolution(convolution) if convolution.norm.is_some()) {
                let values = network.value(node.outputs[0]).unwrap();
                let recorded = &self.golden["train_convs"][&node.name];
                convolutions.compare(Record::short(&node.name, recorded, values.len()), &values);
            }
        }
        let mut failures = rows.finish(&self.spec.name());
        failures.extend(convolutions.finish(&self.spec.name()));
        failures
    }

    /// One step of training: loss, assignment, gradients, statistics.
    fn step(&self) -> (Vec<String>, Vec<f32>) {
        let mut network = self.network(Mode::Train, false);
        let mut state = self.state.clone();
        network.forward(&mut state, Images::F32(&self.images));
        let mut loss = Loss::new(&self.spec, LossSettings::default());
        let targets = targets(self.spec.class_count);
        let (outputs, mut gradients) = network.outputs_and_gradients();
        let input = LossInput {
            targets: &targets,
            image_size: (SIDE, SIDE),
            parameters: &state.parameters,
            threads: &self.threads,
        };
        let mut gradient = vec![0.0; state.parameters.len()];
        let output = loss.compute(&outputs, &mut gradients, &mut gradient, &input);
        network.backward(&state, &mut gradient);

        let mut failures = self.loss(&output.items, output.total);
        failures.extend(self.assignment(&loss, output.score_sum));
        let tables = models::tables(&self.spec);
        let mut grads = Section::new(&self.golden, "grads");
        for tensor in &tables.parameters {
            let recorded = &self.golden["grads"][&tensor.name];
            if !recorded.is_null() {
                let record = Record::short(&tensor.name, recorded, tensor.element_count());
                grads.compare(record, &gradient[tensor.range()]);
            }
        }
        failures.extend(grads.finish(&self.spec.name()));
        let mut buffers = Section::new(&self.golden, "buffers");
        for tensor in &tables.buffers {
            let recorded = &self.golden["buffers"][&tensor.name];
            let record = Record::short(&tensor.name, recorded, tensor.element_count());
            buffers.compare(record, &state.buffers[tensor.range()]);
        }
        failures.extend(buffers.finish(&self.spec.name()));
        (failures, gradient)
    }

    fn loss(&self, items: &[f32], total: f64) -> Vec<String> {
        let recorded = &self.golden["loss_items"];
        let names = ["box_loss", "cls_loss", "dfl_loss"];
        let expected = names.map(|name| recorded[name].as_f64().unwrap());
        let all = items.iter().zip(expected).zip(names);
        let whole = self.golden["loss"].as_f64().unwrap();
        let pairs = all
            .map(|((&item, expected), name)| (name, f64::from(item), expected))
            .chain([("loss", total, whole)]);
        let mut failures = Vec::new();
        for (name, got, expected) in pairs {
            let deviation = (got / expected - 1.0).abs();
            println!("{} {name}: {deviation:.1e}", self.spec.name());
            if deviation.is_nan() || deviation > LOSS_LIMIT {
                failures.push(format!("{name}: {got} instead of {expected}"));
            }
        }
        failures
    }

    fn assignment(&self, loss: &Loss, score_sum: f64) -> Vec<String> {
        let recorded = &self.golden["assigned"][0];
        let mut failures = Vec::new();
        let expected: Vec<_> = recorded["foreground"]
            .as_array()
            .unwrap()
            .iter()
            .zip(numbers(&recorded["gt"]))
            .map(|(place, truth)| (numbers(place), truth as u32))
            .map(|(place, truth)| (place[0] as u32, place[1] as u32, truth))
            .collect();
        let mut assigned: Vec<_> = loss.assignments(0).collect();
        assigned.sort_by_key(|a| (a.image, a.anchor));
        let got: Vec<_> = assigned
            .iter()
            .map(|a| (a.image, a.anchor, a.ground_truth))
            .collect();
        if got != expected {
            failures.push(format!("assigned {got:?} instead of {expected:?}"));
            return failures;
        }
        let scores = numbers(&recorded["score"]);
        let largest = scores.iter().copied().fold(0.0, f64::max);
        let worst = assigned
            .iter()
            .zip(&scores)
            .map(|(a, score)| (a.score - score).abs() / largest)
            .fold(0.0, f64::max);
        let sum = score_sum / recorded["score_sum"].as_f64().unwrap() - 1.0;
        println!(
            "{} assigned: {} anchors the same, scores {worst:.1e}, their sum {sum:.1e}",
            self.spec.name(),
            got.len()
        );
        if worst > LOSS_LIMIT || sum.abs() > LOSS_LIMIT {
            failures.push(format!(
                "target scores are off by {worst}, their sum by {sum}"
            ));
        }
        failures
    }

    fn changes(&self, kind: OptimizerKind, rate: f64, momentum: f64, gradient: &[f32]) -> Vec<f32> {
        let tables = models::tables(&self.spec);
        let mut settings = OptimizerSettings::named(kind);
        settings.momentum = momentum;
        let mut optimizer = Optimizer::new(&settings, 5e-4, &tables.parameters);
        let rates = Rates {
            weight: rate,
            norm: rate,
            bias: rate,
            momentum,
        };
        let clip = clip_gradient_norm(gradient, GRADIENT_NORM_MAX, &self.threads);
        let mut parameters = self.state.parameters.clone();
        let mut gradient = gradient.to_vec();
        optimizer.step(
            &mut parameters,
            &mut gradient,
            clip.factor,
            &rates,
            &self.threads,
        );
        let pairs = parameters.iter().zip(&self.state.parameters);
        pairs.map(|(new, old)| new - old).collect()
    }

    fn optimisers(&self, gradient: &[f32]) -> Vec<String> {
        let mut failures = Vec::new();
        let norm = clip_gradient_norm(gradient, GRADIENT_NORM_MAX, &self.threads).norm;
        let deviation = (norm / self.golden["grad_norm"].as_f64().unwrap() - 1.0).abs();
        println!("{} grad_norm: {deviation:.1e}", self.spec.name());
        if deviation.is_nan() || deviation > LOSS_LIMIT {
            failures.push(format!("the gradient's norm is {norm}"));
        }

        let tables = models::tables(&self.spec);
        let change = self.changes(OptimizerKind::Sgd, 1.0, 0.937, gradient);
        let mut sgd = Section::new(&self.golden, "sgd_change");
        for tensor in tables.parameters.iter().filter(|t| t.role != Role::Frozen) {
            let recorded = &self.golden["sgd_change"][&tensor.name];
            let record = Record::short(&tensor.name, recorded, tensor.element_count());
            sgd.compare(record, &change[tensor.range()]);
        }
        failures.extend(sgd.finish(&self.spec.name()));
        failures.extend(self.adamw(&self.changes(OptimizerKind::AdamW, 1e-3, 0.9, gradient)));
        if self.golden["musgd_change"].is_object() {
            failures.extend(self.musgd(&self.changes(OptimizerKind::MuSgd, 0.01, 0.9, gradient)));
        }
        failures
    }

    /// Newton-Schulz enlarges what rounding leaves in small singular values, up to 480 times in five rounds, and
    /// changes of norm weights near 1 lose the digits below 6e-8: the limits are for the size of a whole tensor.
    fn musgd(&self, change: &[f32]) -> Vec<String> {
        let name = self.spec.name();
        let mut errors = [Vec::new(), Vec::new()];
        for tensor in models::tables(&self.spec).parameters {
            // The head's class branches are recorded without the speed-up they train with.
            if tensor.role == Role::Frozen || tensor.name.starts_with("model.23.cv3.") {
                continue;
            }
            let samples = numbers(&self.golden["musgd_change"][&tensor.name]);
            let values = &change[tensor.range()];
            let squares = values.iter().map(|&value| f64::from(value).powi(2));
            let size = (squares.sum::<f64>() / values.len() as f64).sqrt() + 1e-9;
            let pairs = samples.iter().enumerate();
            let worst = pairs.map(|(j, sample)| {
                let value = f64::from(values[j * values.len() / samples.len()]);
                (value - sample).abs() / size
            });
            let worst = worst.fold(0.0, f64::max);
            errors[usize::from(tensor.role == Role::Weight)].push((worst, tensor.name));
        }
        let mut failures = Vec::new();
        for (kind, errors) in ["plain", "matrices"].iter().zip(&mut errors) {
            errors.sort_by(|a, b| a.0.total_cmp(&b.0));
            let median = errors[errors.len() / 2].0;
            let (worst, place) = &errors[errors.len() - 1];
            println!(
                "{name} musgd_change, {kind}: median {median:.1e}, worst {worst:.1e} at {place}"
            );
            if median.is_nan() || median > 1e-3 || *worst > 0.1 {
                failures.push(format!("{name} musgd_change: {place} is off by {worst}"));
            }
        }
        failures
    }

    /// AdamW's first step is the sign of the gradient times the rate, but where the gradient is zero but for
    /// rounding, so that its sign means nothing.
    fn adamw(&self, change: &[f32]) -> Vec<String> {
        let zeroes = &self.golden["float32_deviation"]["grads"]["zero_but_for_rounding"];
        let zeroes: Vec<&str> = zeroes
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().trim_start_matches('/'))
            .collect();
        let limit = 5e-3;
        let mut worst = (0.0, String::new());
        for tensor in models::tables(&self.spec).parameters {
            if tensor.role == Role::Frozen || zeroes.contains(&tensor.name.as_str()) {
                continue;
            }
            let samples = numbers(&self.golden["adamw_change"][&tensor.name]);
            let values = &change[tensor.range()];
            for (j, sample) in samples.iter().enumerate() {
                let value = f64::from(values[j * values.len() / samples.len()]);
                let error = (value - sample).abs() / 1e-3;
                if error > worst.0 || error.is_nan() {
                    worst = (error, tensor.name.clone());
                }
            }
        }
        let (error, place) = worst;
        let name = self.spec.name();
        println!("{name} adamw_change: worst {error:.1e} of {limit:.1e} allowed, at {place}");
        match error <= limit {
            true => Vec::new(),
            false => vec![format!("{name} adamw_change: {place} is off by {error}")],
        }
    }
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

#[test]
fn yolo11n_agrees_with_the_recorded_numbers() {
    agree("yolo11n");
}

#[test]
fn yolo11s_agrees_with_the_recorded_numbers() {
    agree("yolo11s");
}

#[test]
fn yolo11m_agrees_with_the_recorded_numbers() {
    agree("yolo11m");
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
    let spec = ModelSpec::parse("yolo11n", 80).unwrap();
    let start = models::initialise(&spec, 7);
    let images = formula::images();
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
        let targets = targets(80);
        let (outputs, mut gradients) = network.outputs_and_gradients();
        let input = LossInput {
            targets: &targets,
            image_size: (SIDE, SIDE),
            parameters: &state.parameters,
            threads: &threads,
        };
        let mut gradient = vec![0.0; state.parameters.len()];
        loss.compute(&outputs, &mut gradients, &mut gradient, &input);
        network.backward(&state, &mut gradient);
        (state, gradient)
    };
    let one = step(1, false);
    assert!(one == step(2, false), "two threads");
    assert!(one == step(3, false), "three threads");
    assert!(one == step(2, true), "memory of its own for every value");
}

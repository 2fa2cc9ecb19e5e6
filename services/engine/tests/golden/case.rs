//! One model with its formula-made state: layers, head, loss, assignment, gradients, statistics.

use engine::decode::squeezed_angle;
use engine::graph::Op;
use engine::loss::{Loss, LossInput, LossSettings};
use engine::models::{self, Family, ModelSpec, Task};
use engine::network::{HeadLevel, Images, InputShape, Map, Network, Outputs, Predictions, State};
use engine::ops::conv2d::Algorithm;
use engine::parallel::Threads;
use engine::plan::{Branches, Mode, Options};
use serde_json::Value;

use super::record::{Record, Section, numbers};
use super::{BATCH, LOSS_LIMIT, SIDE, detections, formula};

/// How the one-to-many and the one-to-one branch are called in the files.
const BRANCHES: [&str; 2] = ["one2many", "one2one"];

pub struct Case {
    pub golden: Value,
    pub spec: ModelSpec,
    pub state: State,
    pub threads: Threads,
    images: Vec<f32>,
}

impl Case {
    pub fn new(name: &str, golden: Value) -> Self {
        let class_count = golden["nc"].as_u64().unwrap() as usize;
        let spec = ModelSpec::parse(name, class_count).unwrap();
        let tables = models::tables(&spec);
        assert_eq!(
            Some(tables.parameter_count() as u64),
            golden["parameters"].as_u64()
        );
        for (section, tensors) in [("grads", &tables.parameters), ("buffers", &tables.buffers)] {
            let recorded = golden[section].as_object().unwrap();
            assert_eq!(recorded.len(), tensors.len(), "{section}");
            for tensor in tensors {
                assert!(recorded.contains_key(&tensor.name), "{}", tensor.name);
            }
        }
        let mut state = State {
            parameters: vec![0.0; tables.parameter_count()],
            buffers: vec![0.0; tables.buffer_count()],
        };
        let mut case = Self {
            golden,
            spec,
            state: State::default(),
            threads: Threads::new(2).unwrap(),
            images: formula::images(),
        };
        let head = case.head_name();
        for tensor in &tables.parameters {
            formula::fill(tensor, &head, &mut state.parameters[tensor.range()]);
        }
        for tensor in &tables.buffers {
            formula::fill(tensor, &head, &mut state.buffers[tensor.range()]);
        }
        case.state = state;
        case
    }

    pub fn name(&self) -> String {
        self.spec.name()
    }

    /// Returns the name of the head's row.
    pub fn head_name(&self) -> String {
        format!("model.{}", self.head_row())
    }

    fn head_row(&self) -> usize {
        models::graph(&self.spec).rows.len()
    }

    fn network(&self, mode: Mode, branches: Branches, keep_everything: bool) -> Network {
        let options = Options {
            branches,
            keep_everything,
            // Winograd rounds otherwise; it is compared with this in the network's own tests.
            algorithm: Some(Algorithm::Direct),
            ..Options::new(mode, self.threads.count())
        };
        let shape = InputShape::square(BATCH, SIDE);
        Network::with_options(&self.spec, shape, options, &self.threads).unwrap()
    }

    fn predictor(&self, branches: Branches, keep_everything: bool) -> Network {
        let mut network = self.network(Mode::Infer, branches, keep_everything);
        network.load(&self.state);
        network.infer_forward(Images::F32(&self.images));
        network
    }

    pub fn eval_layers(&self) -> Vec<String> {
        let mut section = Section::new(&self.golden, "eval_layers");
        let recorded = &self.golden["eval_layers"];
        let network = self.predictor(Branches::Both, true);
        compare_rows(&mut section, recorded, &network);
        let head = &recorded[self.head_row().to_string()];
        self.compare_outputs(&mut section, &head[1], &network.outputs());

        let reusing = self.predictor(Branches::OneToMany, false);
        let predictions = turned(&reusing.predictions());
        let decoded = match self.spec.task {
            Task::Segment => &head[0][0],
            _ => &head[0],
        };
        section.compare(Record::long("predictions", decoded), &predictions);
        if self.spec.task != Task::Classify {
            detections::agree(&self.spec, &reusing);
        }
        if let Some(map) = reusing.outputs().prototypes {
            section.compare(
                Record::long("prototypes", &head[0][1]),
                &channels_first(map),
            );
        }
        section.finish(&self.name())
    }

    pub fn train_layers(&self) -> Vec<String> {
        let mut rows = Section::new(&self.golden, "train_layers");
        let recorded = &self.golden["train_layers"];
        let mut network = self.network(Mode::Train, Branches::default(), true);
        network.forward(&mut self.state.clone(), Images::F32(&self.images));
        compare_rows(&mut rows, recorded, &network);
        let head = &recorded[self.head_row().to_string()];
        self.compare_outputs(&mut rows, head, &network.outputs());

        let mut convolutions = Section::new(&self.golden, "train_convs");
        let recorded = self.golden["train_convs"].as_object().unwrap();
        let mut count = 0;
        for node in &network.plan().graph.nodes {
            if matches!(node.op, Op::Convolution(convolution) if convolution.norm.is_some()) {
                let values = network.value(node.outputs[0]).unwrap();
                let record = Record::short(&node.name, &recorded[&node.name], values.len());
                convolutions.compare(record, &values);
                count += 1;
            }
        }
        assert_eq!(count, recorded.len(), "every convolution is recorded");
        let mut failures = rows.finish(&self.name());
        failures.extend(convolutions.finish(&self.name()));
        failures
    }

    fn compare_outputs(&self, section: &mut Section<'_>, recorded: &Value, outputs: &Outputs<'_>) {
        if let Some(logits) = outputs.logits {
            section.compare(Record::long("logits", recorded), &channels_first(logits));
            return;
        }
        let is_twin = self.spec.family.is_end_to_end();
        assert_eq!(outputs.branches.len(), 1 + usize::from(is_twin));
        for (levels, branch) in outputs.branches.iter().zip(BRANCHES) {
            let recorded = if is_twin { &recorded[branch] } else { recorded };
            self.compare_branch(section, recorded, levels, branch);
            let prototypes = match &recorded["proto"] {
                Value::Array(both) => &both[0],
                one => one,
            };
            if let Some(map) = outputs.prototypes {
                let name = format!("{branch} prototypes");
                section.compare(Record::long(&name, prototypes), &channels_first(map));
            }
            if let Some(map) = outputs.semantic {
                let name = format!("{branch} semantic");
                let record = Record::long(&name, &recorded["proto"][1]);
                section.compare(record, &channels_first(map));
            }
        }
    }

    fn compare_branch(
        &self,
        section: &mut Section<'_>,
        recorded: &Value,
        levels: &[HeadLevel<'_>],
        branch: &str,
    ) {
        let extra = match self.spec.task {
            Task::Segment => "mask_coefficient",
            Task::Pose => "kpts",
            Task::Obb => "angle",
            _ => "",
        };
        let mut compare = |key: &str, values: Vec<f32>| {
            let record = Record::long(&format!("{branch} {key}"), &recorded[key]);
            section.compare(record, &values);
        };
        let bins = self.spec.family.bins();
        compare(
            "boxes",
            joined(levels, 4 * bins, |level| {
                (level.boxes.to_vec(), level.box_stride)
            }),
        );
        compare(
            "scores",
            joined(levels, self.spec.class_count, |level| {
                (level.scores.to_vec(), level.score_stride)
            }),
        );
        if !extra.is_empty() {
            let count = self.spec.extra_channels();
            let mut values = joined(levels, count, |level| {
                (level.extra.to_vec(), level.extra_stride)
            });
            if self.spec.task == Task::Obb && self.spec.family != Family::Yolo26 {
                values
                    .iter_mut()
                    .for_each(|raw| *raw = squeezed_angle(*raw));
            }
            compare(extra, values);
        }
        let has_sigma = levels.iter().all(|level| level.sigma_stride > 0);
        assert_eq!(has_sigma, recorded["kpts_sigma"].is_object());
        if has_sigma {
            let count = 2 * self.spec.keypoints.unwrap().count;
            let values = joined(levels, count, |level| {
                (level.sigma.to_vec(), level.sigma_stride)
            });
            compare("kpts_sigma", values);
        }
    }

    /// One step of training: loss, assignment, gradients, statistics.
    pub fn step(&self) -> (Vec<String>, Vec<f32>) {
        let mut network = self.network(Mode::Train, Branches::default(), false);
        let mut state = self.state.clone();
        network.forward(&mut state, Images::F32(&self.images));
        let mut loss = loss_of(&self.spec);
        let targets = formula::targets(&self.spec);
        let (outputs, mut output_gradients) = network.outputs_and_gradients();
        let branch_count = outputs.branches.len();
        let input = LossInput {
            targets: &targets,
            image_size: (SIDE, SIDE),
            parameters: &state.parameters,
            threads: &self.threads,
        };
        let mut gradient = vec![0.0; state.parameters.len()];
        let output = loss.compute(&outputs, &mut output_gradients, &mut gradient, &input);
        let mut vector = f64_items(&output.items);
        if let [first, _] = &outputs.branches[..] {
            let alone = Outputs {
                branches: vec![first.clone()],
                ..outputs.clone()
            };
            let one_to_many = loss_of(&self.spec).evaluate(&alone, &input);
            let weights = loss.branch_weights(2);
            for (item, &other) in vector.iter_mut().zip(one_to_many.items.iter()) {
                *item = weights[0] * f64::from(other) + weights[1] * *item;
            }
        }
        network.backward(&state, &mut gradient);

        let items = f64_items(&output.items);
        let mut failures = self.loss(loss.item_names(), &items, output.total);
        failures.extend(self.loss_vector(&vector));
        for branch in 0..branch_count {
            failures.extend(self.assignment(&loss, branch));
        }
        let tables = models::tables(&self.spec);
        let mut grads = Section::new(&self.golden, "grads");
        for tensor in &tables.parameters {
            let recorded = &self.golden["grads"][&tensor.name];
            if !recorded.is_null() {
                let record = Record::short(&tensor.name, recorded, tensor.element_count());
                grads.compare(record, &gradient[tensor.range()]);
            }
        }
        failures.extend(grads.finish(&self.name()));
        let mut buffers = Section::new(&self.golden, "buffers");
        for tensor in &tables.buffers {
            let recorded = &self.golden["buffers"][&tensor.name];
            let record = Record::short(&tensor.name, recorded, tensor.element_count());
            buffers.compare(record, &state.buffers[tensor.range()]);
        }
        failures.extend(buffers.finish(&self.name()));
        (failures, gradient)
    }

    /// Compares the items of all branches together, as often as there are images.
    fn loss_vector(&self, items: &[f64]) -> Vec<String> {
        let expected = numbers(&self.golden["loss_vector"]);
        assert_eq!(items.len(), expected.len());
        let factor = match self.spec.task {
            Task::Classify => 1.0,
            _ => BATCH as f64,
        };
        let deviation = |(item, &expected): (&f64, &f64)| match expected {
            0.0 => item.abs(),
            expected => (factor * item / expected - 1.0).abs(),
        };
        let deviations: Vec<f64> = items.iter().zip(&expected).map(deviation).collect();
        let worst = deviations.iter().copied().fold(0.0, f64::max);
        println!("{} loss_vector: worst {worst:.1e}", self.name());
        if deviations.iter().all(|deviation| *deviation <= LOSS_LIMIT) {
            return Vec::new();
        }
        vec![format!(
            "loss_vector: {items:?} times {factor} instead of {expected:?}"
        )]
    }

    fn loss(&self, names: &[&str], items: &[f64], total: f64) -> Vec<String> {
        let recorded = self.golden["loss_items"].as_object().unwrap();
        assert_eq!(recorded.len(), names.len());
        let whole = self.golden["loss"].as_f64().unwrap();
        let pairs = names
            .iter()
            .zip(items)
            .map(|(&name, &item)| (name, item, recorded[name].as_f64().unwrap()))
            .chain([("loss", total, whole)]);
        let mut failures = Vec::new();
        for (name, got, expected) in pairs {
            let deviation = match expected {
                0.0 => got.abs(),
                expected => (got / expected - 1.0).abs(),
            };
            println!("{} {name}: {deviation:.1e}", self.name());
            if deviation.is_nan() || deviation > LOSS_LIMIT {
                failures.push(format!("{name}: {got} instead of {expected}"));
            }
        }
        failures
    }

    fn assignment(&self, loss: &Loss, branch: usize) -> Vec<String> {
        let recorded = &self.golden["assigned"][branch];
        let place = format!("{} {}", self.name(), recorded["branch"].as_str().unwrap());
        let expected: Vec<_> = recorded["foreground"]
            .as_array()
            .unwrap()
            .iter()
            .zip(numbers(&recorded["gt"]))
            .map(|(place, truth)| (numbers(place), truth as u32))
            .map(|(place, truth)| (place[0] as u32, place[1] as u32, truth))
            .collect();
        let mut assigned: Vec<_> = loss.assignments(branch).collect();
        assigned.sort_by_key(|a| (a.image, a.anchor));
        let got: Vec<_> = assigned
            .iter()
            .map(|a| (a.image, a.anchor, a.ground_truth))
            .collect();
        if got != expected {
            return vec![format!("{place}: assigned {got:?} instead of {expected:?}")];
        }
        let scores = numbers(&recorded["score"]);
        let largest = scores.iter().copied().fold(0.0, f64::max);
        let worst = assigned
            .iter()
            .zip(&scores)
            .map(|(a, score)| (a.score - score).abs() / largest)
            .fold(0.0, f64::max);
        let sum: f64 = assigned.iter().map(|a| a.score).sum();
        let sum = sum / recorded["score_sum"].as_f64().unwrap() - 1.0;
        println!(
            "{place} assigned: {} anchors the same, scores {worst:.1e}, their sum {sum:.1e}",
            got.len()
        );
        if worst > LOSS_LIMIT || sum.abs() > LOSS_LIMIT {
            return vec![format!(
                "{place}: target scores are off by {worst}, their sum by {sum}"
            )];
        }
        Vec::new()
    }
}

fn loss_of(spec: &ModelSpec) -> Loss {
    Loss::new(spec, LossSettings::default())
}

fn f64_items(items: &[f32]) -> Vec<f64> {
    items.iter().map(|&item| f64::from(item)).collect()
}

fn compare_rows(section: &mut Section<'_>, recorded: &Value, network: &Network) {
    for (index, &row) in network.plan().graph.rows.iter().enumerate() {
        let values = network.value(row).unwrap();
        let record = Record::long(&index.to_string(), &recorded[index.to_string()]);
        section.compare(record, &values);
    }
}

/// Returns `[batch][channels][anchors]` of one of the levels' outputs.
fn joined(
    levels: &[HeadLevel<'_>],
    channels: usize,
    output: impl Fn(&HeadLevel<'_>) -> (Vec<f32>, usize),
) -> Vec<f32> {
    let outputs: Vec<_> = levels
        .iter()
        .map(|level| (output(level), level.height * level.width))
        .collect();
    let mut result = Vec::new();
    for image in 0..BATCH {
        for channel in 0..channels {
            for ((values, stride), cells) in &outputs {
                let at = |cell: usize| values[(image * cells + cell) * stride + channel];
                result.extend((0..*cells).map(at));
            }
        }
    }
    result
}

/// Returns `[batch][channel][y][x]`, without padding.
fn channels_first(map: Map<'_>) -> Vec<f32> {
    let cells = map.height * map.width;
    let mut result = Vec::with_capacity(BATCH * cells * map.channels);
    for image in 0..BATCH {
        for channel in 0..map.channels {
            let at = |cell: usize| map.values[(image * cells + cell) * map.pixel_stride + channel];
            result.extend((0..cells).map(at));
        }
    }
    result
}

/// Returns `[batch][column][row]`.
fn turned(predictions: &Predictions<'_>) -> Vec<f32> {
    let mut result = Vec::with_capacity(predictions.values.len());
    for image in 0..BATCH {
        let rows = predictions.image(image);
        for column in 0..predictions.row_length() {
            result.extend(rows.iter().skip(column).step_by(predictions.row_length()));
        }
    }
    result
}

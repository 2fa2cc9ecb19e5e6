//! One step of each optimiser, from the recorded start.

use engine::models;
use engine::network::{Role, TensorInfo};
use engine::optim::{
    GRADIENT_NORM_MAX, Optimizer, OptimizerKind, OptimizerSettings, Rates, clip_gradient_norm,
};

use super::LOSS_LIMIT;
use super::case::Case;
use super::record::{ROUNDING, Record, Section, numbers};

impl Case {
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

    pub fn optimisers(&self, gradient: &[f32]) -> Vec<String> {
        let mut failures = Vec::new();
        let norm = clip_gradient_norm(gradient, GRADIENT_NORM_MAX, &self.threads).norm;
        let deviation = (norm / self.golden["grad_norm"].as_f64().unwrap() - 1.0).abs();
        println!("{} grad_norm: {deviation:.1e}", self.name());
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
        failures.extend(sgd.finish(&self.name()));
        let change = self.changes(OptimizerKind::AdamW, 1e-3, 0.9, gradient);
        failures.extend(self.adamw(&change, gradient));
        if self.golden["musgd_change"].is_object() {
            failures.extend(self.musgd(&self.changes(OptimizerKind::MuSgd, 0.01, 0.9, gradient)));
        }
        failures
    }

    /// Newton-Schulz enlarges what rounding leaves in small singular values, up to 480 times in five rounds, and
    /// changes of norm weights near 1 lose the digits below 6e-8: the limits are for the size of a whole tensor.
    fn musgd(&self, change: &[f32]) -> Vec<String> {
        let name = &self.name();
        let mut errors = [Vec::new(), Vec::new()];
        for tensor in models::tables(&self.spec).parameters {
            // The head's class branches are recorded without the speed-up they train with.
            let is_boosted = ["cv3.", "one2one_cv3."].iter().any(|chain| {
                tensor
                    .name
                    .starts_with(&format!("{}.{chain}", self.head_name()))
            });
            if tensor.role == Role::Frozen || is_boosted {
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

    /// AdamW's first step is the sign of the gradient times the rate. Where the gradient is smaller than single
    /// precision may be off by, its sign means nothing.
    fn adamw(&self, change: &[f32], gradient: &[f32]) -> Vec<String> {
        let uncertain = Section::new(&self.golden, "grads").limit;
        let limit = 5e-3;
        let (mut worst, mut compared, mut skipped) = ((0.0, String::new()), 0, 0);
        let largest = self.largest_gradient_rms();
        for tensor in models::tables(&self.spec).parameters {
            if tensor.role == Role::Frozen {
                continue;
            }
            let recorded = &self.golden["grads"][&tensor.name];
            let rms = Record::short("", recorded, tensor.element_count()).rms;
            let floor = (uncertain * rms).max(ROUNDING * largest);
            let samples = numbers(&self.golden["adamw_change"][&tensor.name]);
            for (j, sample) in samples.iter().enumerate() {
                let place = tensor.offset + j * tensor.element_count() / samples.len();
                if f64::from(gradient[place]).abs() < floor {
                    skipped += 1;
                    continue;
                }
                compared += 1;
                let error = (f64::from(change[place]) - sample).abs() / 1e-3;
                if error > worst.0 || error.is_nan() {
                    worst = (error, tensor.name.clone());
                }
            }
        }
        let (error, place) = worst;
        let name = &self.name();
        println!(
            "{name} adamw_change: {compared} numbers ({skipped} of no certain sign), \
             worst {error:.1e} of {limit:.1e} allowed, at {place}"
        );
        match error <= limit && compared > 4 * skipped {
            true => Vec::new(),
            false => vec![format!("{name} adamw_change: {place} is off by {error}")],
        }
    }

    fn largest_gradient_rms(&self) -> f64 {
        let tables = models::tables(&self.spec);
        let recorded = |tensor: &TensorInfo| &self.golden["grads"][&tensor.name];
        let trained = tables.parameters.iter().filter(|t| !recorded(t).is_null());
        let rms = trained.map(|t| Record::short("", recorded(t), t.element_count()).rms);
        rms.fold(0.0, f64::max)
    }
}

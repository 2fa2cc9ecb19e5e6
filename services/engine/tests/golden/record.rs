//! Recorded tensors, and how far a section's may be from ours.

use serde_json::Value;

/// How many times the recorded deviation of single precision is allowed.
const SLACK: f64 = 10.0;
/// What a tensor that is zero but for rounding may hold, in parts of the section's largest.
pub const ROUNDING: f64 = 1e-6;

/// One recorded tensor: its size, its length as a vector, and samples at equal distances.
pub struct Record {
    pub name: String,
    pub rms: f64,
    samples: Vec<f64>,
}

pub fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().unwrap().iter();
    list.map(|number| number.as_f64().unwrap()).collect()
}

impl Record {
    pub fn long(name: &str, value: &Value) -> Self {
        let count: f64 = numbers(&value["shape"]).into_iter().product();
        Self {
            name: name.to_owned(),
            rms: value["l2"].as_f64().unwrap() / count.sqrt(),
            samples: numbers(&value["at"]),
        }
    }

    pub fn short(name: &str, value: &Value, count: usize) -> Self {
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
pub struct Section<'a> {
    name: &'a str,
    pub limit: f64,
    compared: Vec<(Record, f64)>,
}

impl<'a> Section<'a> {
    pub fn new(golden: &Value, name: &'a str) -> Self {
        let deviation = &golden["float32_deviation"][name];
        Self {
            name,
            limit: SLACK * deviation["worst"].as_f64().unwrap(),
            compared: Vec::new(),
        }
    }

    pub fn compare(&mut self, record: Record, values: &[f32]) {
        let error = record.error(values);
        self.compared.push((record, error));
    }

    /// Returns what is out of bounds.
    pub fn finish(self, model: &str) -> Vec<String> {
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

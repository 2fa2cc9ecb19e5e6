//! Which optimiser a run uses, and with which numbers.

use crate::{Error, Result};

use super::schedule::{NOMINAL_BATCH, accumulate};

/// Above this many steps of the nominal batch `auto` picks MuSGD.
const AUTO_ITERATIONS_MAX: usize = 10_000;

/// The rule that turns a gradient into a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum OptimizerKind {
    /// Gradient descent with Nesterov momentum.
    #[serde(rename = "SGD")]
    Sgd,
    /// Adam with decoupled weight decay.
    AdamW,
    /// Gradient descent whose matrices also take an orthogonalised step.
    #[serde(rename = "MuSGD")]
    MuSgd,
}

impl OptimizerKind {
    /// Every kind, by the name a user writes.
    pub const NAMES: [(&'static str, Self); 3] = [
        ("SGD", Self::Sgd),
        ("AdamW", Self::AdamW),
        ("MuSGD", Self::MuSgd),
    ];

    /// Parses a name; capitals do not matter.
    pub fn parse(name: &str) -> Result<Self> {
        let known = Self::NAMES.into_iter();
        let mut fitting = known.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        fitting.next().map(|(_, kind)| kind).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _)| name).join(", ");
            Error::Argument {
                argument: "optimizer",
                rule: format!("must be auto or one of {names}, not '{name}'"),
            }
        })
    }

    /// Returns the name a user writes.
    pub fn name(self) -> &'static str {
        let mut names = Self::NAMES.into_iter();
        let (name, _) = names
            .find(|(_, kind)| *kind == self)
            .expect("invariant: every kind has a name");
        name
    }
}

/// An optimiser and its rates before any schedule.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct OptimizerSettings {
    pub kind: OptimizerKind,
    /// The rate after warm-up (`lr0`).
    pub learning_rate: f64,
    /// The momentum; AdamW's first β.
    pub momentum: f64,
    /// Where the biases' rate starts in warm-up.
    pub warmup_bias_learning_rate: f64,
}

impl OptimizerSettings {
    /// Returns an optimiser named by the user, with the default rates.
    pub fn named(kind: OptimizerKind) -> Self {
        Self {
            kind,
            learning_rate: 0.01,
            momentum: 0.937,
            warmup_bias_learning_rate: 0.1,
        }
    }

    /// Returns gradient descent with the default rates.
    pub fn sgd() -> Self {
        Self::named(OptimizerKind::Sgd)
    }
}

/// Returns what the recipe picks for a run when the user names no optimiser.
pub fn auto(
    image_count: usize,
    batch: usize,
    epochs: usize,
    class_count: usize,
) -> OptimizerSettings {
    let iterations = image_count.div_ceil(batch.max(NOMINAL_BATCH)) * epochs;
    let (kind, learning_rate) = if iterations > AUTO_ITERATIONS_MAX {
        (OptimizerKind::MuSgd, 0.01)
    } else {
        let rate = 0.002 * 5.0 / (4 + class_count) as f64;
        (OptimizerKind::AdamW, (rate * 1e6).round_ties_even() / 1e6)
    };
    OptimizerSettings {
        kind,
        learning_rate,
        momentum: 0.9,
        warmup_bias_learning_rate: 0.0,
    }
}

/// Returns the weight decay to use when steps take in more or fewer images than the nominal batch.
pub fn scaled_weight_decay(weight_decay: f64, batch: usize) -> f64 {
    weight_decay * (batch * accumulate(batch)) as f64 / NOMINAL_BATCH as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_follows_the_length_of_the_run_and_the_class_count() {
        for (class_count, rate) in [(3, 0.001429), (80, 0.000119), (1, 0.002)] {
            let settings = auto(765, 16, 60, class_count);
            assert_eq!(settings.kind, OptimizerKind::AdamW);
            assert_eq!((settings.learning_rate, settings.momentum), (rate, 0.9));
        }
        let nominal = auto(64 * 100, 16, 100, 80);
        assert_eq!(nominal.kind, OptimizerKind::AdamW);
        let longer = auto(64 * 100 + 1, 16, 100, 80);
        assert_eq!(longer.kind, OptimizerKind::MuSgd);
        assert_eq!((longer.learning_rate, longer.momentum), (0.01, 0.9));
        assert_eq!(auto(64 * 100 + 1, 128, 100, 80).kind, OptimizerKind::AdamW);
    }

    #[test]
    fn the_decay_follows_the_images_of_one_step() {
        assert_eq!(scaled_weight_decay(5e-4, 16), 5e-4);
        assert_eq!(scaled_weight_decay(5e-4, 128), 1e-3);
        assert_eq!(scaled_weight_decay(5e-4, 24), 5e-4 * 72.0 / 64.0);
    }

    #[test]
    fn names_parse_in_any_case_and_others_are_refused() {
        for (name, kind) in OptimizerKind::NAMES {
            assert_eq!(OptimizerKind::parse(&name.to_lowercase()).unwrap(), kind);
            assert_eq!(kind.name(), name);
        }
        let error = OptimizerKind::parse("Adagrad").unwrap_err().to_string();
        assert_eq!(
            error,
            "optimizer: must be auto or one of SGD, AdamW, MuSGD, not 'Adagrad'"
        );
    }
}

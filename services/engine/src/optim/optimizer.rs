//! The optimisers: SGD with Nesterov momentum, AdamW and MuSGD, over flat vectors.

use crate::network::{Role, TensorInfo};
use crate::parallel::Threads;
use crate::{Error, Result};

use super::muon::Muon;
use super::pieces::{Piece, Pieces};
use super::schedule::Rates;
use super::settings::{OptimizerKind, OptimizerSettings};

/// AdamW's second β: how slowly the squares are forgotten.
const SQUARE_DECAY: f64 = 0.999;
/// Keeps AdamW's division finite.
const EPSILON: f32 = 1e-8;

/// MuSGD's extra speed of the class branches.
pub const CLASS_BRANCH_BOOST: f32 = 3.0;
/// The parts of a tensor's name that mark a class branch of a head.
const CLASS_BRANCHES: [&str; 3] = [".cv3.", ".one2one_cv3.", ".proto.semseg."];

/// One of an optimiser's own vectors, as long as the parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    pub name: &'static str,
    pub values: Vec<f32>,
}

/// An optimiser with its memory.
#[derive(Debug, Clone)]
pub struct Optimizer {
    kind: OptimizerKind,
    first_decay: f64,
    weight_decay: f32,
    pieces: Pieces,
    /// The matrices, which MuSGD treats by themselves.
    muon: Muon,
    step_count: u64,
    moments: Vec<Moment>,
}

impl Optimizer {
    /// Creates an optimiser without memory. `weight_decay` is the one for the batch at hand, see
    /// [`super::scaled_weight_decay`]; `tensors` describe the parameters in the order of their offsets.
    pub fn new(settings: &OptimizerSettings, weight_decay: f64, tensors: &[TensorInfo]) -> Self {
        let is_boosting = settings.kind == OptimizerKind::MuSgd;
        let scale = |tensor: &TensorInfo| {
            if is_boosting && is_class_branch(&tensor.name) {
                CLASS_BRANCH_BOOST
            } else {
                1.0
            }
        };
        let pieces = Pieces::new(tensors, scale);
        let names: &[&'static str] = match settings.kind {
            OptimizerKind::Sgd => &["momentum"],
            OptimizerKind::AdamW => &["mean", "square"],
            OptimizerKind::MuSgd => &["momentum", "muon_momentum"],
        };
        let empty = |&name| Moment {
            name,
            values: vec![0.0; pieces.element_count],
        };
        Self {
            kind: settings.kind,
            first_decay: settings.momentum,
            weight_decay: weight_decay as f32,
            moments: names.iter().map(empty).collect(),
            muon: Muon::new(tensors, scale),
            pieces,
            step_count: 0,
        }
    }

    /// Returns the rule it follows.
    pub fn kind(&self) -> OptimizerKind {
        self.kind
    }

    /// Returns how many steps were made.
    pub fn step_count(&self) -> u64 {
        self.step_count
    }

    /// Returns its memory, to be saved.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// Continues from a saved memory: `values` returns the vector saved under a name.
    pub fn restore(
        &mut self,
        step_count: u64,
        mut values: impl FnMut(&str) -> Option<Vec<f32>>,
    ) -> Result<()> {
        let mut restored = Vec::with_capacity(self.moments.len());
        for moment in &self.moments {
            let refuse = |rule: String| Error::Checkpoint {
                place: format!("optimizer.{}", moment.name),
                rule,
            };
            let values = values(moment.name)
                .ok_or_else(|| refuse(format!("{} needs it", self.kind.name())))?;
            if values.len() != moment.values.len() {
                return Err(refuse(format!(
                    "must have {} elements, not {}",
                    moment.values.len(),
                    values.len()
                )));
            }
            restored.push(Moment {
                name: moment.name,
                values,
            });
        }
        self.moments = restored;
        self.step_count = step_count;
        Ok(())
    }

    /// Changes the parameters by one step along `gradient · factor` and clears the gradient.
    pub fn step(
        &mut self,
        parameters: &mut [f32],
        gradient: &mut [f32],
        factor: f32,
        rates: &Rates,
        threads: &Threads,
    ) {
        self.step_count += 1;
        match self.kind {
            OptimizerKind::Sgd => self.descend(parameters, gradient, factor, rates, threads),
            OptimizerKind::AdamW => self.adapt(parameters, gradient, factor, rates, threads),
            OptimizerKind::MuSgd => {
                let rate = rates.weight as f32;
                let momentum = rates.momentum as f32;
                let memory = &mut self.moments[1].values;
                self.muon.step(
                    parameters, gradient, factor, memory, rate, momentum, threads,
                );
                self.descend(parameters, gradient, factor, rates, threads);
            }
        }
    }

    fn descend(
        &mut self,
        parameters: &mut [f32],
        gradient: &mut [f32],
        factor: f32,
        rates: &Rates,
        threads: &Threads,
    ) {
        let momentum = rates.momentum as f32;
        let weight_decay = self.weight_decay;
        let vectors = [parameters, gradient, &mut self.moments[0].values];
        self.pieces.run(vectors, threads, |piece, [p, g, memory]| {
            let rate = rate_of(piece, rates);
            let decay = decay_of(piece, weight_decay);
            for ((p, g), memory) in p.iter_mut().zip(g).zip(memory) {
                let slope = *g * factor + decay * *p;
                *memory = momentum * *memory + slope;
                *p -= rate * (slope + momentum * *memory);
                *g = 0.0;
            }
        });
    }

    fn adapt(
        &mut self,
        parameters: &mut [f32],
        gradient: &mut [f32],
        factor: f32,
        rates: &Rates,
        threads: &Threads,
    ) {
        let steps = i32::try_from(self.step_count).unwrap_or(i32::MAX);
        let mean_bias = 1.0 - self.first_decay.powi(steps);
        let square_bias = (1.0 - SQUARE_DECAY.powi(steps)).sqrt() as f32;
        let mean_share = (1.0 - self.first_decay) as f32;
        let (square_keep, square_share) = (SQUARE_DECAY as f32, (1.0 - SQUARE_DECAY) as f32);
        let weight_decay = self.weight_decay;
        let [mean, square] = &mut self.moments[..] else {
            unreachable!("invariant: AdamW keeps two moments");
        };
        let vectors = [parameters, gradient, &mut mean.values, &mut square.values];
        self.pieces
            .run(vectors, threads, |piece, [p, g, mean, square]| {
                let rate = rate_of(piece, rates);
                let keep = 1.0 - rate * decay_of(piece, weight_decay);
                let step = (f64::from(rate) / mean_bias) as f32;
                for (((p, g), mean), square) in p.iter_mut().zip(g).zip(mean).zip(square) {
                    let slope = *g * factor;
                    *mean += mean_share * (slope - *mean);
                    *square = square_keep * *square + square_share * slope * slope;
                    *p = *p * keep - step * (*mean / (square.sqrt() / square_bias + EPSILON));
                    *g = 0.0;
                }
            });
    }
}

fn rate_of(piece: &Piece, rates: &Rates) -> f32 {
    let rate = match piece.role {
        Role::Weight => rates.weight,
        Role::NormWeight => rates.norm,
        Role::Bias => rates.bias,
        Role::Frozen => 0.0,
    };
    rate as f32 * piece.scale
}

fn decay_of(piece: &Piece, weight_decay: f32) -> f32 {
    if piece.role == Role::Weight {
        weight_decay
    } else {
        0.0
    }
}

/// Returns whether a tensor belongs to a class branch of the head. Inside the backbone `cv3` is the last
/// convolution of a block, which is followed by no level: `model.6.m.0.cv3.conv.weight`.
fn is_class_branch(name: &str) -> bool {
    CLASS_BRANCHES.iter().any(|branch| {
        let after = name.split_once(branch).map(|(_, after)| after);
        after.is_some_and(|after| after.starts_with(|c: char| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::pieces::tests::tensors;
    use super::*;

    const RATES: Rates = Rates {
        weight: 0.1,
        norm: 0.2,
        bias: 0.3,
        momentum: 0.9,
    };

    fn layout() -> Vec<TensorInfo> {
        tensors(&[
            (Role::Weight, 40_000),
            (Role::NormWeight, 3),
            (Role::Bias, 3),
            (Role::Frozen, 2),
        ])
    }

    fn made_up(count: usize, turn: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * turn).sin()).collect()
    }

    /// Makes three steps with known gradients and returns the parameters.
    fn three_steps(optimizer: &mut Optimizer, threads: usize) -> Vec<f32> {
        let threads = Threads::new(threads).unwrap();
        let mut parameters = made_up(40_008, 0.7);
        for step in 1..=3u8 {
            let mut gradient = made_up(40_008, 0.3 * f32::from(step));
            optimizer.step(&mut parameters, &mut gradient, 0.5, &RATES, &threads);
            assert!(gradient[..40_006].iter().all(|&g| g == 0.0));
        }
        parameters
    }

    /// One parameter's three steps worked out in `f64` by `rule(parameter, slope, memory, step)`.
    fn by_hand(index: usize, mut rule: impl FnMut(&mut f64, f64, &mut [f64; 2], i32)) -> f64 {
        let mut parameter = f64::from((index as f32 * 0.7).sin());
        let mut memory = [0.0; 2];
        for step in 1..=3u8 {
            let gradient = f64::from((index as f32 * (0.3 * f32::from(step))).sin());
            rule(&mut parameter, gradient * 0.5, &mut memory, i32::from(step));
        }
        parameter
    }

    #[test]
    fn sgd_makes_the_steps_worked_out_by_hand() {
        let mut optimizer = Optimizer::new(&OptimizerSettings::sgd(), 0.01, &layout());
        let parameters = three_steps(&mut optimizer, 2);
        for (index, rate, decay) in [
            (5, 0.1, 0.01),
            (39_999, 0.1, 0.01),
            (40_001, 0.2, 0.0),
            (40_004, 0.3, 0.0),
        ] {
            let expected = by_hand(index, |p, slope, memory, _| {
                let slope = slope + decay * *p;
                memory[0] = 0.9 * memory[0] + slope;
                *p -= rate * (slope + 0.9 * memory[0]);
            });
            assert!(
                (f64::from(parameters[index]) - expected).abs() < 1e-6,
                "{index}"
            );
        }
        assert_eq!(parameters[40_007], (40_007.0f32 * 0.7).sin(), "frozen");
    }

    #[test]
    fn adamw_makes_the_steps_worked_out_by_hand() {
        let settings = super::super::auto(100, 16, 10, 3);
        let mut optimizer = Optimizer::new(&settings, 0.01, &layout());
        let parameters = three_steps(&mut optimizer, 2);
        for (index, rate, decay) in [
            (5, 0.1, 0.01),
            (39_999, 0.1, 0.01),
            (40_001, 0.2, 0.0),
            (40_004, 0.3, 0.0),
        ] {
            let expected = by_hand(index, |p, slope, [mean, square], step| {
                *mean = 0.9 * *mean + 0.1 * slope;
                *square = 0.999 * *square + 0.001 * slope * slope;
                let mean = *mean / (1.0 - 0.9f64.powi(step));
                let square = *square / (1.0 - 0.999f64.powi(step));
                *p -= rate * decay * *p;
                *p -= rate * mean / (square.sqrt() + 1e-8);
            });
            assert!(
                (f64::from(parameters[index]) - expected).abs() < 2e-6,
                "{index}"
            );
        }
        assert_eq!(parameters[40_007], (40_007.0f32 * 0.7).sin(), "frozen");
    }

    #[test]
    fn every_optimiser_gives_the_same_bits_for_any_number_of_threads_and_after_a_restore() {
        for (_, kind) in OptimizerKind::NAMES {
            let settings = OptimizerSettings::named(kind);
            let mut layout = layout();
            layout[0].shape = vec![100, 400];
            let new = || Optimizer::new(&settings, 5e-4, &layout);
            let mut whole = new();
            let expected = three_steps(&mut whole, 1);
            for threads in [2, 5] {
                assert!(expected == three_steps(&mut new(), threads), "{kind:?}");
            }

            let threads = Threads::new(2).unwrap();
            let mut first = new();
            let mut parameters = made_up(40_008, 0.7);
            first.step(
                &mut parameters,
                &mut made_up(40_008, 0.3),
                0.5,
                &RATES,
                &threads,
            );
            let mut second = new();
            let saved = |name: &str| {
                let moment = first.moments().iter().find(|moment| moment.name == name);
                moment.map(|moment| moment.values.clone())
            };
            second.restore(first.step_count(), saved).unwrap();
            for step in 2..=3u8 {
                let mut gradient = made_up(40_008, 0.3 * f32::from(step));
                second.step(&mut parameters, &mut gradient, 0.5, &RATES, &threads);
            }
            assert!(parameters == expected, "{kind:?}");
            assert_eq!(second.moments(), whole.moments());
        }
    }

    #[test]
    fn a_memory_of_another_model_is_refused() {
        let mut optimizer = Optimizer::new(&OptimizerSettings::sgd(), 0.0, &layout());
        let missing = optimizer.restore(1, |_| None).unwrap_err().to_string();
        assert_eq!(missing, "checkpoint optimizer.momentum: SGD needs it");
        let short = optimizer
            .restore(1, |_| Some(vec![0.0]))
            .unwrap_err()
            .to_string();
        assert_eq!(
            short,
            "checkpoint optimizer.momentum: must have 40008 elements, not 1"
        );
        assert_eq!(optimizer.step_count(), 0);
    }

    #[test]
    fn only_the_heads_class_branches_are_boosted() {
        assert!(is_class_branch("model.23.cv3.0.0.1.conv.weight"));
        assert!(is_class_branch("model.23.one2one_cv3.2.2.bias"));
        assert!(!is_class_branch("model.6.m.0.cv3.conv.weight"));
        assert!(!is_class_branch("model.23.cv2.0.2.bias"));
    }
}

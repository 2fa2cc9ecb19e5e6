//! The precision that is asked for, and what a machine makes of it.

use serde::{Deserialize, Serialize};

use crate::ops::conv2d;
use crate::ops::simd::dot_is_faster;

/// How exactly a run computes. Parameters, sums, norms, losses and the optimiser are f32 in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// All in f32.
    #[default]
    F32,
    /// Operands of direct convolutions rounded to bf16 where the machine multiplies those faster than f32. Elsewhere
    /// f32: some processors have the instruction and are slower with it.
    Mixed,
}

impl Precision {
    /// Returns what convolutions do on this machine.
    pub fn here(self) -> conv2d::Precision {
        match self {
            Self::Mixed if dot_is_faster() => conv2d::Precision::Mixed,
            _ => conv2d::Precision::F32,
        }
    }

    /// Returns what to tell who asked for what this machine does not do.
    pub fn note(self) -> Option<&'static str> {
        (self == Self::Mixed && self.here() == conv2d::Precision::F32).then_some(
            "precision=mixed: this machine multiplies bf16 no faster than f32, so it computes in f32",
        )
    }
}

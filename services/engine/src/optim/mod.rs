//! From gradients to better parameters: groups, clipping, optimisers, learning rates, and the moving average.
//!
//! Everything works on the canonical flat vectors and is element by element or summed over fixed pieces, so the
//! bits do not depend on the number of threads. One training step is
//! [`clip_gradient_norm`] → [`Optimizer::step`] → [`Ema::update`], with rates from a [`Schedule`].

mod clip;
pub mod cuda;
mod ema;
mod muon;
mod optimizer;
mod pieces;
mod schedule;
mod settings;

pub use clip::{Clip, GRADIENT_NORM_MAX, clip_gradient_norm};
pub use ema::Ema;
pub use optimizer::{CLASS_BRANCH_BOOST, Moment, Optimizer};
pub use schedule::{Accumulation, NOMINAL_BATCH, Rates, Schedule, StepPlan};
pub use settings::{OptimizerKind, OptimizerSettings, auto, scaled_weight_decay};

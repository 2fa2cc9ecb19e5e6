//! Whole losses against their definitions and against differences.

mod detect;
mod tasks;

use super::*;

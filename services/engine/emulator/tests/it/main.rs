//! Kernels, host code and driver together, on the emulator. Each kernel runs under three schedules with two sets of
//! inputs into poisoned outputs, and is compared with plain loops in double precision.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod capture;
mod conv;
mod depthwise;
mod mutations;
mod norm;
mod order;
mod packs;
mod probe;
mod table;

//! Kernels, host code and driver together, on the emulator. Each kernel runs under three schedules with two sets of
//! inputs into poisoned outputs, and is compared with plain loops in double precision.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod bench;
mod capture;
mod conv;
mod depthwise;
mod detections;
mod loss;
mod maps;
mod muon;
mod mutations;
mod norm;
mod optim;
mod order;
mod packs;
mod probe;
mod recipe;
mod table;

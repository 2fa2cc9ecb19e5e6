//! Kernels, host code and driver together, on the emulator. Each kernel runs under three schedules with two sets of
//! inputs into poisoned outputs, and is compared with plain loops in double precision.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention;
mod bench;
mod conv;
mod detections;
mod loss;
mod maps;
mod norm;
mod optim;
mod probe;
mod table;

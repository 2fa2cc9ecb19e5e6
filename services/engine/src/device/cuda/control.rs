//! The kernels of `control.cu`: the step's counter and rates, the ring of results, and what tests need.

use crate::ops::cuda::{Kernel, Parameters, Source};

crate::ops::params! {
    /// Takes the next row of rates.
    pub struct StepAdvance {
        /// f32, eight a row: see `optim::cuda::CONTROL_LEN`.
        pub table: u64,
        pub control: u64,
        /// u32: steps so far.
        pub step: u64,
        pub rows: u32,
        /// The step of the first row.
        pub first: u32,
    }
    /// Keeps up to 32 words of each of four sources.
    pub struct MetricsPush {
        pub step: u64,
        pub sources: [u64; 4],
        /// u32: `slots` of `width`, the step's number first.
        pub ring: u64,
        pub counts: [u32; 4],
        pub slots: u32,
        pub width: u32,
    }
    /// Fills words.
    pub struct Poison {
        pub words: u64,
        pub count: u32,
        pub pattern: u32,
    }
    /// Adds the hash of `count` words to a u64.
    pub struct Checksum {
        pub words: u64,
        pub sum: u64,
        pub count: u32,
        pub unused: u32,
    }
}

/// The file.
pub const SOURCE: Source = Source {
    name: "control",
    text: include_str!("control.cu"),
    kernels: &[
        Kernel::plain("step_advance", StepAdvance::LAYOUT, 32, 1),
        Kernel::plain("metrics_push", MetricsPush::LAYOUT, 32, 1),
        Kernel::plain("poison", Poison::LAYOUT, 256, 4),
        Kernel::plain("checksum", Checksum::LAYOUT, 256, 4),
    ],
};

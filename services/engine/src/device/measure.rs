//! Measures what this machine does with the engine's own kernels: a convolution for arithmetic, a sum of big
//! tensors for memory.

use std::time::Duration;

use crate::clock::Stopwatch;
use crate::ops::conv2d::{Conv2d, Epilogue, Input, Options, Pass, Shape};
use crate::ops::elementwise;
use crate::ops::view::{Channels, View, as_cells};
use crate::parallel::Threads;

/// Time given to each of the two measurements.
const BUDGET: Duration = Duration::from_millis(900);
/// Floats of each tensor of the memory measurement: more than caches hold.
const BIG_LEN: usize = 16 << 20;
const BIG_CHANNELS: usize = 64;

/// What was measured: the median of repeated runs.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Speed {
    /// Useful floating-point operations of a 3×3 convolution.
    pub flops_per_second: f64,
    /// Bytes read and written by a sum of two tensors.
    pub bytes_per_second: f64,
}

/// Measures on all threads.
pub fn measure(threads: &Threads) -> Speed {
    Speed {
        flops_per_second: convolution(threads),
        bytes_per_second: memory(threads),
    }
}

/// Runs `work` until the budget is spent and returns how often per second it would fit.
fn rate(mut work: impl FnMut()) -> f64 {
    work();
    let whole = Stopwatch::start();
    let mut times = Vec::new();
    while whole.elapsed() < BUDGET {
        let watch = Stopwatch::start();
        work();
        times.push(watch.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    1.0 / times[times.len() / 2].max(1e-9)
}

fn convolution(threads: &Threads) -> f64 {
    let shape = Shape {
        batch: 2 * threads.count(),
        height: 40,
        width: 40,
        input: Channels::new(64),
        output: Channels::new(64),
        kernel: 3,
        stride: 1,
        is_image: false,
    };
    let conv = Conv2d::new(shape.clone(), Options::default());
    let mut input = vec![0.5; shape.input_pixels() * shape.input.padded()];
    let mut output = vec![0.0; shape.output_pixels() * shape.output.padded()];
    let mut packed = vec![0.0; conv.packed_len(Pass::Forward)];
    let weights = vec![0.01; shape.weight_len()];
    conv.pack(threads, Pass::Forward, &weights, &mut packed);
    let mut scratch = vec![0.0; conv.scratch_len(Pass::Forward, threads.count())];
    let input = View::dense(as_cells(&mut input), shape.input.padded());
    let output = View::dense(as_cells(&mut output), shape.output.padded());
    let scratch = as_cells(&mut scratch);
    let per_second = rate(|| {
        let epilogue = Epilogue::default();
        conv.forward(
            threads,
            Input::View(input),
            &packed,
            output,
            epilogue,
            scratch,
        );
    });
    per_second * shape.flops() as f64
}

fn memory(threads: &Threads) -> f64 {
    let mut tensors = [vec![1.0; BIG_LEN], vec![2.0; BIG_LEN], vec![0.0; BIG_LEN]];
    let [left, right, output] = tensors
        .each_mut()
        .map(|values| View::dense(as_cells(values), BIG_CHANNELS));
    let extent = (BIG_LEN / BIG_CHANNELS, BIG_CHANNELS);
    let per_second = rate(|| elementwise::add(threads, extent, [left, right], output));
    per_second * (3 * BIG_LEN * size_of::<f32>()) as f64
}

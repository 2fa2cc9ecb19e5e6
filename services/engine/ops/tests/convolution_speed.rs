//! How fast the convolutions are, in shares of the machine's peak. Run by hand, on a quiet machine:
//! `cargo test -p engine-ops --release --test convolution_speed -- --ignored --nocapture`. `FOVEA_SPEED=2,8,direct`
//! (threads, batch, and optionally the algorithm) is another case.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that can't go on fails, and its figures are read by people"
)]

use std::hint::black_box;
use std::time::Duration;

use engine_ops::clock::Stopwatch;
use engine_ops::conv2d::{Algorithm, Conv2d, Epilogue, Input, Options, Pass, Shape, Write};
use engine_ops::parallel::Threads;
use engine_ops::simd::{Kernel, Level, Simd};
use engine_ops::view::{Channels, View, as_cells};

/// How long each pass is repeated; the best time counts.
const REPEAT: Duration = Duration::from_millis(400);

/// Kernel, stride, input channels, output channels, input side: the shapes that weigh most in YOLO11n at 640.
const SHAPES: [[usize; 5]; 16] = [
    [3, 1, 64, 64, 80],
    [3, 1, 64, 64, 20],
    [3, 1, 128, 64, 40],
    [3, 1, 32, 32, 40],
    [3, 1, 32, 16, 80],
    [3, 1, 16, 32, 80],
    [3, 1, 16, 16, 160],
    [3, 2, 64, 64, 160],
    [3, 2, 128, 128, 80],
    [3, 2, 16, 32, 320],
    [3, 2, 3, 16, 640],
    [1, 1, 192, 128, 40],
    [1, 1, 384, 256, 20],
    [1, 1, 256, 64, 80],
    [1, 1, 80, 80, 80],
    [1, 1, 48, 64, 160],
];

/// Twelve independent chains of multiply-adds, which fill the pipelines of every level.
struct Peak;

impl Peak {
    const STEPS: usize = 500_000;
    const CHAINS: usize = 12;
    const FLOPS: f64 = (2 * 16 * Self::STEPS * Self::CHAINS) as f64;
}

impl Kernel for Peak {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (factor, term) = (simd.splat(black_box(0.999)), simd.splat(black_box(0.001)));
        let mut chains: [S::F16; Self::CHAINS] =
            std::array::from_fn(|index| simd.splat(black_box(0.1 * index as f32)));
        for _ in 0..Self::STEPS {
            for chain in &mut chains {
                *chain = simd.fma(*chain, factor, term);
            }
        }
        let total = chains.into_iter().fold(simd.zero(), |a, b| simd.add(a, b));
        simd.sum(total)
    }
}

/// Returns the best time of `work` in seconds: of one call by the clock or, with one thread, the mean over all calls
/// by the thread's own processor time, which other programs disturb less.
fn best(threads: &Threads, mut work: impl FnMut()) -> f64 {
    work();
    let all = Stopwatch::start();
    let before = processor_seconds();
    let mut best = f64::MAX;
    let mut calls = 0.0;
    while all.elapsed() < REPEAT {
        let once = Stopwatch::start();
        work();
        calls += 1.0;
        best = best.min(once.elapsed().as_secs_f64());
    }
    match (before, processor_seconds()) {
        (Some(before), Some(after)) if threads.count() == 1 => best.min((after - before) / calls),
        _ => best,
    }
}

/// Returns the processor time of this thread, where the system tells it.
fn processor_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: f64 = text.split(' ').next()?.parse().ok()?;
    Some(nanoseconds * 1e-9)
}

#[test]
#[ignore = "measures time; needs a quiet machine"]
fn shares_of_the_peak() {
    let text = std::env::var_os("FOVEA_SPEED").map_or_else(
        || "1,8".to_owned(),
        |text| text.into_string().expect("FOVEA_SPEED is text"),
    );
    let mut parts = text.split(',');
    let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
    let threads = number().expect("FOVEA_SPEED starts with threads");
    let batch = number().expect("FOVEA_SPEED has a batch");
    let algorithm = match parts.next() {
        None => None,
        Some("direct") => Some(Algorithm::Direct),
        Some("winograd") => Some(Algorithm::Winograd),
        Some(other) => panic!("no algorithm is called {other}"),
    };
    let threads = Threads::new(threads).unwrap();
    let level = Level::best();
    let seconds = best(&threads, || {
        threads.run(threads.count(), |_| {
            black_box(level.dispatch(Peak));
        });
    });
    let peak = Peak::FLOPS * threads.count() as f64 / seconds / 1e9;
    println!(
        "{}, {} threads: peak {peak:.1} GFLOP/s",
        level.name(),
        threads.count()
    );
    println!("useful GFLOP/s, share of the peak: forward, backward-data, backward-weights");
    for [kernel, stride, inputs, outputs, side] in SHAPES {
        let shape = Shape {
            batch,
            height: side,
            width: side,
            input: Channels::new(inputs),
            output: Channels::new(outputs),
            kernel,
            stride,
            is_image: inputs == 3,
        };
        let rates = measure(
            shape,
            Options {
                algorithm,
                level: None,
            },
            &threads,
        );
        let name = format!(
            "{kernel}x{kernel}s{stride} {inputs}->{outputs}@{}",
            side / stride
        );
        print!("{name:22}");
        for rate in rates {
            print!("  {rate:6.1} ({:4.0} %)", 100.0 * rate / peak);
        }
        println!();
    }
}

/// Returns the useful GFLOP/s of the three passes.
fn measure(shape: Shape, options: Options, threads: &Threads) -> [f64; 3] {
    let conv = Conv2d::new(shape.clone(), options);
    let mut weights = vec![0.01; shape.weight_len()];
    let pack = |pass| {
        let mut packed = vec![0.0; conv.packed_len(pass)];
        conv.pack(threads, pass, &vec![0.01; shape.weight_len()], &mut packed);
        packed
    };
    let (forward, backward) = (pack(Pass::Forward), pack(Pass::BackwardData));
    let passes = [Pass::Forward, Pass::BackwardData, Pass::BackwardWeights];
    let scratch_len = passes.map(|pass| conv.scratch_len(pass, threads.count()));
    let mut scratch = vec![0.0; scratch_len.into_iter().max().unwrap_or(0)];
    let scratch = as_cells(&mut scratch);
    let (inputs, outputs) = (shape.input.padded(), shape.output.padded());
    let mut x = vec![0.1; shape.input_pixels() * inputs];
    let mut y = vec![0.1; shape.output_pixels() * outputs];
    let (x, y) = (
        View::dense(as_cells(&mut x), inputs),
        View::dense(as_cells(&mut y), outputs),
    );
    let bytes = vec![7; shape.input_pixels() * 3];
    let input = if shape.is_image {
        Input::Bytes(&bytes)
    } else {
        Input::View(x)
    };
    let mut statistics = vec![0.0; 2 * outputs];
    let flops = shape.flops() as f64 / 1e9;
    let forward_seconds = best(threads, || {
        let epilogue = Epilogue {
            statistics: Some(&mut statistics),
            ..Epilogue::default()
        };
        conv.forward(threads, input, &forward, y, epilogue, scratch);
    });
    let data_seconds = if shape.is_image {
        f64::INFINITY
    } else {
        best(threads, || {
            conv.backward_data(threads, y, &backward, x, Write::Overwrite, scratch)
        })
    };
    let weights_seconds = best(threads, || {
        conv.backward_weights(threads, input, y, &mut weights, scratch)
    });
    [forward_seconds, data_seconds, weights_seconds].map(|seconds| flops / seconds)
}

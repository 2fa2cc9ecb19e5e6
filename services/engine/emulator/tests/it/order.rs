//! Two runs give the same bits: whatever order threads and blocks come in.

use engine::device::cuda::Device;
use engine::ops::conv2d::cuda::{ConvFprop, ConvGeometry, ConvSize, ConvWgrad, SumRanges, TILES};
use engine::ops::norm::cuda::BnSiluBwdReduce;
use engine_emulator::Schedule;

use crate::bench::{Draw, Tensor, Vector, device, fake, to_bf16};
use crate::norm::Norm;

const CHANNELS: usize = 40;
const SIZE: ConvSize = ConvSize {
    images: 2,
    height: 14,
    width: 13,
    kernel: 3,
    stride: 1,
};

/// Runs what sums over blocks, forward and backward, and returns the bits of all results.
fn bits(device: &Device) -> Vec<u32> {
    let draw = &mut Draw::new(5);
    let pixels = (SIZE.images * SIZE.height * SIZE.width) as usize;
    let x = Tensor::new(device, pixels, [CHANNELS, 0, CHANNELS]);
    let y = Tensor::new(device, pixels, [CHANNELS, 0, CHANNELS]);
    x.set(|_, _| draw.next());
    let weight_len = CHANNELS * 9 * CHANNELS;
    let w: Vec<u16> = draw.floats(weight_len).into_iter().map(to_bf16).collect();
    let w = Vector::of(device, &w);
    let norm = Norm::new(device, CHANNELS, draw);
    let geometry = ConvGeometry::forward(SIZE, x.view(), w.address(), y.view());
    let partials = Vector::poisoned(device, 3 * 3 * CHANNELS);
    let counters = Vector::of(device, &[0u32]);
    let convolve = ConvFprop {
        geometry,
        norm: norm.parameters(),
        partials: partials.address(),
        counters: counters.address(),
        ..ConvFprop::default()
    };
    device.launch(TILES[2].fprop, [3, 1, 1], &convolve).unwrap();
    let reduced = Vector::poisoned(device, 2 * CHANNELS);
    let reduce_partials = Vector::poisoned(device, 6 * 2 * CHANNELS);
    let vectors = norm.parameters();
    let reduce = BnSiluBwdReduce {
        gradients: [x.view(), y.view(), Tensor::none()],
        y: y.view(),
        scale: vectors.scale,
        shift: vectors.shift,
        mean: vectors.mean,
        inverse_deviation: vectors.inverse_deviation,
        partials: reduce_partials.address(),
        counters: counters.address(),
        sums: reduced.address(),
        pixels: pixels as u32,
        pixels_per_block: 64,
        silu: 1,
        gradients_count: 2,
        ..BnSiluBwdReduce::default()
    };
    device
        .launch("bn_silu_bwd_reduce", [6, 1, 1], &reduce)
        .unwrap();
    let weight_partials = Vector::poisoned(device, 3 * weight_len);
    let gradient = Vector::poisoned(device, weight_len);
    let wgrad = ConvWgrad {
        geometry,
        partials: weight_partials.address(),
        rows_per_range: 128,
        unused: 0,
    };
    device
        .launch("conv_wgrad_64x64", [3, 1, 9], &wgrad)
        .unwrap();
    let sum = SumRanges {
        partials: weight_partials.address(),
        target: gradient.address(),
        count: weight_len as u32,
        ranges: 3,
        accumulate: 0,
        unused: 0,
    };
    let blocks = (weight_len as u32).div_ceil(1024);
    device.launch("sum_ranges", [blocks, 1, 1], &sum).unwrap();
    let mut bits = norm.bits();
    bits.extend(y.get().into_iter().map(|value| (value as f32).to_bits()));
    bits.extend(reduced.read::<u32>());
    bits.extend(gradient.read::<u32>());
    bits
}

#[test]
fn the_order_of_threads_and_blocks_changes_no_bit() {
    let device = device();
    fake().schedule(Schedule::Forward);
    let expected = bits(&device);
    for schedule in [
        Schedule::Reverse,
        Schedule::Random(1),
        Schedule::Random(2),
        Schedule::Random(3),
    ] {
        fake().schedule(schedule);
        assert!(bits(&device) == expected, "{schedule:?}");
    }
}

#[test]
fn a_launch_that_no_gpu_would_take_is_refused() {
    let device = device();
    let sum = SumRanges::default();
    for grid in [[0, 1, 1], [1, 65_536, 1]] {
        let refused = device.launch("sum_ranges", grid, &sum).unwrap_err();
        assert!(
            refused.to_string().contains("INVALID_VALUE"),
            "{grid:?}: {refused}"
        );
    }
}

//! What every plan must keep: memory apart, data written before it is read.

use std::collections::BTreeSet;

use super::*;
use crate::models::Scale;

fn plan(name: &str, batch: usize, side: usize, mode: Mode) -> Plan {
    let spec = ModelSpec::parse(name, 80).unwrap();
    estimate(&spec, InputShape::square(batch, side), mode, 2).unwrap()
}

#[test]
fn buffers_in_use_together_never_overlap() {
    let is_smallest = |name: &String| ModelSpec::parse(name, 1).unwrap().scale == Scale::N;
    let small = ModelSpec::names().filter(is_smallest);
    let large = ["yolo11m", "yolo11x", "yolo26m-seg"].map(str::to_owned);
    for name in small.chain(large) {
        for mode in [Mode::Train, Mode::Infer] {
            let plan = plan(&name, 2, 96, mode);
            for (index, a) in plan.buffers.iter().enumerate() {
                assert!(a.first <= a.last, "{name}: buffer {} is used", a.name);
                assert!(a.offset + a.floats() <= plan.arena_len);
                for b in &plan.buffers[index + 1..] {
                    let apart =
                        a.offset + a.floats() <= b.offset || b.offset + b.floats() <= a.offset;
                    assert!(
                        apart || !memory::is_together(a, b),
                        "{name}: {} and {}",
                        a.name,
                        b.name
                    );
                }
            }
        }
    }
}

#[test]
fn gradients_are_written_before_they_are_added_to() {
    use crate::ops::conv2d::Write;
    for name in ModelSpec::names() {
        let plan = plan(&name, 1, 64, Mode::Train);
        let mut written: BTreeSet<BufferId> = BTreeSet::new();
        for output in plan.outputs.iter() {
            written.insert(output.gradient.unwrap().buffer);
        }
        for launch in &plan.backward {
            let targets = match launch.kernel {
                Kernel::BackwardData {
                    input_gradient,
                    write,
                    ..
                }
                | Kernel::BackwardUpsample {
                    input_gradient,
                    write,
                    ..
                }
                | Kernel::BackwardGlobalPool {
                    input_gradient,
                    write,
                    ..
                } => vec![(input_gradient, write)],
                Kernel::Copy { output, write, .. } => vec![(output, write)],
                Kernel::Zero { output, .. } => vec![(output, Write::Overwrite)],
                Kernel::BackwardAttend { input_gradient, .. } => {
                    vec![(input_gradient, Write::Overwrite)]
                }
                Kernel::BackwardMaxPool { input_gradient, .. } => {
                    vec![(input_gradient, Write::Accumulate)]
                }
                Kernel::BackwardActivation {
                    gradient, residual, ..
                } => {
                    let shortcut = residual.map(|side| (side.slot, side.write));
                    let own = (gradient, Write::Accumulate);
                    std::iter::once(own).chain(shortcut).collect()
                }
                _ => Vec::new(),
            };
            for (slot, write) in targets {
                let is_new = written.insert(slot.buffer);
                assert!(
                    write == Write::Overwrite || !is_new,
                    "{name}: {}",
                    launch.name
                );
            }
        }
    }
}

#[test]
fn training_costs_three_times_the_published_forward_pass() {
    // 6.481 GFLOP at 640, of which a thousandth is the decoding's; no gradient for the image.
    let train = plan("yolo11n", 1, 640, Mode::Train);
    let convolutions: u64 = train
        .forward
        .iter()
        .filter(|launch| matches!(launch.kernel, Kernel::Convolve { .. }))
        .map(|launch| launch.flops)
        .sum();
    assert!(
        (convolutions as f64 / 1e9 - 6.481).abs() < 2e-3,
        "{convolutions}"
    );
    let ratio = train.flops() as f64 / convolutions as f64;
    assert!((2.9..3.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_listing_names_every_launch_and_buffer() {
    let plan = plan("yolo11n", 1, 64, Mode::Infer);
    let lines = plan.to_string().lines().count();
    assert_eq!(lines, 1 + plan.launches().count() + plan.buffers.len());
}

#[test]
fn the_largest_batch_fits_and_the_next_does_not() {
    for (name, mode) in [
        ("yolo11n", Mode::Train),
        ("yolo26n-seg", Mode::Train),
        ("yolo26n-pose", Mode::Train),
        ("yolo11n-obb", Mode::Infer),
        ("yolov8n-cls", Mode::Train),
    ] {
        let spec = ModelSpec::parse(name, 3).unwrap();
        let memory = 1 << 30;
        let shape = InputShape::square(1, 320);
        let largest = |memory| {
            let options = Options::new(mode, 2);
            largest_batch(&spec, shape, options, memory).unwrap()
        };
        let batch = largest(memory);
        let bytes = |batch| {
            let shape = InputShape { batch, ..shape };
            estimate(&spec, shape, mode, 2).unwrap().peak_bytes()
        };
        assert!(
            bytes(batch) <= memory && bytes(batch + 1) > memory,
            "{name}"
        );
        assert_eq!(largest(1 << 18), 0, "{name}");
    }
}

#[test]
fn sides_that_the_strides_do_not_divide_are_refused() {
    let spec = ModelSpec::parse("yolo11n", 3).unwrap();
    for shape in [InputShape::square(1, 100), InputShape::square(0, 64)] {
        assert!(estimate(&spec, shape, Mode::Train, 1).is_err());
    }
}

fn gpu_plan(name: &str, batch: usize, mode: Mode) -> Plan {
    let spec = ModelSpec::parse(name, 80).unwrap();
    let options = Options {
        target: Target::gpu(),
        ..Options::new(mode, 1)
    };
    Plan::new(&spec, InputShape::square(batch, 640), options).unwrap()
}

#[test]
fn a_gpu_replays_the_same_launches_in_half_of_the_memory() {
    let cpu = estimate(
        &ModelSpec::parse("yolo11n", 80).unwrap(),
        InputShape::square(16, 640),
        Mode::Train,
        2,
    )
    .unwrap();
    let gpu = gpu_plan("yolo11n", 16, Mode::Train);
    let names = |plan: &Plan| -> Vec<String> {
        plan.launches()
            .map(|launch| format!("{} {}", launch.kernel.kind(), launch.name))
            .collect()
    };
    assert_eq!(names(&cpu), names(&gpu));
    assert_eq!(cpu.flops(), gpu.flops());
    assert_eq!(cpu.traffic_bytes(), 2 * gpu.traffic_bytes());
    let share = gpu.peak_bytes() as f64 / cpu.peak_bytes() as f64;
    assert!((0.5..0.65).contains(&share), "{share}");
}

#[test]
fn a_gpu_s_buffers_in_use_together_never_overlap() {
    for name in ["yolo11n", "yolo26n-seg", "yolov8s-obb", "yolo11n-cls"] {
        for mode in [Mode::Train, Mode::Infer] {
            let plan = gpu_plan(name, 2, mode);
            for (index, a) in plan.buffers.iter().enumerate() {
                assert_eq!(a.offset * 4 % 256, 0, "{name}: {} is aligned", a.name);
                for b in &plan.buffers[index + 1..] {
                    let apart =
                        a.offset + a.floats() <= b.offset || b.offset + b.floats() <= a.offset;
                    assert!(
                        apart || !memory::is_together(a, b),
                        "{name}: {} {}",
                        a.name,
                        b.name
                    );
                }
            }
        }
    }
}

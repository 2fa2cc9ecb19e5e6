//! The device's own rules: graphs replay with changed inputs, captures forbid what a driver forbids, failures are named
//! and nothing leaks.

use engine::device::cuda::{
    Device, DeviceThread, GpuError, Graph, Launched, Pinned, probe, sources,
};
use engine::ops::conv2d::cuda::{ConvFprop, ConvGeometry, ConvSize, ConvTile};
use engine::ops::norm::cuda::BnSiluApply;
use engine_emulator::pack;

use crate::bench::{Draw, Tensor, Vector, agree, device, fake, from_bf16, silu, to_bf16};
use crate::norm::{EPSILON, Norm};

const CHANNELS: usize = 16;
const PIXELS: usize = 2 * 6 * 6;

/// A convolution, its statistics and its norm, from pinned memory to pinned memory.
struct Layer {
    x: Tensor,
    y: Tensor,
    a: Tensor,
    norm: Norm,
    scratch: [Vector; 3],
    from: Pinned<u16>,
    to: Pinned<u16>,
}

impl Layer {
    fn new(device: &Device, draw: &mut Draw) -> (Self, Vec<f64>) {
        let dense = || Tensor::new(device, PIXELS, [CHANNELS, 0, CHANNELS]);
        let w: Vec<u16> = draw
            .floats(CHANNELS * CHANNELS)
            .into_iter()
            .map(to_bf16)
            .collect();
        let exact = w.iter().map(|&bits| f64::from(from_bf16(bits))).collect();
        let layer = Self {
            x: dense(),
            y: dense(),
            a: dense(),
            norm: Norm::new(device, CHANNELS, draw),
            scratch: [
                Vector::of(device, &w),
                Vector::poisoned(device, 4 * 3 * CHANNELS),
                Vector::of(device, &[0u32]),
            ],
            from: device.pinned(PIXELS * CHANNELS).unwrap(),
            to: device.pinned(PIXELS * CHANNELS).unwrap(),
        };
        (layer, exact)
    }

    fn launch(&mut self, device: &Device) -> Result<(), GpuError> {
        let size = ConvSize {
            images: 2,
            height: 6,
            width: 6,
            kernel: 1,
            stride: 1,
        };
        let [w, partials, counters] = self.scratch.each_ref().map(Vector::address);
        let geometry = ConvGeometry::forward(size, self.x.view(), w, self.y.view());
        let tile = ConvTile::choose(&geometry, device.gpu().multiprocessors);
        let norm = self.norm.parameters();
        let convolve = ConvFprop {
            geometry,
            norm,
            partials,
            counters,
            ..ConvFprop::default()
        };
        let apply = BnSiluApply {
            y: self.y.view(),
            output: self.a.view(),
            scale: norm.scale,
            shift: norm.shift,
            pixels: PIXELS as u32,
            silu: 1,
            ..BnSiluApply::default()
        };
        self.x.arena.upload(0, self.from.as_slice())?;
        device.launch(tile.fprop, tile.fprop_grid(&geometry, 4), &convolve)?;
        device.launch("bn_silu_apply", [2, 1, 1], &apply)?;
        self.a.arena.download_later(0, &mut self.to)
    }

    fn expected(&self, w: &[f64]) -> Vec<f64> {
        let x: Vec<f64> = self
            .from
            .as_slice()
            .iter()
            .map(|&x| f64::from(from_bf16(x)))
            .collect();
        let mut a = vec![0.0; PIXELS * CHANNELS];
        for k in 0..CHANNELS {
            let row = &w[k * CHANNELS..][..CHANNELS];
            let product = |pixel: &[f64]| row.iter().zip(pixel).map(|(w, x)| w * x).sum::<f64>();
            let y: Vec<f64> = x.chunks(CHANNELS).map(product).collect();
            let mean = y.iter().sum::<f64>() / PIXELS as f64;
            let variance = y.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / PIXELS as f64;
            let inverse = 1.0 / (variance + f64::from(EPSILON)).sqrt();
            let [gamma, beta] = self.norm.weights(k);
            for (pixel, y) in y.iter().enumerate() {
                a[pixel * CHANNELS + k] = silu((y - mean) * inverse * gamma + beta);
            }
        }
        a
    }
}

fn capture(device: &Device, layer: &mut Layer) -> Graph {
    device.capture(|device| layer.launch(device)).unwrap()
}

#[test]
fn a_graph_is_replayed_with_changed_inputs() {
    let device = device();
    let draw = &mut Draw::new(3);
    let (mut layer, w) = Layer::new(&device, draw);
    let graph = capture(&device, &mut layer);
    for _ in 0..3 {
        layer
            .from
            .as_mut_slice()
            .iter_mut()
            .for_each(|x| *x = to_bf16(draw.next()));
        device.replay(&graph).unwrap();
        // Nothing has run until somebody waits.
        let end = device.mark().unwrap();
        device.wait(&end).unwrap();
        let got: Vec<f64> = layer
            .to
            .as_slice()
            .iter()
            .map(|&a| f64::from(from_bf16(a)))
            .collect();
        agree("replayed", &got, &layer.expected(&w), 2e-2);
        layer.to.as_mut_slice().fill(0xffff);
    }
}

#[test]
fn a_capture_does_nothing_and_the_list_is_what_runs() {
    let device = device();
    let (mut layer, _) = Layer::new(&device, &mut Draw::new(3));
    device.synchronize().unwrap();
    fake().clear();
    let graph = capture(&device, &mut layer);
    device.synchronize().unwrap();
    assert_eq!(fake().log(), "");
    let listed = device.list(|device| layer.launch(device)).unwrap();
    let expected = [
        ("conv_fprop_128x16", [1, 1, 1]),
        ("bn_silu_apply", [2, 1, 1]),
    ];
    let expected = expected.map(|(kernel, grid)| Launched { kernel, grid });
    assert_eq!(listed, expected);
    device.synchronize().unwrap();
    let once = fake().log();
    assert_eq!(
        once,
        "conv_fprop_128x16 1x1x1 128 27648\nbn_silu_apply 2x1x1 256 0\n"
    );
    device.replay(&graph).unwrap();
    device.synchronize().unwrap();
    assert_eq!(fake().log(), once.repeat(2));
}

#[test]
fn a_capture_may_neither_allocate_nor_wait_nor_read_unpinned_memory() {
    let device = device();
    let vector = Vector::of(&device, &[1.0f32]);
    type Offence<'a> = (&'a str, &'a dyn Fn(&Device) -> Result<(), GpuError>);
    let offences: [Offence<'_>; 3] = [
        ("allocates", &|device| device.arena(64).map(drop)),
        ("waits", &|device| device.synchronize()),
        ("reads unpinned memory", &|_| {
            vector.arena.upload(0, &[2.0f32])
        }),
    ];
    for (what, offence) in offences {
        let refused = device.capture(offence).map(drop).unwrap_err();
        assert!(refused.to_string().contains("CAPTURE"), "{what}: {refused}");
        // The stream can be used again.
        vector.arena.upload(0, &[3.0f32]).unwrap();
        assert_eq!(vector.floats(), [3.0], "{what}");
    }
}

#[test]
fn every_failing_call_is_an_error_and_leaks_nothing() {
    let gpus = {
        fake();
        probe().unwrap()
    };
    let before = fake().live();
    let work = || -> Result<(), GpuError> {
        let device = Device::open(&gpus[0], &sources(), &pack())?;
        let arena = device.arena(1024)?;
        let mut pinned = device.pinned::<u16>(8)?;
        let graph = device.capture(|_| arena.download_later(0, &mut pinned))?;
        device.replay(&graph)?;
        device.synchronize()
    };
    work().unwrap();
    assert_eq!(fake().live(), before, "without a failure");
    let calls = [
        c"cuDevicePrimaryCtxRetain",
        c"cuStreamCreate",
        c"cuModuleLoadData",
        c"cuModuleGetFunction",
        c"cuFuncSetAttribute",
        c"cuMemAlloc_v2",
        c"cuMemHostAlloc",
        c"cuStreamBeginCapture_v2",
        c"cuMemcpyDtoHAsync_v2",
        c"cuStreamEndCapture",
        c"cuGraphInstantiateWithFlags",
        c"cuGraphUpload",
        c"cuGraphLaunch",
        c"cuStreamSynchronize",
    ];
    for call in calls {
        for nth in [1, 2] {
            fake().fail(call, nth, 999);
            let outcome = work();
            fake().fail(c"", 0, 0);
            let once = [
                c"cuDevicePrimaryCtxRetain",
                c"cuMemAlloc_v2",
                c"cuMemHostAlloc",
                c"cuStreamBeginCapture_v2",
                c"cuMemcpyDtoHAsync_v2",
                c"cuStreamEndCapture",
                c"cuGraphInstantiateWithFlags",
                c"cuGraphUpload",
                c"cuGraphLaunch",
            ];
            // A wait while dropping has nobody to tell.
            let is_told = nth == 1 || !(once.contains(&call) || call == c"cuStreamSynchronize");
            assert_eq!(outcome.is_err(), is_told, "{call:?} {nth}: {outcome:?}");
            assert_eq!(fake().live(), before, "{call:?} {nth}");
        }
    }
}

#[test]
fn too_much_memory_is_refused_with_the_numbers() {
    let device = device();
    let refused = device.arena(64 << 30).map(drop).unwrap_err();
    assert!(
        matches!(refused, GpuError::OutOfMemory { needed_bytes, .. } if needed_bytes == 64 << 30)
    );
}

#[test]
fn a_device_thread_runs_what_it_is_sent() {
    fake();
    let gpu = probe().unwrap().remove(0);
    let thread = DeviceThread::start(gpu, sources(), pack()).unwrap();
    let name = std::thread::scope(|scope| {
        let job = scope.spawn(|| thread.run(|device| Ok(device.gpu().name.clone())));
        job.join().unwrap().unwrap()
    });
    assert_eq!(name, "Fovea emulator");
}

#[test]
fn a_copy_beside_the_computation_is_followed() {
    let device = device();
    let vector = Vector::poisoned(&device, 4);
    let mut pinned = device.pinned::<f32>(4).unwrap();
    pinned.as_mut_slice().copy_from_slice(&[1.0, 2.0, 3.0, 4.0]);
    // Without waiting for the mark, the copy would come first and be overwritten.
    vector.arena.fill(0, 16, 0).unwrap();
    let before = device.mark().unwrap();
    let copied = device
        .copy_beside(&pinned, &vector.arena, 0, Some(&before))
        .unwrap();
    device.wait(&copied).unwrap();
    device.follow(&copied).unwrap();
    assert_eq!(vector.floats(), [1.0, 2.0, 3.0, 4.0]);
}

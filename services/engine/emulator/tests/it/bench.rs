//! What tests of kernels share: a device on the fake driver, tensors, numbers, comparison.

use engine::device::cuda::{Arena, Device, Plain, probe, sources};
use engine::ops::cuda::View;
use engine_emulator::{Fake, Flavour, Schedule, pack};

/// Returns the fake driver. `FOVEA_MUTATION` plants a bug in its kernels (see `mutations.rs`), `FOVEA_SANITIZED`
/// compiles them with the sanitizers (see `scripts/sanitize-kernels.sh`).
#[expect(clippy::disallowed_methods, reason = "set by whoever starts the tests")]
pub fn fake() -> &'static Fake {
    Fake::load(&Flavour {
        defines: std::env::var("FOVEA_MUTATION").into_iter().collect(),
        sanitized: std::env::var("FOVEA_SANITIZED").is_ok(),
    })
}

/// Opens the fake GPU.
pub fn device() -> Device {
    fake();
    let gpus = probe().unwrap();
    assert_eq!(
        gpus[0].name, "Fovea emulator",
        "tests of kernels load no other driver"
    );
    Device::open(&gpus[0], &sources(), &pack()).unwrap()
}

/// Runs a test body for each schedule and two seeds of inputs, on one device.
pub fn each_way(mut body: impl FnMut(&Device, u64)) {
    let device = device();
    for schedule in Schedule::ALL {
        fake().schedule(schedule);
        for seed in [1, 2] {
            body(&device, seed);
        }
    }
}

/// Numbers between -1 and 1 by a counter.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// A tensor of bf16 in an arena of its own: `pixels` of `pitch` elements, of which it uses some from `offset` on.
pub struct Tensor {
    pub arena: Arena,
    pub pixels: usize,
    pub pitch: usize,
    pub offset: usize,
    pub channels: usize,
}

impl Tensor {
    /// Takes the memory and poisons it.
    pub fn new(device: &Device, pixels: usize, [pitch, offset, channels]: [usize; 3]) -> Self {
        assert!(pitch % 8 == 0 && offset % 8 == 0 && channels % 8 == 0);
        assert!(offset + channels <= pitch);
        let arena = device.arena(pixels * pitch * 2).unwrap();
        arena.fill(0, pixels * pitch * 2, 0xff).unwrap();
        Self {
            arena,
            pixels,
            pitch,
            offset,
            channels,
        }
    }

    /// Fills its channels with what `value` gives, rounded; returns those, pixel by pixel.
    pub fn set(&self, mut value: impl FnMut(usize, usize) -> f32) -> Vec<f64> {
        let mut bits = vec![0xffff; self.pixels * self.pitch];
        let mut exact = Vec::with_capacity(self.pixels * self.channels);
        for pixel in 0..self.pixels {
            for channel in 0..self.channels {
                let rounded = to_bf16(value(pixel, channel));
                bits[pixel * self.pitch + self.offset + channel] = rounded;
                exact.push(f64::from(from_bf16(rounded)));
            }
        }
        self.arena.upload(0, &bits).unwrap();
        exact
    }

    /// Reads its channels; panics when anything beside them was written.
    pub fn get(&self) -> Vec<f64> {
        let bits: Vec<u16> = self.arena.download(0, self.pixels * self.pitch).unwrap();
        let mut values = Vec::with_capacity(self.pixels * self.channels);
        for (pixel, row) in bits.chunks(self.pitch).enumerate() {
            for (channel, &bits) in row.iter().enumerate() {
                if (self.offset..self.offset + self.channels).contains(&channel) {
                    values.push(f64::from(from_bf16(bits)));
                } else {
                    assert_eq!(bits, 0xffff, "pixel {pixel} beside the view, at {channel}");
                }
            }
        }
        values
    }

    pub fn view(&self) -> View {
        View {
            pointer: self.arena.address(self.offset * 2, 2),
            pitch: self.pitch as u32,
            channels: self.channels as u32,
        }
    }

    /// A view that isn't there.
    pub fn none() -> View {
        View::default()
    }
}

/// A vector of plain numbers in an arena of its own.
pub struct Vector {
    pub arena: Arena,
    len: usize,
}

impl Vector {
    pub fn of<T: Plain>(device: &Device, values: &[T]) -> Self {
        let arena = device.arena(size_of_val(values)).unwrap();
        arena.upload(0, values).unwrap();
        Self {
            arena,
            len: values.len(),
        }
    }

    /// Room for `len` floats, poisoned.
    pub fn poisoned(device: &Device, len: usize) -> Self {
        let arena = device.arena(len * 4).unwrap();
        arena.fill(0, len * 4, 0xff).unwrap();
        Self { arena, len }
    }

    pub fn address(&self) -> u64 {
        self.arena.address(0, 4)
    }

    pub fn read<T: Plain>(&self) -> Vec<T> {
        self.arena.download(0, self.len).unwrap()
    }

    pub fn floats(&self) -> Vec<f64> {
        self.read::<f32>().into_iter().map(f64::from).collect()
    }
}

/// Panics unless all values agree within `tolerance` of the largest expected one.
pub fn agree(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: number of values");
    let largest = expected
        .iter()
        .fold(1e-30, |most: f64, value| most.max(value.abs()));
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        // Written so that what is no number fails.
        let is_close = (got - expected).abs() <= tolerance * largest;
        assert!(
            is_close,
            "{what}[{index}]: {got}, expected {expected} (largest {largest})"
        );
    }
}

pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

pub fn silu(value: f64) -> f64 {
    value / (1.0 + (-value).exp())
}

//! Masks: each instance's is its coefficients times the image's prototypes. The term of an anchor compares them
//! pixel by pixel inside the true box; the overlap counts them for the assigner.

pub(super) mod semantic;

use std::ops::Range;

use crate::ops::simd::{BLOCK, Kernel, Level, Simd};

use super::lanes::{LANES, cross_entropy_with_slope};
use crate::network::Map;

/// Boxes are kept in single precision: an edge so little beyond a pixel was meant to lie on it.
const EDGE_TOLERANCE: f64 = 1e-4;

/// The prototypes of one image, NHWC.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prototypes<'a> {
    pub height: usize,
    pub width: usize,
    pub pixel_stride: usize,
    pub values: &'a [f32],
}

impl<'a> Prototypes<'a> {
    /// Returns those of one image of a batch.
    pub fn of_image(map: &Map<'a>, image: usize) -> Self {
        let size = map.height * map.width * map.pixel_stride;
        Self {
            height: map.height,
            width: map.width,
            pixel_stride: map.pixel_stride,
            values: &map.values[image * size..][..size],
        }
    }

    /// Returns the window of a box given in pixels of the image, whose size is height and width.
    pub fn window(&self, corners: [f64; 4], (height, width): (usize, usize)) -> Window {
        let scale = [
            self.width as f64 / width as f64,
            self.height as f64 / height as f64,
        ];
        let corners = std::array::from_fn(|i| corners[i] * scale[i % 2]);
        Window::new(corners, self.height, self.width)
    }

    /// Returns the coefficients' sums of a window, row by row: logits of the mask.
    pub fn sums(self, coefficients: &[f32], window: &Window) -> Vec<f32> {
        let mut sums = vec![0.0; window.columns.len() * window.rows.len()];
        Level::best().dispatch(MaskSums {
            prototypes: self,
            coefficients,
            window,
            sums: &mut sums,
        });
        sums
    }
}

/// The logits of a mask within a window.
struct MaskSums<'a> {
    prototypes: Prototypes<'a>,
    coefficients: &'a [f32],
    window: &'a Window,
    sums: &'a mut [f32],
}

impl Kernel for MaskSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Prototypes {
            width,
            pixel_stride,
            values,
            ..
        } = self.prototypes;
        let lines = self.sums.chunks_exact_mut(self.window.columns.len().max(1));
        for (y, line) in self.window.rows.clone().zip(lines) {
            let first = y * width + self.window.columns.start;
            let pixels = values[first * pixel_stride..].chunks_exact(pixel_stride);
            for (sum, pixel) in line.iter_mut().zip(pixels) {
                *sum = dot(simd, self.coefficients, pixel);
            }
        }
    }
}

/// The true masks of one image as a map of instances, of the prototypes' size: 0 is the background.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstanceMap<'a> {
    pub values: &'a [u16],
}

/// The pixels of a map whose index lies inside a box: from its start, up to but without its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub columns: Range<usize>,
    pub rows: Range<usize>,
}

impl Window {
    /// Returns the window of a box given in the map's pixels.
    pub fn new([x1, y1, x2, y2]: [f64; 4], height: usize, width: usize) -> Self {
        let axis = |low: f64, high: f64, size: usize| {
            let first = |edge: f64| (edge - EDGE_TOLERANCE).ceil().max(0.0) as usize;
            let (start, end) = (first(low).min(size), first(high).min(size));
            start..end.max(start)
        };
        Self {
            columns: axis(x1, x2, width),
            rows: axis(y1, y2, height),
        }
    }
}

/// One anchor's mask to be compared with its instance.
pub(super) struct MaskTerm<'a> {
    pub prototypes: Prototypes<'a>,
    pub coefficients: &'a [f32],
    pub instances: InstanceMap<'a>,
    /// The instance's number in the map.
    pub instance: u16,
    pub window: Window,
    /// Space for one row of logits, as long as the map is wide or longer.
    pub row: &'a mut Vec<f32>,
    /// Where gradients are added, and what they are multiplied by.
    pub gradient: Option<MaskGradient<'a>>,
}

/// Where the gradient of an anchor's mask goes.
pub(super) struct MaskGradient<'a> {
    pub scale: f32,
    pub coefficients: &'a mut [f32],
    /// The image's prototypes; absent for the branch that does not train them.
    pub prototypes: Option<&'a mut [f32]>,
}

impl MaskTerm<'_> {
    /// Returns the binary cross-entropy summed over the window, and adds its gradient.
    pub fn compute(self) -> f64 {
        assert!(
            self.instances.values.len() == self.prototypes.height * self.prototypes.width,
            "invariant: masks have the prototypes' size"
        );
        Level::best().dispatch(self)
    }
}

impl Kernel for MaskTerm<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) -> f64 {
        let prototypes = self.prototypes;
        let width = self.window.columns.len();
        if width == 0 {
            return 0.0;
        }
        self.row.clear();
        self.row.resize(width.next_multiple_of(LANES), 0.0);
        let mut sum = 0.0;
        for y in self.window.rows.clone() {
            let first = y * prototypes.width + self.window.columns.start;
            let pixels = &prototypes.values[first * prototypes.pixel_stride..];
            let pixels = pixels.chunks_exact(prototypes.pixel_stride);
            for (logit, pixel) in self.row[..width].iter_mut().zip(pixels) {
                *logit = dot(simd, self.coefficients, pixel);
            }
            let truths = &self.instances.values[first..first + width];
            let blocks = self.row.as_chunks_mut::<LANES>().0.iter_mut();
            for (logits, truths) in blocks.zip(truths.chunks(LANES)) {
                let targets = std::array::from_fn(|i| {
                    let truth = truths.get(i).copied().unwrap_or(0);
                    f32::from(u8::from(truth == self.instance))
                });
                let (value, slopes) = cross_entropy_with_slope(logits, &targets, truths.len());
                sum += f64::from(value);
                *logits = slopes;
            }
            let Some(gradient) = &mut self.gradient else {
                continue;
            };
            let pixels = &prototypes.values[first * prototypes.pixel_stride..];
            let pixels = pixels.chunks_exact(prototypes.pixel_stride);
            for (slope, pixel) in self.row[..width].iter().zip(pixels) {
                add_scaled(simd, gradient.scale * slope, pixel, gradient.coefficients);
            }
            if let Some(target) = &mut gradient.prototypes {
                let target = &mut target[first * prototypes.pixel_stride..];
                let pixels = target.chunks_exact_mut(prototypes.pixel_stride);
                for (slope, pixel) in self.row[..width].iter().zip(pixels) {
                    add_scaled(simd, gradient.scale * slope, self.coefficients, pixel);
                }
            }
        }
        sum
    }
}

/// A predicted mask, cut to the predicted box, to be counted against the true ones.
pub(crate) struct MaskCounts<'a> {
    pub prototypes: Prototypes<'a>,
    pub coefficients: &'a [f32],
    pub instances: InstanceMap<'a>,
    pub window: Window,
    /// Where the pixels that the mask shares with each instance are added, by number; of the background first.
    pub shared: &'a mut [usize],
}

impl MaskCounts<'_> {
    /// Returns the pixels of the predicted mask.
    pub fn count(self) -> usize {
        Level::best().dispatch(self)
    }
}

impl Kernel for MaskCounts<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> usize {
        let prototypes = self.prototypes;
        let mut area = 0;
        for y in self.window.rows.clone() {
            let first = y * prototypes.width + self.window.columns.start;
            let pixels = &prototypes.values[first * prototypes.pixel_stride..];
            let pixels = pixels.chunks_exact(prototypes.pixel_stride);
            let truths = &self.instances.values[first..first + self.window.columns.len()];
            for (truth, pixel) in truths.iter().zip(pixels) {
                if dot(simd, self.coefficients, pixel) > 0.0 {
                    area += 1;
                    if let Some(shared) = self.shared.get_mut(usize::from(*truth)) {
                        *shared += 1;
                    }
                }
            }
        }
        area
    }
}

/// Returns the product of the coefficients with the first values of a pixel.
#[inline(always)]
fn dot<S: Simd>(simd: S, coefficients: &[f32], pixel: &[f32]) -> f32 {
    let (blocks, rest) = coefficients.as_chunks::<BLOCK>();
    let (pixel_blocks, pixel_rest) = pixel.as_chunks::<BLOCK>();
    let mut sums = simd.zero();
    for (a, b) in blocks.iter().zip(pixel_blocks) {
        sums = simd.fma(simd.load(a), simd.load(b), sums);
    }
    let mut sum = simd.sum(sums);
    if !rest.is_empty() {
        let tail = pixel_blocks
            .get(blocks.len())
            .map_or(pixel_rest, |b| &b[..]);
        sum += rest.iter().zip(tail).map(|(a, b)| a * b).sum::<f32>();
    }
    sum
}

/// Adds `scale · source` to the target, as far as both reach.
#[inline(always)]
fn add_scaled<S: Simd>(simd: S, scale: f32, source: &[f32], target: &mut [f32]) {
    let count = source.len().min(target.len());
    let (blocks, rest) = source[..count].as_chunks::<BLOCK>();
    let (targets, target_rest) = target[..count].as_chunks_mut::<BLOCK>();
    let factor = simd.splat(scale);
    for (source, target) in blocks.iter().zip(targets) {
        let sum = simd.fma(factor, simd.load(source), simd.load(target));
        simd.store(sum, target);
    }
    for (source, target) in rest.iter().zip(target_rest) {
        *target += scale * source;
    }
}

#[cfg(test)]
mod tests;

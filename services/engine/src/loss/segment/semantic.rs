//! The semantic loss of YOLO26's segmentation head: which classes are where, whatever the instance. Half of it is
//! the mean binary cross-entropy, half the Dice loss of every class and image.

use crate::ops::simd::{Kernel, Level, Simd};

use super::super::lanes::{LANES, Lanes, cross_entropy_with_slope, load, sigmoid};

/// Weights of the two halves.
const CROSS_ENTROPY_SHARE: f64 = 0.5;
const DICE_SHARE: f64 = 0.5;
/// Added to both sides of the Dice fraction: no class at all is no loss.
const DICE_SMOOTHING: f64 = 1.0;

/// The semantic logits of one image, NHWC, and what they should say.
#[derive(Debug, Clone, Copy)]
pub(in crate::loss) struct SemanticMap<'a> {
    pub class_count: usize,
    pub pixel_stride: usize,
    pub logits: &'a [f32],
    /// Class plus one of each pixel; 0 is the background.
    pub classes: &'a [u32],
}

/// Sums over the pixels of one image, for each class, padded to whole lanes. Kept from step to step.
#[derive(Debug, Default)]
pub(in crate::loss) struct SemanticSums {
    /// Σ p·t, Σ p and Σ t.
    products: Vec<f64>,
    predicted: Vec<f64>,
    wanted: Vec<f64>,
    cross_entropy: f64,
    /// Slopes of the Dice loss by a probability, and what is added where the class is wanted.
    slopes: Vec<f32>,
    slopes_wanted: Vec<f32>,
}

impl SemanticSums {
    /// Returns the loss of one image as a part of the mean over `batch` images.
    pub fn value(&mut self, map: SemanticMap<'_>, batch: usize) -> f64 {
        let length = map.class_count.next_multiple_of(LANES);
        for sums in [&mut self.products, &mut self.predicted, &mut self.wanted] {
            sums.clear();
            sums.resize(length, 0.0);
        }
        self.cross_entropy = 0.0;
        Level::best().dispatch(Sum(map, self));
        let pixels = map.classes.len() as f64;
        let dice = (0..map.class_count).map(|class| 1.0 - self.numerator(class) / self.size(class));
        let sum =
            CROSS_ENTROPY_SHARE * self.cross_entropy / pixels + DICE_SHARE * dice.sum::<f64>();
        sum / (map.class_count * batch) as f64
    }

    /// Writes the gradient of `scale · value` for the map of the last call, zero in the padding.
    pub fn gradient(
        &mut self,
        map: SemanticMap<'_>,
        batch: usize,
        scale: f64,
        gradient: &mut [f32],
    ) {
        let scale = scale / (map.class_count * batch) as f64;
        self.slopes.clear();
        self.slopes_wanted.clear();
        for class in 0..self.products.len() {
            let (n, d) = (self.numerator(class), self.size(class));
            self.slopes.push((scale * DICE_SHARE * n / (d * d)) as f32);
            let wanted = -2.0 * scale * DICE_SHARE / d;
            self.slopes_wanted.push(wanted as f32);
        }
        Level::best().dispatch(Slopes {
            map,
            sums: self,
            by_logit: (scale * CROSS_ENTROPY_SHARE / map.classes.len() as f64) as f32,
            gradient,
        });
    }

    fn numerator(&self, class: usize) -> f64 {
        2.0 * self.products[class] + DICE_SMOOTHING
    }

    fn size(&self, class: usize) -> f64 {
        self.predicted[class] + self.wanted[class] + DICE_SMOOTHING
    }
}

/// Returns one where a pixel's class is wanted, among the classes from `first` on.
#[inline(always)]
fn targets(class: u32, first: usize) -> Lanes {
    let wanted = (class as usize).wrapping_sub(first + 1);
    std::array::from_fn(|lane| if lane == wanted { 1.0 } else { 0.0 })
}

struct Sum<'a>(SemanticMap<'a>, &'a mut SemanticSums);

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self(map, sums) = self;
        for (row, &class) in map.logits.chunks_exact(map.pixel_stride).zip(map.classes) {
            for (block, logits) in row[..map.class_count].chunks(LANES).enumerate() {
                let first = block * LANES;
                let (x, targets) = (load(logits), targets(class, first));
                let (value, _) = cross_entropy_with_slope(&x, &targets, logits.len());
                sums.cross_entropy += f64::from(value);
                let probabilities = sigmoid(&x);
                let predicted = &mut sums.predicted[first..first + LANES];
                let products = &mut sums.products[first..first + LANES];
                let wanted = &mut sums.wanted[first..first + LANES];
                for lane in 0..LANES {
                    predicted[lane] += f64::from(probabilities[lane]);
                    products[lane] += f64::from(probabilities[lane] * targets[lane]);
                    wanted[lane] += f64::from(targets[lane]);
                }
            }
        }
    }
}

struct Slopes<'a> {
    map: SemanticMap<'a>,
    sums: &'a SemanticSums,
    by_logit: f32,
    gradient: &'a mut [f32],
}

impl Kernel for Slopes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        let Self { map, sums, .. } = self;
        let rows = map.logits.chunks_exact(map.pixel_stride);
        let gradients = self.gradient.chunks_exact_mut(map.pixel_stride);
        for ((row, gradient), &class) in rows.zip(gradients).zip(map.classes) {
            let (gradient, padding) = gradient.split_at_mut(map.class_count);
            padding.fill(0.0);
            let blocks = row[..map.class_count].chunks(LANES);
            for (block, (logits, gradient)) in blocks.zip(gradient.chunks_mut(LANES)).enumerate() {
                let first = block * LANES;
                let targets = targets(class, first);
                let p = sigmoid(&load(logits));
                let everywhere = &sums.slopes[first..first + LANES];
                let wanted = &sums.slopes_wanted[first..first + LANES];
                let slopes: Lanes = std::array::from_fn(|lane| {
                    let by_probability = everywhere[lane] + wanted[lane] * targets[lane];
                    by_probability * p[lane] * (1.0 - p[lane])
                        + self.by_logit * (p[lane] - targets[lane])
                });
                gradient.copy_from_slice(&slopes[..gradient.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::tests::noise;
    use super::*;

    const PIXELS: usize = 12;

    fn loss(logits: &[f64], classes: &[u32], class_count: usize) -> f64 {
        let mut sum = 0.0;
        for class in 0..class_count {
            let (mut products, mut predicted, mut wanted) = (0.0, 0.0, 0.0);
            for (pixel, &truth) in classes.iter().enumerate() {
                let x = logits[pixel * class_count + class];
                let t = if truth as usize == class + 1 {
                    1.0
                } else {
                    0.0
                };
                let p = 1.0 / (1.0 + (-x).exp());
                sum += 0.5 * ((1.0 + x.exp()).ln() - x * t) / PIXELS as f64;
                products += p * t;
                predicted += p;
                wanted += t;
            }
            sum += 0.5 * (1.0 - (2.0 * products + 1.0) / (predicted + wanted + 1.0));
        }
        sum / (3 * class_count) as f64
    }

    #[test]
    fn value_and_gradient_agree_with_their_definition() {
        for class_count in [1usize, 5, 20] {
            let stride = class_count.next_multiple_of(LANES);
            let logits: Vec<f32> = (0..PIXELS * stride).map(|i| 3.0 * noise(4, i)).collect();
            let limit = class_count as f32 + 0.99;
            let classes: Vec<u32> = (0..PIXELS)
                .map(|i| ((noise(5, i) * 0.5 + 0.5) * limit) as u32)
                .collect();
            let map = SemanticMap {
                class_count,
                pixel_stride: stride,
                logits: &logits,
                classes: &classes,
            };
            let mut sums = SemanticSums::default();
            let value = sums.value(map, 3);
            let mut gradient = vec![f32::NAN; logits.len()];
            sums.gradient(map, 3, 2.0, &mut gradient);

            let mut plain: Vec<f64> = logits
                .chunks(stride)
                .flat_map(|row| row[..class_count].iter().map(|&x| f64::from(x)))
                .collect();
            let expected = loss(&plain, &classes, class_count);
            assert!((value - expected).abs() < 1e-6 * expected);
            for index in 0..plain.len() {
                let base = plain[index];
                let mut at = |by: f64| {
                    plain[index] = base + by;
                    let value = loss(&plain, &classes, class_count);
                    plain[index] = base;
                    value
                };
                let difference = 2.0 * (at(1e-5) - at(-1e-5)) / 2e-5;
                let found = gradient[index / class_count * stride + index % class_count];
                assert!((difference - f64::from(found)).abs() < 1e-7);
            }
            let padding = gradient.chunks(stride).flat_map(|row| &row[class_count..]);
            assert!(padding.copied().all(|by| by == 0.0));
        }
    }
}

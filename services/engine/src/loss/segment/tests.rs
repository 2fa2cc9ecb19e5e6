//! The mask terms against their definitions in double precision.

use super::super::lanes::tests::noise;
use super::*;

const HEIGHT: usize = 9;
const WIDTH: usize = 23;

/// Prototypes and a map of two instances, made up.
struct Image {
    pixel_stride: usize,
    prototypes: Vec<f32>,
    coefficients: Vec<f32>,
    instances: Vec<u16>,
}

impl Image {
    fn new(count: usize) -> Self {
        let pixel_stride = count.next_multiple_of(16);
        let mut prototypes: Vec<f32> = (0..HEIGHT * WIDTH * pixel_stride)
            .map(|i| noise(1, i))
            .collect();
        for pixel in prototypes.chunks_mut(pixel_stride) {
            pixel[count..].fill(0.0);
        }
        Self {
            pixel_stride,
            prototypes,
            coefficients: (0..count).map(|i| noise(2, i)).collect(),
            instances: (0..HEIGHT * WIDTH)
                .map(|i| (noise(3, i / 4) * 1.5 + 1.5) as u16)
                .collect(),
        }
    }

    fn view(&self) -> Prototypes<'_> {
        Prototypes {
            height: HEIGHT,
            width: WIDTH,
            pixel_stride: self.pixel_stride,
            values: &self.prototypes,
        }
    }

    fn logit(&self, y: usize, x: usize) -> f64 {
        let pixel = &self.prototypes[(y * WIDTH + x) * self.pixel_stride..];
        let pairs = pixel.iter().zip(&self.coefficients);
        pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    fn loss(&self, instance: u16, [x1, y1, x2, y2]: [f64; 4]) -> f64 {
        let mut sum = 0.0;
        for y in 0..HEIGHT {
            for x in 0..WIDTH {
                let (fx, fy) = (x as f64, y as f64);
                if fx >= x1 && fx < x2 && fy >= y1 && fy < y2 {
                    let logit = self.logit(y, x);
                    let is_there = self.instances[y * WIDTH + x] == instance;
                    sum += logit.max(0.0) + (-logit.abs()).exp().ln_1p();
                    sum -= if is_there { logit } else { 0.0 };
                }
            }
        }
        sum
    }
}

#[test]
fn the_mask_term_and_its_gradients_agree_with_their_definition() {
    for count in [32, 5] {
        let image = Image::new(count);
        for bounds in [
            [2.5, 1.0, 20.0, 8.2],
            [-3.0, -1.0, 40.0, 40.0],
            [4.0, 3.0, 4.0, 9.0],
            [7.0, 2.0, 8.0, 3.0],
        ] {
            let window = Window::new(bounds, HEIGHT, WIDTH);
            let mut by_coefficient = vec![0.0; count];
            let mut by_prototype = vec![0.0; image.prototypes.len()];
            let term = MaskTerm {
                prototypes: image.view(),
                coefficients: &image.coefficients,
                instances: InstanceMap {
                    values: &image.instances,
                },
                instance: 1,
                window,
                row: &mut Vec::new(),
                gradient: Some(MaskGradient {
                    scale: 0.5,
                    coefficients: &mut by_coefficient,
                    prototypes: Some(&mut by_prototype),
                }),
            };
            let value = term.compute();
            let expected = image.loss(1, bounds);
            assert!((value - expected).abs() < 1e-5 * (1.0 + expected));

            let step = 1.0 / 256.0;
            let mut moved = Image::new(count);
            for (i, found) in by_coefficient.iter().enumerate() {
                let base = moved.coefficients[i];
                moved.coefficients[i] = base + step;
                let high = moved.loss(1, bounds);
                moved.coefficients[i] = base - step;
                let low = moved.loss(1, bounds);
                moved.coefficients[i] = base;
                let difference = 0.5 * (high - low) / f64::from(2.0 * step);
                assert!((difference - f64::from(*found)).abs() < 2e-4, "{i}");
            }
            for i in (0..by_prototype.len()).step_by(37) {
                let base = moved.prototypes[i];
                moved.prototypes[i] = base + step;
                let high = moved.loss(1, bounds);
                moved.prototypes[i] = base - step;
                let low = moved.loss(1, bounds);
                moved.prototypes[i] = base;
                let difference = 0.5 * (high - low) / f64::from(2.0 * step);
                assert!(
                    (difference - f64::from(by_prototype[i])).abs() < 2e-4,
                    "{i}"
                );
            }
        }
    }
}

#[test]
fn a_mask_is_counted_inside_the_predicted_box() {
    let image = Image::new(32);
    let bounds = [3.0, 2.0, 17.5, 7.0];
    let mut expected = [0usize; 3];
    for y in 2..7 {
        for x in 3..18 {
            let instance = usize::from(image.instances[y * WIDTH + x]);
            expected[instance] += usize::from(image.logit(y, x) > 0.0);
        }
    }
    assert!(expected.iter().all(|&count| count > 3), "{expected:?}");
    let mut shared = [0; 2];
    let counts = MaskCounts {
        prototypes: image.view(),
        coefficients: &image.coefficients,
        instances: InstanceMap {
            values: &image.instances,
        },
        window: Window::new(bounds, HEIGHT, WIDTH),
        shared: &mut shared,
    };
    assert_eq!(counts.count(), expected.iter().sum::<usize>());
    assert_eq!(
        shared,
        expected[..2],
        "what is beyond the list is not counted"
    );
}

#[test]
fn a_window_keeps_pixels_from_the_start_up_to_the_end() {
    let window = |bounds| Window::new(bounds, 10, 20);
    let expected = |columns: Range<usize>, rows: Range<usize>| Window { columns, rows };
    assert_eq!(window([2.0, 3.5, 4.0, 5.5]), expected(2..4, 4..6));
    let edge = f64::from(0.3f32 + 0.2f32) * 12.0 + 1e-6;
    assert_eq!(window([edge, 0.0, 2.0 * edge, 1.0]), expected(6..12, 0..1));
    assert_eq!(window([-5.0, -1.0, 0.5, 99.0]), expected(0..1, 0..10));
    assert_eq!(window([30.0, 2.0, 40.0, 1.0]), expected(20..20, 2..2));
    assert_eq!(window([f64::NAN; 4]), expected(0..0, 0..0));
}

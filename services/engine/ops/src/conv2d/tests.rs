//! Every algorithm and level agrees with f64 on odd shapes, for views in the middle of larger buffers.

use super::*;
use crate::view::as_cells;

/// What surrounds a view in its buffer, and must still be there afterwards.
const SENTINEL: f32 = 12345.0;

/// A view's surroundings: floats before the first pixel, channels before and after.
const OFFSET: usize = 7;
const BEFORE: usize = 16;
const AFTER: usize = 32;

/// A small deterministic source of values in -1..1.
struct Values(u64);

impl Values {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    fn take(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// Lays dense real channels out as a view's buffer; the padding is `padding`.
fn lay_out(values: &[f32], channels: &Channels, padding: f32) -> Vec<f32> {
    let stride = BEFORE + channels.padded() + AFTER;
    let pixels = values.len() / channels.count();
    let mut buffer = vec![SENTINEL; OFFSET + pixels * stride];
    for (pixel, values) in values.chunks_exact(channels.count()).enumerate() {
        let start = OFFSET + pixel * stride + BEFORE;
        buffer[start..start + channels.padded()].fill(padding);
        for (place, &value) in channels.places().zip(values) {
            buffer[start + place] = value;
        }
    }
    buffer
}

fn view<'a>(cells: &'a [Cell<f32>], channels: &Channels) -> View<'a> {
    View {
        cells,
        offset: OFFSET + BEFORE,
        pixel_stride: BEFORE + channels.padded() + AFTER,
    }
}

/// Reads the real channels back, and checks that the padding is zero and the surroundings are untouched.
fn read_back(buffer: &[f32], channels: &Channels) -> Vec<f32> {
    let stride = BEFORE + channels.padded() + AFTER;
    let mut values = Vec::new();
    assert!(buffer[..OFFSET].iter().all(|&value| value == SENTINEL));
    for pixel in buffer[OFFSET..].chunks_exact(stride) {
        let (before, rest) = pixel.split_at(BEFORE);
        let (inside, after) = rest.split_at(channels.padded());
        assert!(
            before.iter().chain(after).all(|&value| value == SENTINEL),
            "surroundings"
        );
        let mut padding = inside.to_vec();
        for place in channels.places() {
            values.push(inside[place]);
            padding[place] = 0.0;
        }
        assert!(padding.iter().all(|&value| value == 0.0), "padding");
    }
    values
}

/// Calls `visit(output pixel, input pixel, tap)` for every tap inside the image.
fn for_each_tap(shape: &Shape, mut visit: impl FnMut(usize, usize, usize)) {
    let half = shape.kernel / 2;
    for image in 0..shape.batch {
        for y in 0..shape.output_height() {
            for x in 0..shape.output_width() {
                for tap in 0..shape.kernel * shape.kernel {
                    let input_y = (y * shape.stride + tap / shape.kernel).wrapping_sub(half);
                    let input_x = (x * shape.stride + tap % shape.kernel).wrapping_sub(half);
                    if input_y < shape.height && input_x < shape.width {
                        let out = (image * shape.output_height() + y) * shape.output_width() + x;
                        let input = (image * shape.height + input_y) * shape.width + input_x;
                        visit(out, input, tap);
                    }
                }
            }
        }
    }
}

/// Everything about one convolution: operands, and results in f64 with the size of the sums behind them.
struct Case {
    shape: Shape,
    input: Vec<f32>,
    weights: Vec<f32>,
    gradient: Vec<f32>,
    output: Vec<(f64, f64)>,
    input_gradient: Vec<(f64, f64)>,
    weight_gradient: Vec<(f64, f64)>,
}

impl Case {
    fn new(shape: Shape, seed: u64) -> Self {
        Self::with_operands(shape, seed, |values| values)
    }

    /// Makes a case of operands that rounding to bf16 does not change.
    fn of_halves(shape: Shape, seed: u64) -> Self {
        Self::with_operands(shape, seed, |mut values| {
            for value in &mut values {
                let pair = crate::simd::pair_of(0.0, *value);
                *value = f32::from_bits(pair.to_bits() & 0xffff_0000);
            }
            values
        })
    }

    fn with_operands(shape: Shape, seed: u64, change: impl Fn(Vec<f32>) -> Vec<f32>) -> Self {
        let mut values = Values(seed);
        let (inputs, outputs) = (shape.input.count(), shape.output.count());
        let taps = shape.kernel * shape.kernel;
        let input = change(values.take(shape.input_pixels() * inputs));
        let weights = change(values.take(shape.weight_len()));
        let gradient = change(values.take(shape.output_pixels() * outputs));
        let mut case = Self {
            output: vec![(0.0, 0.0); gradient.len()],
            input_gradient: vec![(0.0, 0.0); input.len()],
            weight_gradient: vec![(0.0, 0.0); weights.len()],
            shape: shape.clone(),
            input,
            weights,
            gradient,
        };
        let add = |sum: &mut (f64, f64), a: f32, b: f32| {
            let product = f64::from(a) * f64::from(b);
            sum.0 += product;
            sum.1 += product.abs();
        };
        for_each_tap(&shape, |out, input, tap| {
            for o in 0..outputs {
                for i in 0..inputs {
                    let (y, x) = (out * outputs + o, input * inputs + i);
                    let w = (o * inputs + i) * taps + tap;
                    add(&mut case.output[y], case.input[x], case.weights[w]);
                    add(
                        &mut case.input_gradient[x],
                        case.gradient[y],
                        case.weights[w],
                    );
                    add(
                        &mut case.weight_gradient[w],
                        case.gradient[y],
                        case.input[x],
                    );
                }
            }
        });
        case
    }

    fn forward(&self, options: Options, threads: &Threads) -> Vec<f32> {
        let conv = Conv2d::new(self.shape.clone(), options);
        let mut packed = vec![f32::NAN; conv.packed_len(Pass::Forward)];
        conv.pack(threads, Pass::Forward, &self.weights, &mut packed);
        let mut scratch = vec![f32::NAN; conv.scratch_len(Pass::Forward, threads.count())];
        let mut input = lay_out(&self.input, &self.shape.input, 0.0);
        let zeros = vec![0.0; self.gradient.len()];
        let mut output = lay_out(&zeros, &self.shape.output, f32::NAN);
        let mut statistics = vec![f64::NAN; 2 * self.shape.output.padded()];
        let source = if self.shape.is_image {
            Input::Floats(&self.input)
        } else {
            Input::View(view(as_cells(&mut input), &self.shape.input))
        };
        conv.forward(
            threads,
            source,
            &packed,
            view(as_cells(&mut output), &self.shape.output),
            Epilogue {
                statistics: Some(&mut statistics),
                ..Epilogue::default()
            },
            as_cells(&mut scratch),
        );
        let output = read_back(&output, &self.shape.output);
        let count = self.shape.output.count();
        for (channel, place) in self.shape.output.places().enumerate() {
            let column = || {
                output
                    .iter()
                    .skip(channel)
                    .step_by(count)
                    .map(|&y| f64::from(y))
            };
            let squares = column().map(|y| y * y).sum::<f64>();
            let square_sum = statistics[self.shape.output.padded() + place];
            assert!(
                (square_sum - squares).abs() <= 1e-5 * squares + 1e-9,
                "squares"
            );
            let size = column().map(f64::abs).sum::<f64>();
            assert!(
                (statistics[place] - column().sum::<f64>()).abs() <= 1e-5 * size + 1e-9,
                "sums"
            );
        }
        output
    }

    fn backward_data(&self, options: Options, threads: &Threads, write: Write) -> Vec<f32> {
        let conv = Conv2d::new(self.shape.clone(), options);
        let mut packed = vec![f32::NAN; conv.packed_len(Pass::BackwardData)];
        conv.pack(threads, Pass::BackwardData, &self.weights, &mut packed);
        let mut scratch = vec![f32::NAN; conv.scratch_len(Pass::BackwardData, threads.count())];
        let mut gradient = lay_out(&self.gradient, &self.shape.output, 0.0);
        let (before, padding) = match write {
            Write::Overwrite => (f32::NAN, f32::NAN),
            Write::Accumulate => (1.0, 0.0),
        };
        let before = vec![before; self.input.len()];
        let mut result = lay_out(&before, &self.shape.input, padding);
        conv.backward_data(
            threads,
            view(as_cells(&mut gradient), &self.shape.output),
            &packed,
            view(as_cells(&mut result), &self.shape.input),
            write,
            as_cells(&mut scratch),
        );
        let mut result = read_back(&result, &self.shape.input);
        if write == Write::Accumulate {
            result.iter_mut().for_each(|value| *value -= 1.0);
        }
        result
    }

    fn backward_weights(&self, options: Options, threads: &Threads) -> Vec<f32> {
        let conv = Conv2d::new(self.shape.clone(), options);
        let mut scratch = vec![f32::NAN; conv.scratch_len(Pass::BackwardWeights, threads.count())];
        let mut input = lay_out(&self.input, &self.shape.input, 0.0);
        let mut gradient = lay_out(&self.gradient, &self.shape.output, 0.0);
        let source = if self.shape.is_image {
            Input::Floats(&self.input)
        } else {
            Input::View(view(as_cells(&mut input), &self.shape.input))
        };
        let mut result = vec![1.0; self.weights.len()];
        conv.backward_weights(
            threads,
            source,
            view(as_cells(&mut gradient), &self.shape.output),
            &mut result,
            as_cells(&mut scratch),
        );
        result.iter_mut().for_each(|value| *value -= 1.0);
        result
    }

    /// Compares all passes with f64; `tolerance` is relative to the sum of the products' sizes.
    fn check(&self, options: Options, threads: &Threads, tolerance: f64) {
        let context = format!("{:?} {options:?}", self.shape);
        let compare = |pass: &str, result: &[f32], truth: &[(f64, f64)]| {
            for (index, (&value, &(expected, size))) in result.iter().zip(truth).enumerate() {
                let error = (f64::from(value) - expected).abs();
                assert!(
                    error <= tolerance * (size + 1.0),
                    "{pass} of {context}: element {index} is {value}, not {expected}"
                );
            }
        };
        compare("forward", &self.forward(options, threads), &self.output);
        compare(
            "backward weights",
            &self.backward_weights(options, threads),
            &self.weight_gradient,
        );
        if !self.shape.is_image {
            for write in [Write::Overwrite, Write::Accumulate] {
                let result = self.backward_data(options, threads, write);
                compare("backward data", &result, &self.input_gradient);
            }
        }
    }
}

fn shape(
    (batch, height, width): (usize, usize, usize),
    input: &[usize],
    output: &[usize],
    kernel: usize,
    stride: usize,
) -> Shape {
    Shape {
        batch,
        height,
        width,
        input: Channels::groups(input.to_vec()),
        output: Channels::groups(output.to_vec()),
        kernel,
        stride,
        is_image: false,
    }
}

/// Widths from 1 to 41 with changing everything else.
fn odd_shapes() -> Vec<Shape> {
    let channels: [&[usize]; 8] = [
        &[3],
        &[8, 8, 8],
        &[16],
        &[24],
        &[17, 16],
        &[64],
        &[80],
        &[130],
    ];
    let mut shapes = Vec::new();
    for width in 1..=41 {
        let (input, output) = (channels[width % 8], channels[(width / 3 + 1) % 8]);
        let size = (1 + width % 2, 1 + (width * 5) % 13, width);
        for (kernel, stride) in [(1, 1), (3, 1), (3, 2)] {
            shapes.push(shape(size, input, output, kernel, stride));
        }
    }
    shapes.push(shape((1, 9, 11), &[16], &[16], 5, 1));
    shapes.push(shape((1, 9, 12), &[5], &[16], 5, 2));
    shapes.push(shape((2, 7, 10), &[16], &[20], 5, 3));
    shapes.push(shape((1, 7, 9), &[16], &[32], 1, 2));
    shapes.push(shape((1, 5, 6), &[400], &[16], 1, 1));
    shapes.push(shape((1, 4, 5), &[272], &[16], 3, 1));
    shapes.push(shape((3, 40, 40), &[16], &[16], 1, 1));
    shapes.push(shape((1, 50, 7), &[160], &[16], 3, 2));
    shapes.push(shape((1, 3, 400), &[16], &[16], 3, 1));
    for (height, width) in [(7, 9), (16, 21), (1, 1)] {
        let mut image = shape((2, height, width), &[3], &[16], 3, 2);
        image.is_image = true;
        shapes.push(image);
    }
    shapes
}

fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

#[test]
fn the_reference_agrees_with_f64() {
    let threads = Threads::new(2).unwrap();
    let options = Options {
        algorithm: Some(Algorithm::Reference),
        level: None,
        precision: Precision::F32,
    };
    for (seed, shape) in odd_shapes().into_iter().enumerate().step_by(5) {
        Case::new(shape, seed as u64).check(options, &threads, 1e-6);
    }
}

#[test]
fn direct_agrees_with_f64_on_every_level() {
    let threads = Threads::new(2).unwrap();
    for (seed, shape) in odd_shapes().into_iter().enumerate() {
        let case = Case::new(shape, seed as u64);
        for level in levels() {
            let options = Options {
                algorithm: Some(Algorithm::Direct),
                level: Some(level),
                precision: Precision::F32,
            };
            case.check(options, &threads, 1e-6);
        }
    }
}

#[test]
fn pairs_of_bf16_agree_with_f64() {
    let threads = Threads::new(2).unwrap();
    let options = Options {
        algorithm: Some(Algorithm::Direct),
        level: None,
        precision: Precision::Mixed,
    };
    for (seed, shape) in odd_shapes().into_iter().enumerate() {
        Case::of_halves(shape, seed as u64).check(options, &threads, 1e-6);
    }
    // Any operands, to the relative error of rounding both.
    let case = Case::new(shape((2, 13, 14), &[48], &[40], 3, 2), 5);
    case.check(options, &threads, 2.0_f64.powi(-8));
}

#[test]
fn winograd_agrees_with_f64_on_every_level() {
    let threads = Threads::new(2).unwrap();
    let mut shapes = odd_shapes();
    // Several chunks and several partial sums, of which the last ones are short.
    shapes.push(shape((2, 70, 61), &[16], &[16], 3, 1));
    shapes.push(shape((1, 13, 12), &[16], &[130], 3, 1));
    for (seed, shape) in shapes.into_iter().enumerate() {
        if !winograd::is_possible(&shape) {
            continue;
        }
        let case = Case::new(shape, seed as u64);
        for level in levels() {
            let options = Options {
                algorithm: Some(Algorithm::Winograd),
                level: Some(level),
                precision: Precision::F32,
            };
            case.check(options, &threads, 1e-5);
        }
    }
}

#[test]
fn winograd_is_chosen_where_it_is_possible_and_pays() {
    let algorithm = |shape| Conv2d::new(shape, Options::default()).algorithm();
    assert_eq!(
        algorithm(shape((1, 20, 20), &[64], &[64], 3, 1)),
        Algorithm::Winograd
    );
    assert_eq!(
        algorithm(shape((1, 5, 5), &[64], &[64], 3, 1)),
        Algorithm::Direct
    );
    assert_eq!(
        algorithm(shape((1, 20, 20), &[64], &[64], 3, 2)),
        Algorithm::Direct
    );
    let options = Options {
        algorithm: Some(Algorithm::Winograd),
        level: None,
        precision: Precision::F32,
    };
    let pointwise = Conv2d::new(shape((1, 20, 20), &[64], &[64], 1, 1), options);
    assert_eq!(pointwise.algorithm(), Algorithm::Direct);
}

#[test]
fn results_are_the_same_bits_for_any_number_of_threads() {
    let pools: Vec<Threads> = (1..=3).map(|count| Threads::new(count).unwrap()).collect();
    for (size, kernel, stride) in [
        ((2, 33, 40), 1, 1),
        ((3, 41, 39), 3, 1),
        ((2, 32, 48), 3, 2),
    ] {
        let case = Case::new(shape(size, &[40], &[48], kernel, stride), 3);
        for precision in [Precision::F32, Precision::Mixed] {
            let options = Options {
                precision,
                ..Options::default()
            };
            let forward: Vec<_> = pools
                .iter()
                .map(|pool| case.forward(options, pool))
                .collect();
            let data: Vec<_> = pools
                .iter()
                .map(|pool| case.backward_data(options, pool, Write::Overwrite))
                .collect();
            let weights: Vec<_> = pools
                .iter()
                .map(|pool| case.backward_weights(options, pool))
                .collect();
            for results in [forward, data, weights] {
                assert_eq!(results[0], results[1]);
                assert_eq!(results[0], results[2]);
            }
        }
    }
}

#[test]
fn the_epilogue_adds_bias_then_activates_then_adds_the_residual() {
    let threads = Threads::new(1).unwrap();
    let case = Case::new(shape((2, 5, 7), &[16], &[24], 3, 1), 9);
    let channels = &case.shape.output;
    let mut values = Values(77);
    let (bias, residual) = (values.take(24), values.take(case.gradient.len()));
    let mut padded_bias = vec![f32::NAN; channels.padded()];
    channels.spread(&bias, &mut padded_bias);
    for algorithm in [Algorithm::Reference, Algorithm::Direct, Algorithm::Winograd] {
        let options = Options {
            algorithm: Some(algorithm),
            level: None,
            precision: Precision::F32,
        };
        let conv = Conv2d::new(case.shape.clone(), options);
        let mut packed = vec![0.0; conv.packed_len(Pass::Forward)];
        conv.pack(&threads, Pass::Forward, &case.weights, &mut packed);
        let mut scratch = vec![0.0; conv.scratch_len(Pass::Forward, 1)];
        let mut input = lay_out(&case.input, &case.shape.input, 0.0);
        let mut skip = lay_out(&residual, channels, 0.0);
        let mut output = lay_out(&vec![0.0; case.gradient.len()], channels, f32::NAN);
        conv.forward(
            &threads,
            Input::View(view(as_cells(&mut input), &case.shape.input)),
            &packed,
            view(as_cells(&mut output), channels),
            Epilogue {
                bias: Some(&padded_bias),
                silu: true,
                residual: Some(view(as_cells(&mut skip), channels)),
                statistics: None,
            },
            as_cells(&mut scratch),
        );
        for (index, value) in read_back(&output, channels).into_iter().enumerate() {
            let z = case.output[index].0 + f64::from(bias[index % 24]);
            let expected = z / (1.0 + (-z).exp()) + f64::from(residual[index]);
            assert!((f64::from(value) - expected).abs() < 1e-4, "{algorithm:?}");
        }
    }
}

#[test]
fn bytes_are_divided_by_255() {
    let threads = Threads::new(1).unwrap();
    let mut shape = shape((1, 6, 10), &[3], &[16], 3, 2);
    shape.is_image = true;
    let bytes: Vec<u8> = (0..shape.input_pixels() * 3)
        .map(|i| (i * 37 % 256) as u8)
        .collect();
    let mut case = Case::new(shape, 1);
    case.input = bytes.iter().map(|&byte| f32::from(byte) / 255.0).collect();
    let expected = case.forward(Options::default(), &threads);
    let conv = Conv2d::new(case.shape.clone(), Options::default());
    let mut packed = vec![0.0; conv.packed_len(Pass::Forward)];
    conv.pack(&threads, Pass::Forward, &case.weights, &mut packed);
    let mut scratch = vec![0.0; conv.scratch_len(Pass::Forward, 1)];
    let mut output = vec![0.0; expected.len()];
    conv.forward(
        &threads,
        Input::Bytes(&bytes),
        &packed,
        View::dense(as_cells(&mut output), 16),
        Epilogue::default(),
        as_cells(&mut scratch),
    );
    for (value, expected) in output.iter().zip(&expected) {
        assert!((value - expected).abs() < 1e-5);
    }
}

#[test]
fn the_gradient_of_the_bias_is_the_sum_of_the_outputs_gradient() {
    let threads = Threads::new(2).unwrap();
    let case = Case::new(shape((2, 5, 7), &[16], &[24], 1, 1), 9);
    let conv = Conv2d::new(case.shape.clone(), Options::default());
    let mut gradient = lay_out(&case.gradient, &case.shape.output, 0.0);
    let mut bias_gradient = vec![1.0; 24];
    let gradient_view = view(as_cells(&mut gradient), &case.shape.output);
    conv.backward_bias(&threads, gradient_view, &mut bias_gradient);
    for (channel, value) in bias_gradient.into_iter().enumerate() {
        let expected: f32 = case.gradient.iter().skip(channel).step_by(24).sum();
        assert!((value - 1.0 - expected).abs() < 1e-4);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let threads = Threads::new(1).unwrap();
    let options = Options::default();
    for (kernel, stride) in [(1, 1), (3, 1), (3, 2)] {
        let mut case = Case::new(shape((1, 6, 7), &[5], &[6], kernel, stride), 11);
        let loss = |case: &Case| -> f64 {
            let output = case.forward(options, &threads);
            let products = output.iter().zip(&case.gradient);
            products.map(|(&y, &g)| f64::from(y) * f64::from(g)).sum()
        };
        let input_gradient = case.backward_data(options, &threads, Write::Overwrite);
        let weight_gradient = case.backward_weights(options, &threads);
        // The loss is linear in each operand, so that a large step has no error of its own.
        for index in (0..case.input.len()).step_by(17) {
            let before = loss(&case);
            case.input[index] += 1.0;
            let difference = loss(&case) - before;
            case.input[index] -= 1.0;
            assert!((difference - f64::from(input_gradient[index])).abs() < 1e-4);
        }
        for index in (0..case.weights.len()).step_by(13) {
            let before = loss(&case);
            case.weights[index] += 1.0;
            let difference = loss(&case) - before;
            case.weights[index] -= 1.0;
            assert!((difference - f64::from(weight_gradient[index])).abs() < 1e-4);
        }
    }
}

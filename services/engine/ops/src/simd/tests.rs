//! Every level agrees with plain arithmetic.

use super::*;

/// Runs one function of sixteen floats on a level.
struct Apply<F>(F, [f32; BLOCK]);

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Sigmoid,
    Silu,
    Reciprocal,
    Sum,
    MinMax,
}

impl Kernel for Apply<Function> {
    type Output = [f32; BLOCK];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Self::Output {
        let x = simd.load(&self.1);
        let y = match self.0 {
            Function::Exp => exp(simd, x),
            Function::Sigmoid => sigmoid(simd, x),
            Function::Silu => silu(simd, x),
            Function::Reciprocal => simd.reciprocal(x),
            Function::Sum => simd.splat(simd.sum(x)),
            Function::MinMax => simd.max(simd.min(x, simd.splat(1.0)), simd.splat(-1.0)),
        };
        let mut result = [0.0; BLOCK];
        simd.store(y, &mut result);
        result
    }
}

fn available() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

#[test]
fn functions_agree_with_f64_on_every_level() {
    for level in available() {
        for step in -5000..5000 {
            let start = step as f32 * 0.0171;
            let x: [f32; BLOCK] = std::array::from_fn(|lane| start + lane as f32 * 0.001);
            for (function, truth) in [
                (Function::Exp, (|x: f64| x.exp()) as fn(f64) -> f64),
                (Function::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
                (Function::Silu, |x| x / (1.0 + (-x).exp())),
            ] {
                let y = level.dispatch(Apply(function, x));
                for lane in 0..BLOCK {
                    let expected = truth(f64::from(x[lane]));
                    let error = (f64::from(y[lane]) - expected).abs();
                    assert!(
                        error <= 4e-7 * expected.abs() + 1e-37,
                        "{} at {}: {} is not {expected}",
                        level.name(),
                        x[lane],
                        y[lane]
                    );
                }
            }
        }
    }
}

#[test]
fn reciprocals_agree_with_division_on_every_level() {
    for level in available() {
        for exponent in -125..=125 {
            let x: [f32; BLOCK] =
                std::array::from_fn(|lane| (1.0 + lane as f32 / 17.0) * 2.0_f32.powi(exponent));
            let y = level.dispatch(Apply(Function::Reciprocal, x));
            for (x, y) in x.into_iter().zip(y) {
                let error = f64::from(y) * f64::from(x) - 1.0;
                assert!(
                    error.abs() <= 1.2e-7,
                    "{}: 1 / {x} is not {y}",
                    level.name()
                );
            }
        }
    }
}

#[test]
fn sums_and_bounds_agree_on_every_level() {
    let x: [f32; BLOCK] = std::array::from_fn(|lane| lane as f32 - 7.5);
    for level in available() {
        assert_eq!(level.dispatch(Apply(Function::Sum, x)), [0.0; BLOCK]);
        let bounded = level.dispatch(Apply(Function::MinMax, x));
        assert_eq!(bounded, x.map(|value| value.clamp(-1.0, 1.0)));
    }
}

//! Which of two instructions a machine is faster with, by trying.

use std::hint::black_box;

use super::avx512::Avx512;
use super::{Kernel, Simd};
use crate::clock::Stopwatch;

/// Long enough to be measured, short enough for a start.
const STEPS: usize = 20_000;
const CHAINS: usize = 12;
/// The quickest of so many tries counts.
const TRIES: usize = 5;

/// Chains of multiply-adds, of pairs of bf16 or of f32.
#[derive(Clone, Copy)]
struct Chains<const DOT: bool>;

impl<const DOT: bool> Kernel for Chains<DOT> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let (factor, term) = (simd.splat(black_box(0.5)), simd.splat(black_box(0.25)));
        let mut chains = [simd.zero(); CHAINS];
        for _ in 0..STEPS {
            for chain in &mut chains {
                *chain = if DOT {
                    simd.dot(factor, term, *chain)
                } else {
                    simd.fma(*chain, factor, term)
                };
            }
        }
        let mut total = simd.zero();
        for chain in chains {
            total = simd.add(total, chain);
        }
        simd.sum(total)
    }
}

/// A step of pairs does the work of two steps of f32.
pub(super) fn dot_is_faster() -> bool {
    let Some(simd) = Avx512::<true>::detect() else {
        return false;
    };
    quickest(|| simd.run(Chains::<true>)) < 2.0 * quickest(|| simd.run(Chains::<false>))
}

fn quickest(work: impl Fn() -> f32) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..TRIES {
        let watch = Stopwatch::start();
        black_box(work());
        best = best.min(watch.elapsed().as_secs_f64());
    }
    best
}

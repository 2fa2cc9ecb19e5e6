//! SIMD: one small trait, one implementation per instruction set, chosen once at run time.
//!
//! Kernels are written once over [`Simd`], whose unit is a block of 16 channels (`F16`): one AVX-512 register,
//! two AVX2 registers, four NEON registers or a plain array. A value of an implementation is the proof that the
//! machine has the instructions, so its methods are safe. [`Level::dispatch`] compiles a [`Kernel`] once per
//! level with the right target features.
//!
//! Rule for kernels: everything below `Kernel::run` is `#[inline(always)]` and generic over `S: Simd`, because a
//! function with `#[target_feature]` can't be inlined by force and one without it can't use the instructions.

#![expect(unsafe_code, reason = "stores past the caches go by pointer")]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod pointer;
mod portable;
#[cfg(target_arch = "x86_64")]
mod rate;

pub use math::{exp, sigmoid, silu};
pub use portable::Portable;

use std::sync::OnceLock;

/// The floats in one block.
pub const BLOCK: usize = 16;

/// Sixteen-float arithmetic of one instruction set.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen floats in registers.
    type F16: Copy;
    /// The level this implements.
    const LEVEL: Level;
    /// The blocks of accumulators of a register tile.
    const TILE_BLOCKS: usize;

    fn zero(self) -> Self::F16;
    fn splat(self, value: f32) -> Self::F16;
    fn load(self, source: &[f32; BLOCK]) -> Self::F16;
    fn store(self, value: Self::F16, target: &mut [f32; BLOCK]);
    /// Stores past the caches, for what is not read again soon; the target is aligned to a block.
    ///
    /// # Safety
    /// The target has room for a block.
    #[inline(always)]
    unsafe fn stream(self, value: Self::F16, target: *mut f32) {
        // SAFETY: the caller's promise.
        self.store(value, unsafe { &mut *target.cast() });
    }
    fn add(self, a: Self::F16, b: Self::F16) -> Self::F16;
    fn sub(self, a: Self::F16, b: Self::F16) -> Self::F16;
    fn mul(self, a: Self::F16, b: Self::F16) -> Self::F16;
    fn div(self, a: Self::F16, b: Self::F16) -> Self::F16;
    /// Returns 1 / a within one unit in the last place, for a magnitude between 2^-126 and 2^126.
    #[inline(always)]
    fn reciprocal(self, a: Self::F16) -> Self::F16 {
        self.div(self.splat(1.0), a)
    }
    /// Returns `a * b + c`, rounded once where the machine can.
    fn fma(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16;
    /// Returns the smaller; `b` where either is not a number.
    fn min(self, a: Self::F16, b: Self::F16) -> Self::F16;
    /// Returns the larger; `b` where either is not a number.
    fn max(self, a: Self::F16, b: Self::F16) -> Self::F16;
    /// Returns `value` where `a` equals `b`, elsewhere zero.
    fn where_equal(self, a: Self::F16, b: Self::F16, value: Self::F16) -> Self::F16;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::F16) -> Self::F16;
    /// Returns `2^a` for integral `a` in -126..=127.
    fn exp2_integer(self, a: Self::F16) -> Self::F16;
    /// Returns `a · 2^n` for integral `n`, 0 or denormal where that is too small; `n` is at most 127.
    #[inline(always)]
    fn scale(self, a: Self::F16, n: Self::F16) -> Self::F16 {
        self.mul(a, self.exp2_integer(self.max(n, self.splat(-126.0))))
    }
    /// Adds the sixteen floats, in a fixed order.
    fn sum(self, a: Self::F16) -> f32;
    /// Runs `kernel` as a function of its own, with registers of its own.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;
    /// Adds to each float of `c` both products of a pair of bf16 in `a` and one in `b`; the order of the additions is
    /// the machine's.
    #[inline(always)]
    fn dot(self, a: Self::F16, b: Self::F16, c: Self::F16) -> Self::F16 {
        let [mut sums, mut left, mut right] = [[0.0; BLOCK]; 3];
        self.store(c, &mut sums);
        self.store(a, &mut left);
        self.store(b, &mut right);
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            let ([a_low, a_high], [b_low, b_high]) = (bf16_pair(left), bf16_pair(right));
            *sum = a_high.mul_add(b_high, a_low.mul_add(b_low, *sum));
        }
        self.load(&sums)
    }
    /// Rounds to bf16 and makes pairs of what stands at the same place: `low` in the lower half of a float's bits.
    #[inline(always)]
    fn pair(self, low: Self::F16, high: Self::F16) -> Self::F16 {
        let [mut lows, mut highs] = [[0.0; BLOCK]; 2];
        self.store(low, &mut lows);
        self.store(high, &mut highs);
        for (low, high) in lows.iter_mut().zip(highs) {
            *low = pair_of(*low, high);
        }
        self.load(&lows)
    }
    /// Rounds sixteen floats to bf16 and writes them as eight pairs of neighbours.
    ///
    /// # Safety
    /// The target has room for eight floats.
    #[inline(always)]
    unsafe fn store_rounded(self, value: Self::F16, target: *mut f32) {
        let mut values = [0.0; BLOCK];
        self.store(value, &mut values);
        for (index, pair) in values.chunks_exact(2).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *target.add(index) = pair_of(pair[0], pair[1]) };
        }
    }
    /// Asks for the cache line of an address, which need not be valid, in the level 2 cache.
    #[inline(always)]
    fn prefetch(self, _address: *const f32) {}
}

/// Returns two floats rounded to bf16, ties to even, as the halves of a float's bits.
#[inline(always)]
pub fn pair_of(low: f32, high: f32) -> f32 {
    f32::from_bits(u32::from(rounded(low)) | u32::from(rounded(high)) << 16)
}

#[inline(always)]
fn rounded(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Returns both halves of a float's bits as floats.
#[inline(always)]
fn bf16_pair(pair: f32) -> [f32; 2] {
    let bits = pair.to_bits();
    [
        f32::from_bits(bits << 16),
        f32::from_bits(bits & 0xffff_0000),
    ]
}

/// Runs a kernel of pairs of bf16 where the machine multiplies them, and in plain Rust elsewhere.
pub fn dispatch_dot<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(simd) = avx512::Avx512::<true>::detect() {
        return simd.run(kernel);
    }
    kernel.run(Portable)
}

/// Returns whether this machine does more products of bf16 than of f32 in the same time. Some processors have the
/// instruction and are slower with it.
pub fn dot_is_faster() -> bool {
    static IS_FASTER: OnceLock<bool> = OnceLock::new();
    *IS_FASTER.get_or_init(|| {
        #[cfg(target_arch = "x86_64")]
        if avx512::Avx512::<true>::detect().is_some() {
            return rate::dot_is_faster();
        }
        false
    })
}

/// Work that is compiled once per instruction set.
pub trait Kernel {
    type Output;

    /// Does the work; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Plain Rust, for any machine.
    Portable,
    /// 128-bit NEON.
    Neon,
    /// 256-bit AVX2 with FMA.
    Avx2,
    /// 512-bit AVX-512F.
    Avx512,
}

impl Level {
    /// Every level, from the slowest.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Neon, Self::Avx2, Self::Avx512];

    /// Returns the fastest level of this machine.
    pub fn best() -> Self {
        Self::ALL
            .into_iter()
            .rev()
            .find(|level| level.is_available())
            .unwrap_or(Self::Portable)
    }

    /// Returns whether this machine has the level.
    pub fn is_available(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => avx512::Avx512::<false>::detect().is_some(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::Neon::detect().is_some(),
            _ => false,
        }
    }

    /// Returns the name for people: `avx2`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Runs `kernel` compiled for this level, or for `Portable` where the machine lacks it.
    pub fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => match avx2::Avx2::detect() {
                Some(simd) => simd.run(kernel),
                None => kernel.run(Portable),
            },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => match avx512::Avx512::<false>::detect() {
                Some(simd) => simd.run(kernel),
                None => kernel.run(Portable),
            },
            #[cfg(target_arch = "aarch64")]
            Self::Neon => match neon::Neon::detect() {
                Some(simd) => simd.run(kernel),
                None => kernel.run(Portable),
            },
            _ => kernel.run(Portable),
        }
    }
}

#[cfg(test)]
mod tests;

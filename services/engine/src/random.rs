//! Counter-based randomness: every draw is a function of (seed, epoch, sample, use) and never of what was drawn before.
//!
//! The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3",
//! SC 2011). The order of an epoch is a Feistel permutation keyed the same way, so the place of a sample in an epoch
//! is computed and never stored: data order and augmentation follow from a checkpoint's position alone.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// What a stream of numbers is for; streams of different uses are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Use {
    /// Initial weights; the sample is the tensor's index.
    Initialise = 1,
    /// The order of the samples in an epoch.
    EpochOrder = 2,
    /// Whether a mosaic is made, its centre and its partners.
    Mosaic = 3,
    /// Rotation, scale, shear, translation and perspective.
    Affine = 4,
    /// Hue, saturation and value.
    Colour = 5,
    /// Flips and channel order.
    Flip = 6,
    /// Whether a picture is blended with another, with which and how much.
    Mix = 7,
    /// The size of a batch's pictures in multi-scale training; the sample is the batch's index.
    Scale = 8,
    /// Pictures of the procedural sample data set.
    Picture = 9,
    /// Anything a test needs.
    Test = 10,
    /// As `Mosaic` and `Affine`, for the picture that is blended in.
    MixMosaic = 11,
    MixAffine = 12,
    /// Whether a part of another picture is laid over, of which and where.
    Cut = 13,
    /// As `Mosaic` and `Affine`, for the picture whose part is laid over.
    CutMosaic = 14,
    CutAffine = 15,
    /// The part of a picture that is shown to be classified.
    Crop = 16,
    /// The rectangle that is blanked.
    Erase = 17,
}

/// A stream of random numbers named by (seed, epoch, sample, use).
#[derive(Debug, Clone)]
pub struct Philox {
    key: [u32; 2],
    /// Block number, use, sample, epoch.
    counter: [u32; 4],
    block: [u32; 4],
    /// Words of `block` already handed out.
    taken: usize,
}

impl Philox {
    /// Opens a stream at its first number.
    pub fn new(seed: u64, epoch: u32, sample: u32, purpose: Use) -> Self {
        Self {
            key: split(seed),
            counter: [0, purpose as u32, sample, epoch],
            block: [0; 4],
            taken: 4,
        }
    }

    /// Returns the next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.taken == self.block.len() {
            self.block = philox4x32(self.counter, self.key);
            self.counter[0] = self.counter[0].wrapping_add(1);
            self.taken = 0;
        }
        let word = self.block[self.taken];
        self.taken += 1;
        word
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let low = self.next_u32();
        u64::from(self.next_u32()) << 32 | u64::from(low)
    }

    /// Returns a number in [0, 1) with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a number in [0, 1) with 24 random bits.
    pub fn uniform_f32(&mut self) -> f32 {
        (self.next_u32() >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
    }

    /// Returns a number in [low, high).
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// Returns a whole number in 0..limit, every one equally likely (Lemire's multiply and reject).
    ///
    /// # Panics
    /// When `limit` is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        assert!(
            limit > 0,
            "invariant: a choice needs something to choose from"
        );
        let reject_under = limit.wrapping_neg() % limit;
        loop {
            let wide = u64::from(self.next_u32()) * u64::from(limit);
            if wide as u32 >= reject_under {
                return (wide >> 32) as u32;
            }
        }
    }

    /// Returns true with probability `probability`.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// Returns a number of mean 0 and variance 1 (Box and Muller; one of the pair is dropped, so that
    /// a draw always takes the same number of words).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Returns a number in (0, 1) of the beta distribution with both parameters `shape`, which is symmetric.
    pub fn beta(&mut self, shape: u32) -> f64 {
        // A gamma variable of a whole shape is a sum of exponential ones.
        let mut gamma = || -> f64 { (0..shape).map(|_| -(1.0 - self.uniform()).ln()).sum() };
        let (first, second) = (gamma(), gamma());
        let sum = first + second;
        if sum > 0.0 { first / sum } else { 0.5 }
    }
}

/// A permutation of 0..len that is a function of (seed, epoch) and answers for any place at once.
#[derive(Debug, Clone)]
pub struct Permutation {
    key: [u32; 2],
    epoch: u32,
    len: u32,
    half_bits: u32,
}

impl Permutation {
    /// More than the four rounds that make a Feistel network a pseudo-random permutation (Luby and Rackoff).
    const ROUNDS: u32 = 6;

    /// Names the permutation of `len` places for this seed and epoch.
    pub fn new(seed: u64, epoch: u32, len: u32) -> Self {
        let bits = u32::BITS - len.saturating_sub(1).leading_zeros();
        Self {
            key: split(seed),
            epoch,
            len,
            half_bits: bits.div_ceil(2).max(1),
        }
    }

    /// Returns the number of places.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether there is no place at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns what stands at place `index`.
    ///
    /// # Panics
    /// When `index` is not below `len`.
    pub fn at(&self, index: u32) -> u32 {
        assert!(
            index < self.len,
            "invariant: a place lies inside the permutation"
        );
        // The network permutes the next power of four; walking its cycle until it comes back inside 0..len
        // (Black and Rogaway) makes that a permutation of len places, in four steps or fewer on average.
        let mut value = u64::from(index);
        loop {
            value = self.network(value);
            if value < u64::from(self.len) {
                return value as u32;
            }
        }
    }

    fn network(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..Self::ROUNDS {
            let counter = [right as u32, Use::EpochOrder as u32, round, self.epoch];
            let mixed = u64::from(philox4x32(counter, self.key)[0]) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

fn split(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

/// Philox4x32-10: ten rounds of two multiplications over a 128-bit counter.
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
        key = [
            key[0].wrapping_add(KEY_STEPS[0]),
            key[1].wrapping_add(KEY_STEPS[1]),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_known_answers() {
        // The `philox4x32 10` rows of Random123's known-answer file.
        let ones = u32::MAX;
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox4x32([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32([ones; 4], [ones; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32(pi, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn a_stream_depends_on_each_part_of_its_name() {
        let first =
            |seed, epoch, sample, purpose| Philox::new(seed, epoch, sample, purpose).next_u64();
        let base = first(1, 2, 3, Use::Affine);
        assert_eq!(base, first(1, 2, 3, Use::Affine));
        for other in [
            first(1 << 40 | 1, 2, 3, Use::Affine),
            first(1, 3, 3, Use::Affine),
            first(1, 2, 4, Use::Affine),
            first(1, 2, 3, Use::Colour),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn draws_stay_in_range_with_the_right_mean_and_spread() {
        let mut stream = Philox::new(7, 0, 0, Use::Test);
        let count = 40_000;
        let (mut sum, mut normal_sum, mut normal_squares) = (0.0, 0.0, 0.0);
        let mut faces = [0u32; 6];
        for _ in 0..count {
            let value = stream.between(-2.0, 4.0);
            assert!((-2.0..4.0).contains(&value));
            assert!((0.0..1.0).contains(&stream.uniform_f32()));
            sum += value;
            let normal = stream.normal();
            normal_sum += normal;
            normal_squares += normal * normal;
            faces[stream.below(6) as usize] += 1;
        }
        let count = f64::from(count);
        assert!((sum / count - 1.0).abs() < 0.03);
        assert!((normal_sum / count).abs() < 0.02);
        assert!((normal_squares / count - 1.0).abs() < 0.03);
        for face in faces {
            assert!((f64::from(face) / count - 1.0 / 6.0).abs() < 0.01);
        }
    }

    #[test]
    fn a_symmetric_beta_has_its_mean_and_variance() {
        let mut stream = Philox::new(7, 0, 1, Use::Test);
        for shape in [1, 8, 32] {
            let draws: Vec<f64> = (0..20_000).map(|_| stream.beta(shape)).collect();
            assert!(draws.iter().all(|draw| (0.0..=1.0).contains(draw)));
            let mean = draws.iter().sum::<f64>() / draws.len() as f64;
            let squares = draws.iter().map(|draw| (draw - 0.5).powi(2)).sum::<f64>();
            let wanted = 1.0 / (4.0 * (2.0 * f64::from(shape) + 1.0));
            assert!((mean - 0.5).abs() < 0.01, "{shape}: {mean}");
            let variance = squares / draws.len() as f64;
            assert!(
                (variance / wanted - 1.0).abs() < 0.05,
                "{shape}: {variance} {wanted}"
            );
        }
    }

    #[test]
    fn an_epoch_order_holds_every_sample_once() {
        for len in (1..70).chain([205, 256, 257, 1000, 4097]) {
            let order = Permutation::new(3, 1, len);
            let mut seen = vec![false; len as usize];
            for index in 0..len {
                let place = &mut seen[order.at(index) as usize];
                assert!(!*place, "len {len}: a place was given twice");
                *place = true;
            }
        }
    }

    #[test]
    fn an_epoch_order_differs_between_epochs_and_seeds_and_is_spread() {
        let order = |seed, epoch| -> Vec<u32> {
            let permutation = Permutation::new(seed, epoch, 205);
            (0..205).map(|index| permutation.at(index)).collect()
        };
        assert_eq!(order(0, 0), order(0, 0));
        assert_ne!(order(0, 0), order(0, 1));
        assert_ne!(order(0, 0), order(1, 0));
        // Where place 0 lands over many epochs is uniform: 4100 draws into 5 bins of 41.
        let mut bins = [0u32; 5];
        for epoch in 0..4100 {
            bins[(Permutation::new(9, epoch, 205).at(0) / 41) as usize] += 1;
        }
        assert!(
            bins.iter().all(|&bin| (700..940).contains(&bin)),
            "{bins:?}"
        );
    }
}

//! Batch normalisation with its activation: `a = f((y - mean) · scale + bias) [+ residual]`, forward in one pass
//! and backward in two. The convolution before it sums what the mean and the variance need.
//!
//! Sums are made in single precision over tiles of a few pixels, in double precision above, and in a fixed
//! order, so that big tensors lose no digits and results do not depend on the threads.

mod cpu;
pub mod cuda;
#[cfg(test)]
mod tests;

use crate::conv2d::Write;
use crate::parallel::Threads;
use crate::simd::Level;
use crate::view::{Channels, View};

/// Which constants a norm has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Constants {
    /// Of models with a dense head.
    #[default]
    Dense,
    /// Of classifiers, which keep the usual ones.
    Usual,
}

impl Constants {
    /// Returns what is added to the variance under the root.
    pub fn epsilon(self) -> f64 {
        match self {
            Self::Dense => 1e-3,
            Self::Usual => 1e-5,
        }
    }

    /// Returns the weight of a batch in the running statistics.
    pub fn momentum(self) -> f64 {
        match self {
            Self::Dense => 0.03,
            Self::Usual => 0.1,
        }
    }
}

/// The function after a convolution and its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Identity,
    /// `x · σ(x)`.
    Silu,
}

/// What a norm is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub pixels: usize,
    /// Padded.
    pub channels: usize,
    pub activation: Activation,
}

/// The vectors of a norm for one batch, one value per padded channel each.
#[derive(Debug, Clone, Copy)]
pub struct Vectors<'a> {
    pub mean: &'a [f32],
    pub inverse_deviation: &'a [f32],
    /// The weight over the deviation.
    pub scale: &'a [f32],
    pub bias: &'a [f32],
}

impl<'a> Vectors<'a> {
    /// How many vectors there are.
    pub const COUNT: usize = 4;

    /// Reads them from one slice, one after another.
    pub fn split(values: &'a [f32]) -> Self {
        let channels = values.len() / Self::COUNT;
        let part = |index| &values[index * channels..][..channels];
        Self {
            mean: part(0),
            inverse_deviation: part(1),
            scale: part(2),
            bias: part(3),
        }
    }
}

/// What the second backward pass adds to the scaled gradient, one value per padded channel each.
#[derive(Debug, Clone, Copy)]
pub struct Coefficients<'a> {
    /// Times the distance from the mean.
    pub slope: &'a [f32],
    pub offset: &'a [f32],
}

impl<'a> Coefficients<'a> {
    /// How many vectors there are.
    pub const COUNT: usize = 2;

    /// Reads them from one slice, one after another.
    pub fn split(values: &'a [f32]) -> Self {
        let (slope, offset) = values.split_at(values.len() / Self::COUNT);
        Self { slope, offset }
    }
}

/// A norm's learnt values, one per real channel each, and its constants.
#[derive(Debug, Clone, Copy)]
pub struct Learnt<'a> {
    pub weight: &'a [f32],
    pub bias: &'a [f32],
    pub constants: Constants,
}

/// Turns sums and sums of squares into the batch's vectors and moves the running statistics.
pub fn finish_statistics(
    sums: &[f64],
    pixels: usize,
    channels: &Channels,
    learnt: Learnt<'_>,
    running: [&mut [f32]; 2],
    vectors: &mut [f32],
) {
    let padded = channels.padded();
    let [running_mean, running_variance] = running;
    let (epsilon, momentum) = (learnt.constants.epsilon(), learnt.constants.momentum());
    let count = pixels as f64;
    // The variance that estimates the population's divides by one less; a single pixel has none.
    let unbiased = count / (count - 1.0).max(1.0);
    vectors.fill(0.0);
    for (index, place) in channels.places().enumerate() {
        let mean = sums[place] / count;
        let variance = (sums[padded + place] / count - mean * mean).max(0.0);
        let inverse_deviation = 1.0 / (variance + epsilon).sqrt();
        vectors[place] = mean as f32;
        vectors[padded + place] = inverse_deviation as f32;
        vectors[2 * padded + place] = (f64::from(learnt.weight[index]) * inverse_deviation) as f32;
        vectors[3 * padded + place] = learnt.bias[index];
        let follow = |running: &mut f32, value: f64| {
            *running = (f64::from(*running) * (1.0 - momentum) + momentum * value) as f32;
        };
        follow(&mut running_mean[index], mean);
        follow(&mut running_variance[index], variance * unbiased);
    }
}

/// Makes the vectors of running statistics, which stay as they are: a layer that is not trained keeps its norm.
pub fn keep_statistics(
    channels: &Channels,
    learnt: Learnt<'_>,
    [mean, variance]: [&[f32]; 2],
    vectors: &mut [f32],
) {
    let padded = channels.padded();
    vectors.fill(0.0);
    for (index, place) in channels.places().enumerate() {
        let deviation = (f64::from(variance[index]) + learnt.constants.epsilon()).sqrt();
        let inverse_deviation = 1.0 / deviation;
        vectors[place] = mean[index];
        vectors[padded + place] = inverse_deviation as f32;
        vectors[2 * padded + place] = (f64::from(learnt.weight[index]) * inverse_deviation) as f32;
        vectors[3 * padded + place] = learnt.bias[index];
    }
}

/// Folds a norm with running statistics into the weights before it; returns the scale of output channel `index`
/// and its bias.
pub fn fold(learnt: Learnt<'_>, mean: &[f32], variance: &[f32], index: usize) -> (f64, f32) {
    let deviation = (f64::from(variance[index]) + learnt.constants.epsilon()).sqrt();
    let scale = f64::from(learnt.weight[index]) / deviation;
    let bias = f64::from(learnt.bias[index]) - f64::from(mean[index]) * scale;
    (scale, bias as f32)
}

/// Returns the numbers of workspace that the sums of a tensor need.
pub fn sums_len(pixels: usize, channels: usize) -> usize {
    2 * channels * (1 + cpu::chunk_count(pixels))
}

/// Normalises, activates, adds the shortcut.
pub fn apply(
    threads: &Threads,
    shape: Shape,
    raw: View<'_>,
    vectors: Vectors<'_>,
    residual: Option<View<'_>>,
    output: View<'_>,
) {
    cpu::apply(
        threads,
        Level::best(),
        shape,
        raw,
        vectors,
        residual,
        output,
    );
}

/// The operands of the first backward pass.
#[derive(Debug)]
pub struct BackwardActivation<'a> {
    pub raw: View<'a>,
    pub vectors: Vectors<'a>,
    /// The output's gradient; becomes that of the normalised value.
    pub gradient: View<'a>,
    /// Receives the output's gradient as it was.
    pub residual: Option<(View<'a>, Write)>,
    pub channels: &'a Channels,
    /// Gradients of weight and bias, added to; one value per real channel.
    pub weight_gradient: &'a mut [f32],
    pub bias_gradient: &'a mut [f32],
    /// Written for the second pass, see [`Coefficients`].
    pub coefficients: &'a mut [f32],
    /// As long as [`sums_len`] says.
    pub sums: &'a mut [f64],
}

/// Goes back through shortcut and activation, and sums what the norm's gradient needs.
pub fn backward_activation(threads: &Threads, shape: Shape, pass: BackwardActivation<'_>) {
    cpu::backward_activation(threads, Level::best(), shape, pass);
}

/// Goes back through the norm, in place.
pub fn backward_norm(
    threads: &Threads,
    shape: Shape,
    raw: View<'_>,
    vectors: Vectors<'_>,
    coefficients: Coefficients<'_>,
    gradient: View<'_>,
) {
    cpu::backward_norm(
        threads,
        Level::best(),
        shape,
        raw,
        vectors,
        coefficients,
        gradient,
    );
}

//! A normalising flow over the plane (RealNVP: Dinh et al., "Density estimation using Real NVP", 2017): how likely
//! an error of a keypoint is, with the gradients by the error and by the flow's own parameters.
//!
//! Six couplings each keep one coordinate and move the other by two small networks of the first: one gives a scale,
//! one a shift. Only the inputs and outputs that the masks leave are computed. Points are worked on sixteen at a
//! time, and cut into a fixed number of chunks, so the sums are the same bits for any number of threads.

use crate::network::TensorInfo;
use crate::ops::simd::{BLOCK, Kernel, Level, Simd, exp, sigmoid};
use crate::parallel::Threads;

/// Couplings in a row.
const COUPLINGS: usize = 6;
/// Width of the hidden layers.
const HIDDEN: usize = 64;
const HIDDEN_BLOCKS: usize = HIDDEN / BLOCK;
/// Outputs of a layer that are computed together.
const OUTPUTS_AT_ONCE: usize = 4;
/// Pieces that the points are cut into. Part of the result's bits: do not tune.
const CHUNKS: usize = 16;
/// `ln 2π`.
const LN_TAU: f32 = 1.837_877_1;

/// Sixteen numbers, one for each of sixteen points.
type Block = [f32; BLOCK];

/// Where one network's values lie among all of them.
mod place {
    use super::HIDDEN;

    pub const FIRST_WEIGHT: usize = 0;
    pub const FIRST_BIAS: usize = HIDDEN;
    pub const MIDDLE_WEIGHT: usize = 2 * HIDDEN;
    pub const MIDDLE_BIAS: usize = MIDDLE_WEIGHT + HIDDEN * HIDDEN;
    pub const LAST_WEIGHT: usize = MIDDLE_BIAS + HIDDEN;
    pub const LAST_BIAS: usize = LAST_WEIGHT + HIDDEN;
    pub const COUNT: usize = LAST_BIAS + 1;
}

/// The networks of a coupling: scale, then shift.
const NETWORKS: usize = 2;
/// The values of all networks, and of all their gradients.
const VALUES: usize = COUPLINGS * NETWORKS * place::COUNT;

/// A point of the plane, what it counts, and what was found of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Point {
    pub at: [f32; 2],
    /// Factor of the gradients.
    pub weight: f32,
    pub log_density: f32,
    /// The gradient of `weight · log_density` by the place.
    pub slope: [f32; 2],
}

/// The flow with its memory for one step.
#[derive(Debug)]
pub(super) struct Flow {
    /// Where each value stands in the flat vector of parameters.
    sources: Vec<u32>,
    /// The values in use, and the middle weights turned.
    values: Vec<f32>,
    turned: Vec<f32>,
    /// Sums of gradients by chunk.
    chunks: Vec<Chunk>,
}

/// The memory of one chunk.
#[derive(Debug, Default)]
struct Chunk {
    gradient: Vec<f32>,
    traces: Vec<Trace>,
}

/// What one network of one coupling remembers of sixteen points: layers after their activation, and its slope.
#[derive(Debug, Clone)]
struct Trace {
    first: [Block; HIDDEN],
    first_slope: [Block; HIDDEN],
    middle: [Block; HIDDEN],
    middle_slope: [Block; HIDDEN],
}

impl Default for Trace {
    fn default() -> Self {
        let zero = [[0.0; BLOCK]; HIDDEN];
        Self {
            first: zero,
            first_slope: zero,
            middle: zero,
            middle_slope: zero,
        }
    }
}

/// Returns the coordinate that a coupling keeps; it moves the other.
fn kept(coupling: usize) -> usize {
    1 - coupling % 2
}

impl Flow {
    /// Finds the flow among a model's parameters; returns none where the model has none.
    ///
    /// # Panics
    /// When only a part of it is there.
    pub fn find(tensors: &[TensorInfo]) -> Option<Self> {
        const MARK: &str = ".flow_model.";
        let first = tensors.iter().find(|tensor| tensor.name.contains(MARK))?;
        let (head, _) = first.name.split_once(MARK)?;
        let offset = |network: &str, coupling: usize, layer: &str| {
            let name = format!("{head}{MARK}{network}.{coupling}.{layer}");
            let found = tensors.iter().find(|tensor| tensor.name == name);
            found.map_or_else(|| panic!("the flow has {name}"), |tensor| tensor.offset)
        };
        let mut sources = Vec::with_capacity(VALUES);
        for coupling in 0..COUPLINGS {
            let input = kept(coupling);
            let output = 1 - input;
            for network in ["s", "t"] {
                let at = |layer| offset(network, coupling, layer);
                let [weight, bias] = ["0.weight", "0.bias"].map(at);
                sources.extend((0..HIDDEN).map(|unit| weight + 2 * unit + input));
                sources.extend((0..HIDDEN).map(|unit| bias + unit));
                let [weight, bias] = ["2.weight", "2.bias"].map(at);
                sources.extend((0..HIDDEN * HIDDEN).map(|index| weight + index));
                sources.extend((0..HIDDEN).map(|unit| bias + unit));
                let [weight, bias] = ["4.weight", "4.bias"].map(at);
                sources.extend((0..HIDDEN).map(|unit| weight + HIDDEN * output + unit));
                sources.push(bias + output);
            }
        }
        let sources = sources.into_iter();
        Some(Self {
            sources: sources.map(|source| source as u32).collect(),
            values: vec![0.0; VALUES],
            turned: vec![0.0; COUPLINGS * NETWORKS * HIDDEN * HIDDEN],
            chunks: Vec::new(),
        })
    }

    /// Works out every point's log density and slope, and keeps the gradient of `Σ weight · log_density` by the
    /// parameters for [`Flow::add_gradient`].
    pub fn evaluate(&mut self, parameters: &[f32], points: &mut [Point], threads: &Threads) {
        for (value, &source) in self.values.iter_mut().zip(&self.sources) {
            *value = parameters[source as usize];
        }
        let networks = self.values.chunks_exact(place::COUNT);
        for (values, turned) in networks.zip(self.turned.chunks_exact_mut(HIDDEN * HIDDEN)) {
            let weights = &values[place::MIDDLE_WEIGHT..place::MIDDLE_BIAS];
            for (index, turned) in turned.iter_mut().enumerate() {
                *turned = weights[index % HIDDEN * HIDDEN + index / HIDDEN];
            }
        }
        self.chunks.resize_with(CHUNKS, Chunk::default);
        let size = points
            .len()
            .div_ceil(CHUNKS)
            .next_multiple_of(BLOCK)
            .max(BLOCK);
        let (values, turned) = (&self.values, &self.turned);
        for chunk in &mut self.chunks {
            chunk.gradient.clear();
        }
        let level = Level::best();
        threads.run_each(
            points.chunks_mut(size).zip(&mut self.chunks),
            |_, (points, chunk)| {
                chunk.gradient.resize(VALUES, 0.0);
                chunk
                    .traces
                    .resize_with(COUPLINGS * NETWORKS, Trace::default);
                level.dispatch(Points {
                    points,
                    values,
                    turned,
                    chunk,
                });
            },
        );
    }

    /// Adds `scale` times the gradient of the last [`Flow::evaluate`] to the parameters' gradient.
    pub fn add_gradient(&self, scale: f64, gradient: &mut [f32]) {
        for (index, &source) in self.sources.iter().enumerate() {
            let parts = self
                .chunks
                .iter()
                .filter_map(|chunk| chunk.gradient.get(index));
            let sum: f64 = parts.map(|&part| f64::from(part)).sum();
            gradient[source as usize] += (scale * sum) as f32;
        }
    }
}

/// A chunk of points to be worked out.
struct Points<'a> {
    points: &'a mut [Point],
    values: &'a [f32],
    turned: &'a [f32],
    chunk: &'a mut Chunk,
}

impl Kernel for Points<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Chunk { gradient, traces } = self.chunk;
        for points in self.points.chunks_mut(BLOCK) {
            let mut block = Step {
                simd,
                values: self.values,
                turned: self.turned,
                gradient,
                traces,
            };
            block.run(points);
        }
    }
}

/// One coupling's part in sixteen points.
#[derive(Clone, Copy)]
struct Moved<S: Simd> {
    /// The coordinate that stayed, and the one that was moved, afterwards.
    kept: S::F16,
    moved: S::F16,
    scale: S::F16,
    /// `e^-scale`.
    shrink: S::F16,
}

/// Sixteen points at once.
struct Step<'a, S: Simd> {
    simd: S,
    values: &'a [f32],
    turned: &'a [f32],
    gradient: &'a mut [f32],
    traces: &'a mut [Trace],
}

impl<S: Simd> Step<'_, S> {
    #[inline(always)]
    fn run(&mut self, points: &mut [Point]) {
        let simd = self.simd;
        let gather = |read: fn(&Point) -> f32| -> S::F16 {
            let block: Block = std::array::from_fn(|i| points.get(i).map_or(0.0, read));
            simd.load(&block)
        };
        let mut z = [gather(|p| p.at[0]), gather(|p| p.at[1])];
        let weight = gather(|p| p.weight);
        let mut log_density = simd.splat(-LN_TAU);
        let nothing = Moved::<S> {
            kept: simd.zero(),
            moved: simd.zero(),
            scale: simd.zero(),
            shrink: simd.zero(),
        };
        let mut history = [nothing; COUPLINGS];
        for coupling in (0..COUPLINGS).rev() {
            let input = kept(coupling);
            let x = z[input];
            let scale = tanh(simd, self.forward(2 * coupling, x));
            let shift = self.forward(2 * coupling + 1, x);
            let shrink = exp(simd, simd.sub(simd.zero(), scale));
            let moved = simd.mul(simd.sub(z[1 - input], shift), shrink);
            z[1 - input] = moved;
            log_density = simd.sub(log_density, scale);
            history[coupling] = Moved {
                kept: x,
                moved,
                scale,
                shrink,
            };
        }
        let length = simd.fma(z[0], z[0], simd.mul(z[1], z[1]));
        log_density = simd.fma(simd.splat(-0.5), length, log_density);

        let mut by = z.map(|z| simd.mul(simd.sub(simd.zero(), weight), z));
        for (coupling, moved) in history.iter().enumerate() {
            let input = kept(coupling);
            let by_moved = by[1 - input];
            let by_before = simd.mul(by_moved, moved.shrink);
            let by_scale = simd.add(simd.mul(by_moved, moved.moved), weight);
            let one_less = simd.sub(simd.splat(1.0), simd.mul(moved.scale, moved.scale));
            let by_scale = simd.sub(simd.zero(), simd.mul(by_scale, one_less));
            let by_shift = simd.sub(simd.zero(), by_before);
            let from_scale = self.backward(2 * coupling, moved.kept, by_scale);
            let from_shift = self.backward(2 * coupling + 1, moved.kept, by_shift);
            by[input] = simd.add(by[input], simd.add(from_scale, from_shift));
            by[1 - input] = by_before;
        }
        let mut found = [[0.0; BLOCK]; 3];
        simd.store(log_density, &mut found[0]);
        simd.store(by[0], &mut found[1]);
        simd.store(by[1], &mut found[2]);
        for (i, point) in points.iter_mut().enumerate() {
            point.log_density = found[0][i];
            point.slope = [found[1][i], found[2][i]];
        }
    }

    /// Runs one network on one coordinate, and returns the output it moves the other one by.
    #[inline(always)]
    fn forward(&mut self, network: usize, x: S::F16) -> S::F16 {
        let simd = self.simd;
        let values = &self.values[network * place::COUNT..][..place::COUNT];
        let trace = &mut self.traces[network];
        for unit in 0..HIDDEN {
            let weight = simd.splat(values[place::FIRST_WEIGHT + unit]);
            let sum = simd.fma(weight, x, simd.splat(values[place::FIRST_BIAS + unit]));
            activate(
                simd,
                sum,
                &mut trace.first[unit],
                &mut trace.first_slope[unit],
            );
        }
        let weights = &values[place::MIDDLE_WEIGHT..place::MIDDLE_BIAS];
        for start in (0..HIDDEN).step_by(OUTPUTS_AT_ONCE) {
            let sums = products(simd, weights, start, &trace.first);
            for (i, sum) in sums.into_iter().enumerate() {
                let unit = start + i;
                let sum = simd.add(sum, simd.splat(values[place::MIDDLE_BIAS + unit]));
                activate(
                    simd,
                    sum,
                    &mut trace.middle[unit],
                    &mut trace.middle_slope[unit],
                );
            }
        }
        let mut output = simd.splat(values[place::LAST_BIAS]);
        for (middle, &weight) in trace.middle.iter().zip(&values[place::LAST_WEIGHT..]) {
            output = simd.fma(simd.splat(weight), simd.load(middle), output);
        }
        output
    }

    /// Carries the gradient by a network's output back to its input, and adds it to the parameters'.
    #[inline(always)]
    fn backward(&mut self, network: usize, x: S::F16, by_output: S::F16) -> S::F16 {
        let simd = self.simd;
        let values = &self.values[network * place::COUNT..][..place::COUNT];
        let turned = &self.turned[network * HIDDEN * HIDDEN..][..HIDDEN * HIDDEN];
        let gradient = &mut self.gradient[network * place::COUNT..][..place::COUNT];
        let trace = &self.traces[network];

        gradient[place::LAST_BIAS] += simd.sum(by_output);
        let mut by_middle = [[0.0; BLOCK]; HIDDEN];
        for unit in 0..HIDDEN {
            let middle = simd.load(&trace.middle[unit]);
            gradient[place::LAST_WEIGHT + unit] += simd.sum(simd.mul(by_output, middle));
            let weight = simd.splat(values[place::LAST_WEIGHT + unit]);
            let slope = simd.load(&trace.middle_slope[unit]);
            let by = simd.mul(simd.mul(weight, by_output), slope);
            gradient[place::MIDDLE_BIAS + unit] += simd.sum(by);
            simd.store(by, &mut by_middle[unit]);
        }
        let mut first_by_point = [[[0.0; BLOCK]; HIDDEN_BLOCKS]; BLOCK];
        for (unit, first) in trace.first.iter().enumerate() {
            for (point, value) in first.iter().enumerate() {
                first_by_point[point][unit / BLOCK][unit % BLOCK] = *value;
            }
        }
        let weights = &mut gradient[place::MIDDLE_WEIGHT..place::MIDDLE_BIAS];
        let rows = weights.as_chunks_mut::<BLOCK>().0;
        for (row, by) in rows.chunks_exact_mut(HIDDEN_BLOCKS).zip(&by_middle) {
            let mut sums: [S::F16; HIDDEN_BLOCKS] = std::array::from_fn(|i| simd.load(&row[i]));
            for (first, &by) in first_by_point.iter().zip(by) {
                let by = simd.splat(by);
                for (sum, first) in sums.iter_mut().zip(first) {
                    *sum = simd.fma(by, simd.load(first), *sum);
                }
            }
            for (sum, target) in sums.into_iter().zip(row) {
                simd.store(sum, target);
            }
        }
        let mut by_input = simd.zero();
        for start in (0..HIDDEN).step_by(OUTPUTS_AT_ONCE) {
            let sums = products(simd, turned, start, &by_middle);
            for (i, sum) in sums.into_iter().enumerate() {
                let unit = start + i;
                let by = simd.mul(sum, simd.load(&trace.first_slope[unit]));
                gradient[place::FIRST_BIAS + unit] += simd.sum(by);
                gradient[place::FIRST_WEIGHT + unit] += simd.sum(simd.mul(by, x));
                let weight = simd.splat(values[place::FIRST_WEIGHT + unit]);
                by_input = simd.fma(weight, by, by_input);
            }
        }
        by_input
    }
}

/// Returns some rows' products with sixteen columns.
#[inline(always)]
fn products<S: Simd>(
    simd: S,
    weights: &[f32],
    start: usize,
    columns: &[Block; HIDDEN],
) -> [S::F16; OUTPUTS_AT_ONCE] {
    let rows: [&[f32]; OUTPUTS_AT_ONCE] =
        std::array::from_fn(|i| &weights[(start + i) * HIDDEN..][..HIDDEN]);
    let mut sums = [simd.zero(); OUTPUTS_AT_ONCE];
    for (index, column) in columns.iter().enumerate() {
        let column = simd.load(column);
        for (sum, row) in sums.iter_mut().zip(rows) {
            *sum = simd.fma(simd.splat(row[index]), column, *sum);
        }
    }
    sums
}

/// Writes SiLU and its slope.
#[inline(always)]
fn activate<S: Simd>(simd: S, x: S::F16, value: &mut Block, slope: &mut Block) {
    let share = sigmoid(simd, x);
    let silu = simd.mul(x, share);
    simd.store(silu, value);
    // σ + x·σ·(1−σ).
    let rest = simd.sub(simd.splat(1.0), share);
    simd.store(simd.fma(silu, rest, share), slope);
}

/// Returns `tanh(x) = 2σ(2x) − 1`.
#[inline(always)]
fn tanh<S: Simd>(simd: S, x: S::F16) -> S::F16 {
    let share = sigmoid(simd, simd.add(x, x));
    simd.sub(simd.add(share, share), simd.splat(1.0))
}

#[cfg(test)]
pub(super) mod tests;

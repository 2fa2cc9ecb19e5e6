//! The plan of a model for one input shape: every buffer with its place in one arena, every operation as a
//! launch. Planning allocates nothing, so it also answers what a batch would need.
//!
//! In training a convolution block keeps two tensors for the backward pass: the convolution's raw output,
//! from which norm and activation are differentiated, and the activation, which is the next convolution's
//! input. Recomputing the activation would halve that memory and cost one more exponential per element.

mod backward;
mod forward;
mod launch;
mod layout;
mod memory;
mod need;
mod outputs;
mod target;

pub use launch::{
    After, AttentionShape, Buffer, BufferId, BufferKind, Extent, Kernel, Launch, Side, Slot,
};
pub use need::{TrainingMemory, VALIDATION_BATCHES, largest_training_batch};
pub(crate) use outputs::keep_what_predicts;
pub use outputs::{
    PlannedHead, PlannedMap, PlannedOutput, PlannedOutputs, PlannedPredictions, Rows,
};
pub use target::{Element, Target};

use std::fmt;

use crate::graph::{self, Form, Graph};
use crate::models::{self, ModelSpec};
use crate::network::InputShape;
use crate::ops::conv2d::{Algorithm, Conv2d, Pass, Precision};
use crate::ops::depthwise::Depthwise;
use crate::ops::transposed::Transposed;
use crate::ops::view::Channels;
use crate::{Error, Result};

/// What a plan is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Batch statistics, and a backward pass.
    Train,
    /// Norms folded into the convolutions.
    Infer,
}

/// Which branches of an end-to-end head a plan for prediction has; other heads have but one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Branches {
    /// Trained with many anchors for an object: predictions need suppression.
    #[default]
    OneToMany,
    /// Trained with one anchor for an object: the best rows are the detections.
    OneToOne,
    /// Raw outputs of both; predictions are the one-to-many branch's.
    Both,
}

/// What a plan depends on beside model and shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub mode: Mode,
    pub thread_count: usize,
    /// For prediction.
    pub branches: Branches,
    /// For prediction: outputs become rows of predictions. Who reads the outputs themselves does without.
    pub is_decoding: bool,
    /// How dense convolutions are computed where the shape allows it; the default is the fastest way.
    pub algorithm: Option<Algorithm>,
    /// As it is done; whether it pays is decided before (see [`crate::ops::simd::dot_is_faster`]).
    pub precision: Precision,
    /// What will run it.
    pub target: Target,
    /// Every value keeps its own memory and every sum its own launch, so that all can be looked at.
    pub keep_everything: bool,
}

impl Options {
    /// Returns the options for real work.
    pub fn new(mode: Mode, thread_count: usize) -> Self {
        Self {
            mode,
            thread_count,
            branches: Branches::default(),
            is_decoding: true,
            algorithm: None,
            precision: Precision::F32,
            target: Target::Cpu,
            keep_everything: false,
        }
    }
}

/// How a convolution is computed.
#[derive(Debug, Clone)]
pub enum Operator {
    Dense(Conv2d),
    Depthwise(Depthwise),
    Transposed(Transposed),
}

/// One convolution of the graph made ready for its shape.
#[derive(Debug, Clone)]
pub struct PlannedConvolution {
    pub name: String,
    pub convolution: graph::Convolution,
    pub operator: Operator,
    pub output_channels: Channels,
    /// The output's size.
    pub output: Extent,
    /// In inference: the packed weights and the padded bias, which stay.
    pub folded: Option<[BufferId; 2]>,
}

impl PlannedConvolution {
    /// Returns the floats of a pass's packed weights.
    pub fn packed_len(&self, pass: Pass) -> usize {
        match &self.operator {
            Operator::Dense(conv) => conv.packed_len(pass),
            Operator::Depthwise(conv) => conv.packed_len(),
            Operator::Transposed(conv) => conv.packed_len(pass),
        }
    }

    /// Returns the floats of scratch memory a pass needs.
    pub fn scratch_len(&self, pass: Pass, thread_count: usize) -> usize {
        match &self.operator {
            Operator::Dense(conv) => conv.scratch_len(pass, thread_count),
            Operator::Depthwise(conv) => conv.scratch_len(pass),
            Operator::Transposed(conv) => conv.scratch_len(pass, thread_count),
        }
    }

    /// Returns the useful floating-point operations of one pass.
    pub fn flops(&self) -> u64 {
        match &self.operator {
            Operator::Dense(conv) => conv.shape().flops(),
            Operator::Depthwise(conv) => conv.shape().flops(),
            Operator::Transposed(conv) => conv.shape().flops(),
        }
    }

    /// Returns the elements of the canonical weights.
    pub fn weight_len(&self) -> usize {
        match &self.operator {
            Operator::Dense(conv) => conv.shape().weight_len(),
            Operator::Depthwise(conv) => conv.shape().weight_len(),
            Operator::Transposed(conv) => conv.shape().weight_len(),
        }
    }
}

/// A model made concrete for one shape.
#[derive(Debug, Clone)]
pub struct Plan {
    pub spec: ModelSpec,
    pub shape: InputShape,
    pub options: Options,
    pub graph: Graph,
    pub convolutions: Vec<PlannedConvolution>,
    pub buffers: Vec<Buffer>,
    pub forward: Vec<Launch>,
    pub backward: Vec<Launch>,
    pub outputs: PlannedOutputs,
    /// For prediction.
    pub predictions: Option<PlannedPredictions>,
    /// Where each value of the graph lies; none for sums' terms that are never stored.
    pub values: Vec<Option<Slot>>,
    /// The channels of each value of the graph.
    pub channels: Vec<Channels>,
    /// Floats of the arena.
    pub arena_len: usize,
    /// Numbers of the double-precision workspace of sums.
    pub sums_len: usize,
}

impl Plan {
    /// Plans a model.
    pub fn new(spec: &ModelSpec, shape: InputShape, options: Options) -> Result<Self> {
        shape.check()?;
        let mut lowering = forward::Lowering::new(models::graph(spec), shape, options);
        lowering.forward(spec);
        if options.mode == Mode::Train {
            lowering.backward();
        }
        Ok(lowering.finish(spec))
    }

    /// Returns the memory the plan takes when it runs, beside the model's parameters. In training that
    /// includes a copy of the images as bytes.
    pub fn peak_bytes(&self) -> u64 {
        let images = match self.options.mode {
            Mode::Train => self
                .options
                .target
                .batch_bytes(self.shape.pixel_count() as u64),
            Mode::Infer => 0,
        };
        let arena = self.arena_len * size_of::<f32>();
        (arena + self.sums_len * size_of::<f64>()) as u64 + images
    }

    /// Returns the useful floating-point operations of one run.
    pub fn flops(&self) -> u64 {
        self.launches().map(|launch| launch.flops).sum()
    }

    /// Returns the bytes that one run reads and writes.
    pub fn traffic_bytes(&self) -> u64 {
        self.launches().map(|launch| launch.bytes).sum()
    }

    /// Returns all launches in order.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.forward.iter().chain(&self.backward)
    }

    /// Returns what kind of convolution a launch belongs to, such as `3x3/2`, or nothing.
    pub fn launch_shape(&self, launch: &Launch) -> String {
        let Some(planned) = launch.kernel.convolution().map(|i| &self.convolutions[i]) else {
            return String::new();
        };
        let graph::Convolution {
            kernel,
            stride,
            form,
            ..
        } = planned.convolution;
        let kind = match form {
            Form::Dense => "",
            Form::Depthwise => " depthwise",
            Form::Transposed => " transposed",
        };
        format!("{kernel}x{kernel}/{stride}{kind}")
    }

    /// Returns the anchors of one image.
    pub fn anchor_count(&self) -> usize {
        let levels = self.outputs.branches.first();
        let cells = levels.map(|levels| levels.iter().map(|head| head.height * head.width).sum());
        cells.unwrap_or(0)
    }

    /// Returns the bytes of each kind of buffer if none shared memory, biggest first.
    pub fn bytes_by_kind(&self) -> Vec<(BufferKind, u64)> {
        let mut sums: Vec<(BufferKind, u64)> = Vec::new();
        for buffer in &self.buffers {
            match sums.iter_mut().find(|(kind, _)| *kind == buffer.kind) {
                Some((_, bytes)) => *bytes += buffer.bytes(),
                None => sums.push((buffer.kind, buffer.bytes())),
            }
        }
        sums.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        sums
    }
}

impl fmt::Display for Plan {
    /// Lists launches and buffers; two plans can be compared line by line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let InputShape {
            batch,
            height,
            width,
        } = self.shape;
        writeln!(
            f,
            "{} batch {batch}, {height} x {width}: {} bytes, {} floating-point operations, {} bytes moved",
            self.spec.name(),
            self.peak_bytes(),
            self.flops(),
            self.traffic_bytes()
        )?;
        for (index, launch) in self.launches().enumerate() {
            let buffers: Vec<_> = launch
                .kernel
                .buffers()
                .into_iter()
                .map(|id| id.0.to_string())
                .collect();
            writeln!(
                f,
                "launch {index:4} {:20} {:28} {:>14} flop {:>12} B  buffers {}",
                launch.kernel.kind(),
                launch.name,
                launch.flops,
                launch.bytes,
                buffers.join(" ")
            )?;
        }
        for (index, buffer) in self.buffers.iter().enumerate() {
            writeln!(
                f,
                "buffer {index:4} {:11} {:28} {:>12} B at {:>12}, launches {} to {}",
                format!("{:?}", buffer.kind).to_lowercase(),
                buffer.name,
                buffer.bytes(),
                buffer.offset * size_of::<f32>(),
                buffer.first,
                buffer.last
            )?;
        }
        Ok(())
    }
}

/// Plans without allocating: what a run would need and do.
pub fn estimate(
    spec: &ModelSpec,
    shape: InputShape,
    mode: Mode,
    thread_count: usize,
) -> Result<Plan> {
    Plan::new(spec, shape, Options::new(mode, thread_count))
}

/// Returns the largest batch of images of the shape's sides whose plan fits into `memory_bytes`, or 0.
pub fn largest_batch(
    spec: &ModelSpec,
    shape: InputShape,
    options: Options,
    memory_bytes: u64,
) -> Result<usize> {
    let fits = |batch| {
        let plan = Plan::new(spec, InputShape { batch, ..shape }, options)?;
        Ok::<_, Error>(plan.peak_bytes() <= memory_bytes)
    };
    // Doubling first: a plan costs the same for any batch, and these are few.
    let (mut low, mut high) = (0, 1);
    while high <= InputShape::BATCH_MAX && fits(high)? {
        low = high;
        high *= 2;
    }
    high = high.min(InputShape::BATCH_MAX + 1);
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests;

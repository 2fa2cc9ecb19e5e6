//! A model made ready to run: plan and arena for one input shape. Parameters and gradients are the caller's,
//! as flat vectors.

mod arena;
mod backward;
mod heads;
mod outputs;
mod run;
mod weights;

use std::time::Duration;

use arena::Arena;
pub use heads::{HeadLevel, HeadLevelGradient, Map, MapGradient, OutputGradients, Outputs};
use run::{Runner, Subject};

use crate::clock::Stopwatch;
use crate::device;
use crate::graph::ValueId;
use crate::models::ModelSpec;
use crate::ops::conv2d::{Input, Pass};
use crate::parallel::Threads;
use crate::plan::{self, Kernel, Mode, Options, Plan, Rows};
use crate::{Error, Result};

/// What a parameter is to the optimiser (see `optim`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Weights of convolutions and linear layers: decayed.
    Weight,
    /// Weights of normalisation layers: not decayed.
    NormWeight,
    /// Anything called `bias`: not decayed, own learning rate in warm-up.
    Bias,
    /// Constants that count as parameters and are never trained (`dfl.conv.weight`).
    Frozen,
}

/// One named tensor in a flat `f32` vector, in the layout of the reference's state dict
/// (convolutions are OIHW, C order).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub shape: Vec<usize>,
    pub offset: usize,
    pub role: Role,
}

impl TensorInfo {
    /// Returns the number of elements.
    pub fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns where the tensor lies in its flat vector.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.element_count()
    }
}

/// Everything a model has learnt: two flat vectors described by `models::tables`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct State {
    pub parameters: Vec<f32>,
    /// Running means and variances.
    pub buffers: Vec<f32>,
}

/// The shape of a batch of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct InputShape {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
}

impl InputShape {
    /// Sides of an image must be multiples of this, the coarsest stride.
    pub const SIDE_STEP: usize = 32;
    /// The longest side of an image.
    pub const SIDE_MAX: usize = 8192;
    /// The largest batch.
    pub const BATCH_MAX: usize = 4096;

    /// Returns the shape of `batch` square images.
    pub fn square(batch: usize, side: usize) -> Self {
        Self {
            batch,
            height: side,
            width: side,
        }
    }

    /// Returns the number of pixels of the batch.
    pub fn pixel_count(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Refuses shapes no model takes.
    pub fn check(&self) -> Result<()> {
        if self.batch == 0 || self.batch > Self::BATCH_MAX {
            return Err(Error::Argument {
                argument: "batch",
                rule: format!(
                    "must be between 1 and {}, not {}",
                    Self::BATCH_MAX,
                    self.batch
                ),
            });
        }
        for side in [self.height, self.width] {
            let fits = (Self::SIDE_STEP..=Self::SIDE_MAX).contains(&side);
            if !fits || !side.is_multiple_of(Self::SIDE_STEP) {
                return Err(Error::Argument {
                    argument: "imgsz",
                    rule: format!(
                        "must be a multiple of {} between {} and {}, not {side}",
                        Self::SIDE_STEP,
                        Self::SIDE_STEP,
                        Self::SIDE_MAX
                    ),
                });
            }
        }
        Ok(())
    }
}

/// A batch of images, `[batch][height][width][3]` RGB.
#[derive(Debug, Clone, Copy)]
pub enum Images<'a> {
    /// 0 to 255; divided by 255 on the way in.
    U8(&'a [u8]),
    /// 0 to 1.
    F32(&'a [f32]),
}

/// Decoded predictions of a batch: `[batch][anchors][row]`, rows laid out as `form` says.
///
/// Rows of anchors begin with a box as centre x, centre y, width, height in pixels of the input, then a
/// probability per class. Rows of detections begin with a box as its corners (rotated ones with centre and
/// size), score and class. Extras end a row: mask coefficients; the angle in radians; keypoints in pixels with
/// their probability of being visible. A classifier has one row of probabilities for an image.
#[derive(Debug, Clone, Copy)]
pub struct Predictions<'a> {
    pub batch: usize,
    /// Rows of an image.
    pub anchors: usize,
    pub class_count: usize,
    /// Extras of a row.
    pub extra_count: usize,
    pub form: Rows,
    pub values: &'a [f32],
}

impl<'a> Predictions<'a> {
    /// Returns the numbers of a row.
    pub fn row_length(&self) -> usize {
        self.form.row_length(self.class_count, self.extra_count)
    }

    /// Returns the rows of one image of the batch.
    pub fn image(&self, index: usize) -> &'a [f32] {
        let length = self.anchors * self.row_length();
        &self.values[index * length..][..length]
    }
}

impl<'a> Images<'a> {
    fn len(&self) -> usize {
        match self {
            Self::U8(bytes) => bytes.len(),
            Self::F32(floats) => floats.len(),
        }
    }

    fn input(self) -> Input<'a> {
        match self {
            Self::U8(bytes) => Input::Bytes(bytes),
            Self::F32(floats) => Input::Floats(floats),
        }
    }
}

/// The images of the last forward pass, which the first convolution's gradient needs.
#[derive(Debug)]
enum KeptImages {
    U8(Vec<u8>),
    F32(Vec<f32>),
}

impl KeptImages {
    /// Takes a copy, in the same memory where the kind is the same.
    fn keep(&mut self, images: Images<'_>) {
        match (&mut *self, images) {
            (Self::U8(kept), Images::U8(bytes)) => {
                kept.clear();
                kept.extend_from_slice(bytes);
            }
            (Self::F32(kept), Images::F32(floats)) => {
                kept.clear();
                kept.extend_from_slice(floats);
            }
            (_, Images::U8(bytes)) => *self = Self::U8(bytes.to_vec()),
            (_, Images::F32(floats)) => *self = Self::F32(floats.to_vec()),
        }
    }

    fn input(&self) -> Input<'_> {
        match self {
            Self::U8(bytes) => Input::Bytes(bytes),
            Self::F32(floats) => Input::Floats(floats),
        }
    }
}

/// A model for one input shape: forward and backward in training, or forward with folded norms.
#[derive(Debug)]
pub struct Network {
    plan: Plan,
    arena: Arena,
    threads: Threads,
    /// Workspace of sums in double precision.
    sums: Vec<f64>,
    images: KeptImages,
    /// Time spent in each launch, forward then backward; empty unless asked for.
    timings: Vec<Duration>,
    /// For each convolution whether its norm keeps the running statistics; empty when none does.
    frozen: Vec<bool>,
}

impl Network {
    /// Makes a network for training.
    pub fn train(spec: &ModelSpec, shape: InputShape, threads: &Threads) -> Result<Self> {
        let options = Options::new(Mode::Train, threads.count());
        Self::with_options(spec, shape, options, threads)
    }

    /// Makes a network for prediction; it needs [`Network::load`] before its first forward pass.
    pub fn infer(spec: &ModelSpec, shape: InputShape, threads: &Threads) -> Result<Self> {
        let options = Options::new(Mode::Infer, threads.count());
        Self::with_options(spec, shape, options, threads)
    }

    /// As [`Network::infer`], but its outputs are left as they are, for [`crate::metrics::Detector`] to read; it has
    /// no [`Network::predictions`].
    pub fn infer_outputs(spec: &ModelSpec, shape: InputShape, threads: &Threads) -> Result<Self> {
        let options = Options {
            is_decoding: false,
            ..Options::new(Mode::Infer, threads.count())
        };
        Self::with_options(spec, shape, options, threads)
    }

    /// Makes a network with a plan of its own kind.
    pub fn with_options(
        spec: &ModelSpec,
        shape: InputShape,
        options: Options,
        threads: &Threads,
    ) -> Result<Self> {
        let plan = Plan::new(spec, shape, options)?;
        let available_bytes = device::available_memory_bytes();
        if plan.peak_bytes() > available_bytes {
            return Err(out_of_memory(&plan, available_bytes));
        }
        let arena =
            Arena::new(plan.arena_len).ok_or_else(|| out_of_memory(&plan, available_bytes))?;
        Ok(Self {
            arena,
            threads: threads.clone(),
            sums: vec![0.0; plan.sums_len],
            images: KeptImages::U8(Vec::new()),
            timings: Vec::new(),
            frozen: Vec::new(),
            plan,
        })
    }

    /// Returns the plan: memory, launches, operations.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Says which norms keep their running statistics in training, by the name of a tensor of theirs.
    pub fn keep_statistics(&mut self, holds: impl Fn(&str) -> bool) {
        let buffers = &self.plan.graph.buffers;
        let is_frozen = |planned: &plan::PlannedConvolution| {
            let norm = planned.convolution.norm;
            norm.is_some_and(|norm| holds(&buffers[norm.mean].name))
        };
        self.frozen = self.plan.convolutions.iter().map(is_frozen).collect();
    }

    /// Computes the head's outputs with the batch's statistics and moves the running ones.
    ///
    /// # Panics
    /// When the network is not for training, or the images are not of its shape.
    pub fn forward(&mut self, state: &mut State, images: Images<'_>) {
        assert_eq!(
            self.plan.options.mode,
            Mode::Train,
            "a network for training goes forward with statistics"
        );
        self.check_images(images);
        self.images.keep(images);
        self.run_forward(None, Subject::Train(state));
    }

    /// Returns the head's outputs of the last forward pass.
    pub fn outputs(&self) -> Outputs<'_> {
        outputs::read(&self.plan, &self.arena)
    }

    /// Returns the head's outputs, and where the loss writes their gradients.
    ///
    /// # Panics
    /// When the network is not for training.
    pub fn outputs_and_gradients(&mut self) -> (Outputs<'_>, OutputGradients<'_>) {
        let gradients = outputs::gradients(&self.plan, &self.arena);
        (outputs::read(&self.plan, &self.arena), gradients)
    }

    /// Adds the gradient of every parameter, given those of the head's outputs.
    ///
    /// # Panics
    /// When the gradient's length is not the parameters'.
    pub fn backward(&mut self, state: &State, gradient: &mut [f32]) {
        assert_eq!(
            gradient.len(),
            state.parameters.len(),
            "there is one gradient per parameter"
        );
        let mut runner = Runner {
            plan: &self.plan,
            arena: &self.arena,
            threads: &self.threads,
            sums: &mut self.sums,
            images: self.images.input(),
            subject: Subject::Backward(state, gradient),
            frozen: &self.frozen,
        };
        let first = self.plan.forward.len();
        for (index, launch) in self.plan.backward.iter().enumerate() {
            let timing = self.timings.get_mut(first + index);
            run_timed(&mut runner, &launch.kernel, timing);
        }
    }

    /// Folds norms into weights and packs them.
    ///
    /// # Panics
    /// When the network is not for prediction.
    pub fn load(&mut self, state: &State) {
        let graph = &self.plan.graph;
        for planned in &self.plan.convolutions {
            let [packed, bias] = planned
                .folded
                .expect("a network for prediction loads parameters");
            let mut values = vec![0.0; planned.weight_len()];
            let mut shift = vec![0.0; planned.convolution.output_channels];
            weights::fold(graph, &planned.convolution, state, &mut values, &mut shift);
            let [packed, bias] =
                [packed, bias].map(|id| outputs::buffer(&self.plan, &self.arena, id));
            weights::pack(&self.threads, planned, Pass::Forward, &values, packed);
            planned.output_channels.spread(&shift, bias);
        }
    }

    /// Computes predictions with the parameters of the last [`Network::load`].
    ///
    /// # Panics
    /// When the network is not for prediction, or the images are not of its shape.
    pub fn infer_forward(&mut self, images: Images<'_>) {
        assert_eq!(
            self.plan.options.mode,
            Mode::Infer,
            "a network for prediction goes forward with folded norms"
        );
        self.check_images(images);
        self.run_forward(Some(images), Subject::Infer);
    }

    /// Returns the predictions of the last forward pass.
    ///
    /// # Panics
    /// When the network is not for prediction.
    pub fn predictions(&self) -> Predictions<'_> {
        let Some(planned) = self.plan.predictions else {
            panic!("a network for prediction decodes its outputs");
        };
        let spec = &self.plan.spec;
        Predictions {
            batch: self.plan.shape.batch,
            anchors: planned.rows,
            class_count: spec.class_count,
            extra_count: spec.extra_channels(),
            form: planned.form,
            values: outputs::values(&self.plan, &self.arena, planned.output),
        }
    }

    /// Returns a value of the graph as `[batch][channel][y][x]`, without padding, if it is stored.
    ///
    /// Unless the plan keeps everything, other values may have taken its memory since.
    pub fn value(&self, id: ValueId) -> Option<Vec<f32>> {
        outputs::unpadded(&self.plan, &self.arena, id)
    }

    /// Starts measuring the time of each launch.
    pub fn start_timing(&mut self) {
        self.timings = vec![Duration::ZERO; self.plan.launches().count()];
    }

    /// Returns the time spent in each launch since [`Network::start_timing`], in the plan's order.
    pub fn timings(&self) -> &[Duration] {
        &self.timings
    }

    fn check_images(&self, images: Images<'_>) {
        assert_eq!(
            images.len(),
            3 * self.plan.shape.pixel_count(),
            "images have the network's shape"
        );
    }

    fn run_forward(&mut self, images: Option<Images<'_>>, subject: Subject<'_>) {
        let mut runner = Runner {
            plan: &self.plan,
            arena: &self.arena,
            threads: &self.threads,
            sums: &mut self.sums,
            images: images.map_or_else(|| self.images.input(), Images::input),
            subject,
            frozen: &self.frozen,
        };
        for (index, launch) in self.plan.forward.iter().enumerate() {
            run_timed(&mut runner, &launch.kernel, self.timings.get_mut(index));
        }
    }
}

fn run_timed(runner: &mut Runner<'_>, kernel: &Kernel, timing: Option<&mut Duration>) {
    match timing {
        None => runner.run(kernel),
        Some(total) => {
            let watch = Stopwatch::start();
            runner.run(kernel);
            *total += watch.elapsed();
        }
    }
}

fn out_of_memory(plan: &Plan, available_bytes: u64) -> Error {
    let largest = plan::largest_batch(&plan.spec, plan.shape, plan.options, available_bytes);
    Error::OutOfMemory {
        batch: plan.shape.batch,
        needed_bytes: plan.peak_bytes(),
        available_bytes,
        largest_batch: largest.unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;

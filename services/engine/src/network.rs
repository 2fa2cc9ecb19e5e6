//! A model made ready to run: graph, plan, arena, parameters and gradients for one input shape.

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

/// The raw outputs of one level of a detection head, NHWC: anchor `a = y * width + x` of image `i` starts at
/// `(i * height * width + a) * box_stride` in `boxes` and `... * score_stride` in `scores`.
#[derive(Debug, Clone, Copy)]
pub struct HeadLevel<'a> {
    /// Pixels of the input per cell: 8, 16 or 32.
    pub stride: usize,
    pub height: usize,
    pub width: usize,
    /// Distance logits, side-major: 4 sides × `reg_max` bins.
    pub boxes: &'a [f32],
    pub box_stride: usize,
    /// Class logits, `class_count` of them; anything beyond up to `score_stride` is padding.
    pub scores: &'a [f32],
    pub score_stride: usize,
}

/// Where the loss writes the gradients of one level; the same layout as [`HeadLevel`]. The loss writes
/// every element, zero in the padding.
#[derive(Debug)]
pub struct HeadLevelGradient<'a> {
    pub boxes: &'a mut [f32],
    pub scores: &'a mut [f32],
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

/// Decoded predictions of a batch: `[batch][anchors][4 + class_count]`, each row a box as centre x, centre y,
/// width, height in pixels of the input, then a probability per class.
#[derive(Debug, Clone, Copy)]
pub struct Predictions<'a> {
    pub batch: usize,
    pub anchors: usize,
    pub class_count: usize,
    pub values: &'a [f32],
}

impl<'a> Predictions<'a> {
    /// Returns the number of values of one anchor.
    pub fn row_length(&self) -> usize {
        4 + self.class_count
    }

    /// Returns the rows of one image of the batch.
    pub fn image(&self, index: usize) -> &'a [f32] {
        let length = self.anchors * self.row_length();
        &self.values[index * length..][..length]
    }
}

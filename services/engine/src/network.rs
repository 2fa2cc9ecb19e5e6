//! A model made ready to run: graph, plan, arena, parameters and gradients for one input shape.

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

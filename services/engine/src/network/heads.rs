//! What a head puts out before it is decoded, and where the loss writes the gradients of that. Everything is
//! NHWC with a padded pixel stride, as the kernels leave it.

/// One level of one branch of a head: anchor `a = y * width + x` of image `i` starts at
/// `(i * height * width + a) * stride` of each output, with that output's own stride.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadLevel<'a> {
    /// Pixels of the input per cell: 8, 16 or 32.
    pub stride: usize,
    pub height: usize,
    pub width: usize,
    /// Distance logits, side-major (4 sides × 16 bins), or the four distances themselves (YOLO26).
    pub boxes: &'a [f32],
    pub box_stride: usize,
    /// Class logits, `class_count` of them; anything beyond up to `score_stride` is padding.
    pub scores: &'a [f32],
    pub score_stride: usize,
    /// The task's third output: mask coefficients, raw keypoints (keypoint-major), raw angle. Empty where there
    /// is none, with stride 0.
    pub extra: &'a [f32],
    pub extra_stride: usize,
    /// Logits of the keypoints' deviations, two each; only YOLO26's pose in training has them.
    pub sigma: &'a [f32],
    pub sigma_stride: usize,
}

/// Where the loss writes the gradients of one level; the same layout as [`HeadLevel`]. The loss writes
/// every element, zero in the padding.
#[derive(Debug, Default)]
pub struct HeadLevelGradient<'a> {
    pub boxes: &'a mut [f32],
    pub scores: &'a mut [f32],
    pub extra: &'a mut [f32],
    pub sigma: &'a mut [f32],
}

/// A dense map of features: channel `c` of pixel `p` (counted over the batch) is `values[p * pixel_stride + c]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Map<'a> {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    pub pixel_stride: usize,
    pub values: &'a [f32],
}

/// Where the loss writes the gradient of a [`Map`], zero in the padding.
#[derive(Debug, Default)]
pub struct MapGradient<'a> {
    pub values: &'a mut [f32],
}

/// Everything a head puts out.
#[derive(Debug, Clone, Default)]
pub struct Outputs<'a> {
    /// The only branch, or one-to-many, then one-to-one; in each the finest level first.
    pub branches: Vec<Vec<HeadLevel<'a>>>,
    /// Mask prototypes at a quarter of the input's side.
    pub prototypes: Option<Map<'a>>,
    /// Logits of a class per pixel at an eighth of the input's side; only YOLO26 in training has them.
    pub semantic: Option<Map<'a>>,
    /// Class logits of the whole image, one pixel each.
    pub logits: Option<Map<'a>>,
}

/// Where the loss writes the gradients of [`Outputs`].
#[derive(Debug, Default)]
pub struct OutputGradients<'a> {
    pub branches: Vec<Vec<HeadLevelGradient<'a>>>,
    pub prototypes: Option<MapGradient<'a>>,
    pub semantic: Option<MapGradient<'a>>,
    pub logits: Option<MapGradient<'a>>,
}

//! The kernels of `detect.cu`, `classify.cu` and `masks.cu`, and their parameters.

use crate::ops::cuda::{FastDiv, Kernel, Parameters, Source, View};

/// The most anchors that an object may claim.
pub const CLAIMS_MAX: u32 = 13;

crate::ops::params! {
    /// One level's raw outputs.
    pub struct HeadLevel {
        pub boxes: View,
        pub scores: View,
        pub by_width: FastDiv,
        /// The number of its first anchor.
        pub first: u32,
        /// Of an image.
        pub cells: u32,
        pub width: u32,
        pub height: u32,
        pub stride: f32,
    }
    /// A branch of a dense head; its rows are all anchors of all images.
    pub struct Head needs(HeadLevel) {
        pub levels: [HeadLevel; 3],
        pub by_anchors: FastDiv,
        /// Of an image.
        pub anchors: u32,
        pub classes: u32,
        /// 16, or 1 where the outputs are the distances themselves.
        pub bins: u32,
        pub images: u32,
        pub unused: u32,
    }
    /// A batch's objects, in the order of its targets.
    pub struct Truths {
        /// f32: corners in pixels, 4 a row.
        pub boxes: u64,
        /// u32: image, class, number within the image from 1, unused.
        pub meta: u64,
        /// u32: how many rows there are.
        pub count: u64,
    }
    /// `head_decode`.
    pub struct HeadDecode needs(HeadLevel, Head) {
        pub head: Head,
        /// f32: corners in pixels, 4 a row.
        pub boxes: u64,
        /// f32: a probability for each class; or 0.
        pub scores: u64,
    }
    /// The three steps of the assigner.
    pub struct TalAssign needs(HeadLevel, Head, Truths) {
        pub head: Head,
        pub truths: Truths,
        /// As `head_decode` writes them.
        pub boxes: u64,
        /// u64 a row each, all zero before and after a step.
        pub nearest: u64,
        pub claims: u64,
        /// u64, two for each object there may be.
        pub peaks: u64,
        /// u32 a row: the object plus one, 0 for none.
        pub owners: u64,
        /// f32 a row: what the anchor should say of the object's class.
        pub targets: u64,
        /// f32: two for each block of `tal_targets`.
        pub partials: u64,
        /// A zero; zero again afterwards.
        pub counter: u64,
        /// f32: the sum of the targets, and how many there are.
        pub totals: u64,
        pub per_object: u32,
        /// 1 when an object keeps only its best anchor.
        pub one_kept: u32,
    }
    /// Where the gradients of a level go.
    pub struct HeadGradient {
        pub boxes: View,
        pub scores: View,
    }
    /// `det_loss_classes` and `det_loss_boxes`; each has partials and a counter of its own.
    pub struct DetLoss needs(HeadLevel, Head, Truths, HeadGradient) {
        pub head: Head,
        pub gradients: [HeadGradient; 3],
        pub truths: Truths,
        pub owners: u64,
        pub targets: u64,
        pub totals: u64,
        /// f32 a class; or 0.
        pub class_weights: u64,
        /// f32: two for each block.
        pub partials: u64,
        pub counter: u64,
        /// f32: boxes, classes, distances, with their gains.
        pub items: u64,
        /// Padded classes over 8.
        pub by_pieces: FastDiv,
        pub gain_boxes: f32,
        pub gain_classes: f32,
        pub gain_distances: f32,
        /// What the gradients are multiplied by beside: the branch's weight times the batch.
        pub factor: f32,
        pub image_height: f32,
        pub image_width: f32,
        pub unused: u32,
    }
    /// Whole images.
    pub struct ClassifyLoss {
        pub logits: View,
        pub gradient: View,
        /// u32 an image.
        pub labels: u64,
        pub class_weights: u64,
        /// f32 an image.
        pub partials: u64,
        pub counter: u64,
        /// f32.
        pub loss: u64,
        pub classes: u32,
        /// One over the images.
        pub share: f32,
    }
    /// Instance masks: `mask_list`, `mask_loss`, `mask_loss_prototypes`, in this order.
    pub struct MaskLoss needs(HeadLevel, Head, Truths) {
        pub head: Head,
        pub truths: Truths,
        pub owners: u64,
        pub totals: u64,
        pub prototypes: View,
        pub prototype_gradient: View,
        pub coefficients: [View; 3],
        pub coefficient_gradients: [View; 3],
        /// u16 a pixel of the prototypes: the number of the instance, 0 for none.
        pub instances: u64,
        /// u32: `capacity` anchors an image.
        pub list: u64,
        /// u32 an image: how many there were, which may be more than were listed.
        pub counts: u64,
        /// f32: one for each block of `mask_loss`.
        pub partials: u64,
        pub counter: u64,
        pub loss: u64,
        pub by_width: FastDiv,
        pub width: u32,
        pub height: u32,
        /// Pixels of the prototypes over those of the image.
        pub scale_x: f32,
        pub scale_y: f32,
        pub capacity: u32,
        pub gain: f32,
        pub factor: f32,
    }
}

impl TalAssign {
    /// Returns the grid of `tal_metric_topk`, a block for each object there may be.
    pub fn grid(&self, objects_max: u32) -> [u32; 3] {
        assert!(
            self.per_object <= CLAIMS_MAX,
            "invariant: an object claims at most {CLAIMS_MAX} anchors, not {}",
            self.per_object
        );
        [objects_max, 1, 1]
    }
}

impl Head {
    /// Describes a head with the number of its images, classes and bins; a level's own numbers are its stride, height
    /// and width.
    pub fn new(levels: [(View, View, [u32; 3]); 3], [images, classes, bins]: [u32; 3]) -> Self {
        let mut first = 0;
        let levels = levels.map(|(boxes, scores, [stride, height, width])| {
            let level = HeadLevel {
                boxes,
                scores,
                by_width: FastDiv::new(width),
                first,
                cells: height * width,
                width,
                height,
                stride: stride as f32,
            };
            first += level.cells;
            level
        });
        Self {
            levels,
            by_anchors: FastDiv::new(first),
            anchors: first,
            classes,
            bins,
            images,
            unused: 0,
        }
    }

    /// Returns the grid for eight threads an anchor, 32 anchors a block.
    pub fn grid(&self) -> [u32; 3] {
        [(self.images * self.anchors).div_ceil(32), 1, 1]
    }
}

/// The included file.
pub const HEAD: &str = include_str!("head.h");

/// Anchors, assignment, boxes and classes.
pub const DETECT: Source = Source {
    name: "detect",
    text: include_str!("detect.cu"),
    kernels: &[
        Kernel::plain("head_decode", HeadDecode::LAYOUT, 256, 4),
        Kernel::plain("tal_metric_topk", TalAssign::LAYOUT, 128, 4),
        Kernel::plain("tal_peaks", TalAssign::LAYOUT, 256, 4),
        Kernel::plain("tal_targets", TalAssign::LAYOUT, 256, 4),
        Kernel::plain("det_loss_classes", DetLoss::LAYOUT, 256, 4),
        Kernel::plain("det_loss_boxes", DetLoss::LAYOUT, 256, 2),
    ],
};

/// Whole images.
pub const CLASSIFY: Source = Source {
    name: "classify",
    text: include_str!("classify.cu"),
    kernels: &[Kernel::plain("classify_loss", ClassifyLoss::LAYOUT, 256, 4)],
};

/// Instance masks.
pub const MASKS: Source = Source {
    name: "masks",
    text: include_str!("masks.cu"),
    kernels: &[
        Kernel::plain("mask_list", MaskLoss::LAYOUT, 256, 4),
        Kernel::plain("mask_loss", MaskLoss::LAYOUT, 128, 3),
        Kernel::plain("mask_loss_prototypes", MaskLoss::LAYOUT, 128, 4),
    ],
};

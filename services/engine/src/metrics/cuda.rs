//! The kernels of `nms.cu` and their parameters.

use crate::ops::cuda::{FastDiv, Kernel, Parameters, Source};

/// The most candidates of an image that are sorted.
pub const SORT_MAX: u32 = 4096;
/// The most labels of an image that `ap_match` tells apart.
pub const LABELS_MAX: u32 = 1024;

crate::ops::params! {
    /// Lists candidates.
    pub struct FilterScores {
        /// f32: a probability for each class, as `head_decode` writes them.
        pub scores: u64,
        /// u64: `capacity` keys an image.
        pub candidates: u64,
        /// u32 an image: zero before; afterwards how many there were, which may be more than were listed.
        pub counts: u64,
        pub by_anchors: FastDiv,
        /// Anchors of all images.
        pub rows: u32,
        pub classes: u32,
        pub capacity: u32,
        pub confidence: f32,
        /// 1 when every class of an anchor counts, 0 for its best.
        pub multi_label: u32,
    }
    /// Sorts the surest; the grid is the images.
    pub struct FilterTopk {
        pub candidates: u64,
        pub counts: u64,
        /// f32: corners, as `head_decode` writes them.
        pub boxes: u64,
        /// f32: corners, `limit` an image.
        pub sorted_boxes: u64,
        /// u32, four each: the score's bits, class, anchor, unused.
        pub sorted: u64,
        pub sorted_counts: u64,
        pub by_classes: FastDiv,
        /// Of an image.
        pub anchors: u32,
        pub capacity: u32,
        /// At most [`SORT_MAX`].
        pub limit: u32,
    }
    /// Suppresses: `nms_mask`, then `nms_scan`.
    pub struct Nms {
        pub sorted_boxes: u64,
        pub sorted: u64,
        pub sorted_counts: u64,
        /// u64: `words` for each of the `limit` candidates of an image.
        pub mask: u64,
        /// u32: `detections_max` an image, places among the sorted.
        pub kept: u64,
        pub kept_counts: u64,
        pub limit: u32,
        /// `limit` over 64, rounded up.
        pub words: u32,
        pub detections_max: u32,
        pub threshold: f32,
        /// 1 when classes suppress each other.
        pub agnostic: u32,
        pub unused: u32,
    }
    /// Judges detections; the grid is the images.
    pub struct ApMatch {
        /// f32: corners, `detections_max` an image, the surest first.
        pub boxes: u64,
        /// u32: classes of the same.
        pub types: u64,
        /// u32 an image.
        pub counts: u64,
        /// f32: corners of all images' labels.
        pub label_boxes: u64,
        pub label_types: u64,
        /// u32: where each image's labels start, and where the last ones end.
        pub label_starts: u64,
        /// u32, four each: hits of the four ranges of sizes, sixteen bits a range, then what is ignored.
        pub verdicts: u64,
        pub detections_max: u32,
        pub unused: u32,
    }
}

impl FilterTopk {
    /// Returns the grid.
    pub fn grid(&self, images: u32) -> [u32; 3] {
        check_limit(self.limit);
        [images, 1, 1]
    }
}

impl Nms {
    /// Returns the grids of `nms_mask` and `nms_scan`.
    pub fn grids(&self, images: u32) -> [[u32; 3]; 2] {
        check_limit(self.limit);
        assert_eq!(
            self.words,
            self.limit.div_ceil(64),
            "invariant: a word for each 64 candidates"
        );
        [[self.words, self.words, images], [images, 1, 1]]
    }
}

impl ApMatch {
    /// Returns the grid; `label_starts` is what the kernel reads.
    pub fn grid(label_starts: &[u32]) -> [u32; 3] {
        for window in label_starts.windows(2) {
            let labels = window[1] - window[0];
            assert!(
                labels <= LABELS_MAX,
                "invariant: an image has at most {LABELS_MAX} labels, not {labels}"
            );
        }
        [label_starts.len().saturating_sub(1) as u32, 1, 1]
    }
}

fn check_limit(limit: u32) {
    assert!(
        limit <= SORT_MAX,
        "invariant: at most {SORT_MAX} candidates are sorted, not {limit}"
    );
}

/// The file.
pub const SOURCE: Source = Source {
    name: "nms",
    text: include_str!("nms.cu"),
    kernels: &[
        Kernel::plain("filter_scores", FilterScores::LAYOUT, 256, 4),
        Kernel::plain("filter_topk", FilterTopk::LAYOUT, 256, 1),
        Kernel::plain("nms_mask", Nms::LAYOUT, 64, 8),
        Kernel::plain("nms_scan", Nms::LAYOUT, 32, 16),
        Kernel::plain("ap_match", ApMatch::LAYOUT, 64, 8),
    ],
};

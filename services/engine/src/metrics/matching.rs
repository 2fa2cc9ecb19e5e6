//! Which detections are right: each may take one label of its class that it overlaps enough.

use super::{Detection, Label, iou};

/// The overlaps a detection is judged at.
pub const IOU_THRESHOLDS: [f64; 10] = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95];

/// Judges the detections of one image, which must be sorted by descending score: bit `k` of a result says that
/// the detection takes a label at `IOU_THRESHOLDS[k]`.
///
/// At each threshold the surest detection chooses first, the free label it overlaps most.
pub fn match_detections(detections: &[Detection], labels: &[Label]) -> Vec<u16> {
    let mut taken = vec![0u16; labels.len()];
    let mut near = Vec::new();
    let judge = |detection: &Detection| {
        near.clear();
        for (index, label) in labels.iter().enumerate() {
            if label.class == detection.class {
                let overlap = iou(&label.bounds, &detection.bounds);
                if overlap >= IOU_THRESHOLDS[0] {
                    near.push((index, overlap));
                }
            }
        }
        let mut hits = 0;
        for (bit, &threshold) in IOU_THRESHOLDS.iter().enumerate() {
            let free = near
                .iter()
                .filter(|(index, _)| taken[*index] >> bit & 1 == 0);
            let best = free.fold((usize::MAX, 0.0), |best, &(index, overlap)| {
                if overlap > best.1 {
                    (index, overlap)
                } else {
                    best
                }
            });
            if best.1 >= threshold {
                taken[best.0] |= 1 << bit;
                hits |= 1 << bit;
            }
        }
        hits
    };
    detections.iter().map(judge).collect()
}

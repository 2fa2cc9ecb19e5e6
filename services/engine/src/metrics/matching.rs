//! Which detections are right: each may take one label of its class that it overlaps enough.

/// The overlaps a detection is judged at.
pub const IOU_THRESHOLDS: [f64; 10] = [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95];

/// Ranges of objects' sizes that are judged by themselves, by COCO's bounds: the area in pixels.
pub const SIZE_BOUNDS: [f64; 2] = [32.0 * 32.0, 96.0 * 96.0];
/// All sizes, then small, medium and large.
pub(super) const SIZES: usize = 4;

/// An object found, as far as counting goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    pub score: f32,
    pub class: u32,
    /// In pixels.
    pub area: f64,
}

/// An object that is there, as far as counting goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Truth {
    pub class: u32,
    /// In pixels.
    pub area: f64,
}

/// What one detection is worth among objects of each range of sizes. Bit `k` stands for `IOU_THRESHOLDS[k]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// It takes a label.
    pub hits: [u16; SIZES],
    /// It counts neither for nor against: it takes a label of another size, or none and is of another size itself.
    pub ignored: [u16; SIZES],
}

/// Returns whether an area lies in a range of sizes; the bounds belong to both sides, as in COCO.
pub(super) fn is_in_range(size: usize, area: f64) -> bool {
    match size {
        0 => true,
        1 => area <= SIZE_BOUNDS[0],
        2 => (SIZE_BOUNDS[0]..=SIZE_BOUNDS[1]).contains(&area),
        _ => area >= SIZE_BOUNDS[1],
    }
}

/// Judges the detections of one image, which must be sorted by descending score; `overlap(label, detection)` is
/// asked about equal classes only.
///
/// At each threshold the surest detection chooses first, the free label it overlaps most, and one of its range
/// before any other.
pub(super) fn judge(
    detections: &[Scored],
    labels: &[Truth],
    overlap: impl Fn(usize, usize) -> f64,
) -> Vec<Verdict> {
    let mut taken: [_; SIZES] = std::array::from_fn(|_| vec![0u16; labels.len()]);
    let mut near = Vec::new();
    let mut verdicts = Vec::with_capacity(detections.len());
    for (index, detection) in detections.iter().enumerate() {
        near.clear();
        for (place, label) in labels.iter().enumerate() {
            if label.class == detection.class {
                let overlap = overlap(place, index);
                if overlap >= IOU_THRESHOLDS[0] {
                    near.push((place, overlap));
                }
            }
        }
        let mut verdict = Verdict::default();
        for (size, taken) in taken.iter_mut().enumerate() {
            for (bit, &threshold) in IOU_THRESHOLDS.iter().enumerate() {
                let best = |is_wanted: bool| {
                    let mut best = None;
                    let mut largest = threshold;
                    for &(place, overlap) in &near {
                        let is_free = taken[place] >> bit & 1 == 0;
                        let fits = is_in_range(size, labels[place].area) == is_wanted;
                        let is_better = overlap > largest || best.is_none() && overlap >= largest;
                        if is_free && fits && is_better {
                            best = Some(place);
                            largest = overlap;
                        }
                    }
                    best
                };
                let own = best(true);
                let other = if own.is_none() { best(false) } else { None };
                if let Some(place) = own.or(other) {
                    taken[place] |= 1 << bit;
                }
                if own.is_some() {
                    verdict.hits[size] |= 1 << bit;
                } else if other.is_some() || !is_in_range(size, detection.area) {
                    verdict.ignored[size] |= 1 << bit;
                }
            }
        }
        verdicts.push(verdict);
    }
    verdicts
}

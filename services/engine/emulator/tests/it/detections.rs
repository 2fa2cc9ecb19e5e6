//! From scores to detections and verdicts, and pictures into frames, against the engine's own on the CPU.

use engine::data::cuda::{LetterboxIn, taps};
use engine::data::letterbox::Letterbox;
use engine::data::picture::Picture;
use engine::metrics::cuda::{ApMatch, FilterScores, FilterTopk, Nms};
use engine::metrics::{IOU_THRESHOLDS, NmsOptions, nms};
use engine::ops::cuda::FastDiv;

use crate::bench::{Draw, Vector, each_way};

#[test]
fn detections_are_those_of_the_cpu() {
    each_way(|device, seed| {
        // Class count, anchors, most candidates, one label or many, classes apart or not.
        let cases = [
            (3, 150, 256, true, false),
            (3, 150, 40, true, false),
            (2, 130, 128, false, true),
        ];
        for (classes, anchors, limit, is_multi_label, is_class_agnostic) in cases {
            let draw = &mut Draw::new(seed);
            let (images, capacity) = (2, anchors * classes);
            let options = NmsOptions {
                confidence: 0.3,
                iou: 0.5,
                detection_count_max: 25,
                is_multi_label,
                is_class_agnostic,
            };
            let candidates = Vector::of(device, &vec![u64::MAX; images * capacity]);
            let sorted_boxes = Vector::poisoned(device, 4 * images * limit);
            let sorted = Vector::poisoned(device, 4 * images * limit);
            let words = limit.div_ceil(64);
            let mask = Vector::of(device, &vec![u64::MAX; images * limit * words]);
            let kept = Vector::poisoned(device, images * options.detection_count_max);
            let [sorted_counts, kept_counts] = [(); 2].map(|()| Vector::poisoned(device, images));
            for _ in 0..2 {
                let (mut boxes, mut scores, mut rows) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..images * anchors {
                    let [x, y] = [(); 2].map(|()| 40.0 * draw.next());
                    let [w, h] = [(); 2].map(|()| 20.0 + 10.0 * draw.next());
                    boxes.extend([x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0]);
                    rows.extend([x, y, w, h]);
                    for _ in 0..classes {
                        // Few scores, so that many are equal.
                        let score = ((draw.next() + 1.0) * 16.0).floor() / 32.0;
                        scores.push(score);
                        rows.push(score);
                    }
                }
                let [boxes, scores] = [&boxes, &scores].map(|values| Vector::of(device, values));
                let counts = Vector::of(device, &vec![0u32; images]);
                let filter = FilterScores {
                    scores: scores.address(),
                    candidates: candidates.address(),
                    counts: counts.address(),
                    by_anchors: FastDiv::new(anchors as u32),
                    rows: (images * anchors) as u32,
                    classes: classes as u32,
                    capacity: capacity as u32,
                    confidence: options.confidence,
                    multi_label: is_multi_label.into(),
                };
                device.launch("filter_scores", [2, 1, 1], &filter).unwrap();
                let topk = FilterTopk {
                    candidates: candidates.address(),
                    counts: counts.address(),
                    boxes: boxes.address(),
                    sorted_boxes: sorted_boxes.address(),
                    sorted: sorted.address(),
                    sorted_counts: sorted_counts.address(),
                    by_classes: FastDiv::new(classes as u32),
                    anchors: anchors as u32,
                    capacity: capacity as u32,
                    limit: limit as u32,
                };
                let grid = topk.grid(images as u32);
                device.launch("filter_topk", grid, &topk).unwrap();
                let suppress = Nms {
                    sorted_boxes: sorted_boxes.address(),
                    sorted: sorted.address(),
                    sorted_counts: sorted_counts.address(),
                    mask: mask.address(),
                    kept: kept.address(),
                    kept_counts: kept_counts.address(),
                    limit: limit as u32,
                    words: words as u32,
                    detections_max: options.detection_count_max as u32,
                    threshold: options.iou,
                    agnostic: is_class_agnostic.into(),
                    unused: 0,
                };
                let [mask_grid, scan_grid] = suppress.grids(images as u32);
                device.launch("nms_mask", mask_grid, &suppress).unwrap();
                device.launch("nms_scan", scan_grid, &suppress).unwrap();

                let sorted = sorted.read::<u32>();
                let kept = kept.read::<u32>();
                for (image, rows) in rows.chunks(anchors * (4 + classes)).enumerate() {
                    let mut expected = nms(rows, classes, &options);
                    // With fewer candidates than the CPU looks at, the last ones may be missing.
                    let count = kept_counts.read::<u32>()[image] as usize;
                    if limit < 128 {
                        assert!((5..=expected.len()).contains(&count));
                        expected.truncate(count);
                    }
                    let found = &kept[image * options.detection_count_max..][..count];
                    let found: Vec<_> = found
                        .iter()
                        .map(|&row| {
                            let at = 4 * (image * limit + row as usize);
                            (f32::from_bits(sorted[at]), sorted[at + 1], sorted[at + 2])
                        })
                        .collect();
                    let expected: Vec<_> = expected
                        .iter()
                        .map(|detection| (detection.score, detection.class, detection.index))
                        .collect();
                    assert_eq!(found, expected, "image {image}");
                }
            }
        }
    });
}

/// A box with its class.
type Classed = ([f32; 4], u32);

fn area(corners: &[f32; 4]) -> f64 {
    f64::from(corners[2] - corners[0]) * f64::from(corners[3] - corners[1])
}

fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f64 {
    let side = |k: usize| f64::from(a[k + 2].min(b[k + 2]) - a[k].max(b[k])).max(0.0);
    let shared = side(0) * side(1);
    shared / (area(a) + area(b) - shared + 1e-7)
}

fn is_of_size(size: usize, area: f64) -> bool {
    match size {
        0 => true,
        1 => area <= 1024.0,
        2 => (1024.0..=9216.0).contains(&area),
        _ => area >= 9216.0,
    }
}

/// Returns hits and what is ignored, sixteen bits a range of sizes, by the rule in words.
fn verdicts(detections: &[Classed], labels: &[Classed]) -> Vec<[u64; 2]> {
    let mut result = vec![[0u64; 2]; detections.len()];
    for size in 0..4 {
        for (bit, &threshold) in IOU_THRESHOLDS.iter().enumerate() {
            let mut taken = vec![false; labels.len()];
            for ((corners, class), verdict) in detections.iter().zip(&mut result) {
                let best = |wanted: bool, taken: &[bool]| {
                    let mut best: Option<(usize, f64)> = None;
                    for (place, (label, label_class)) in labels.iter().enumerate() {
                        let shared = overlap(label, corners);
                        let fits = is_of_size(size, area(label)) == wanted;
                        let is_open = label_class == class && !taken[place] && fits;
                        if is_open && shared >= threshold && best.is_none_or(|(_, b)| shared > b) {
                            best = Some((place, shared));
                        }
                    }
                    best.map(|(place, _)| place)
                };
                let own = best(true, &taken);
                let place = own.or_else(|| best(false, &taken));
                if let Some(place) = place {
                    taken[place] = true;
                }
                let one = 1 << (16 * size + bit);
                if own.is_some() {
                    verdict[0] |= one;
                } else if place.is_some() || !is_of_size(size, area(corners)) {
                    verdict[1] |= one;
                }
            }
        }
    }
    result
}

#[test]
fn verdicts_are_those_of_the_rule() {
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let (images, most) = (3, 12);
        let verdicts_there = Vector::poisoned(device, 4 * images * most);
        for _ in 0..2 {
            let mut random = |count: usize, near: &[Classed]| -> Vec<Classed> {
                let one = |index: usize| {
                    let class = ((draw.next() + 1.0) * 1.0) as u32;
                    if let Some((corners, class)) = near.get(index % (near.len() + 3)) {
                        return (corners.map(|edge| edge + 2.0 * draw.next()), *class);
                    }
                    let [x, y] = [(); 2].map(|()| 50.0 + 50.0 * draw.next());
                    let side = 60.0 + 55.0 * draw.next();
                    ([x, y, x + side, y + side * 0.8], class)
                };
                (0..count).map(one).collect()
            };
            let mut labels = Vec::new();
            let mut detections = Vec::new();
            for (label_count, count) in [(9, 12), (0, 4), (40, 11)] {
                let own = random(label_count, &[]);
                detections.push(random(count, &own));
                labels.push(own);
            }
            let mut boxes = vec![0.0f32; 4 * images * most];
            let mut types = vec![0u32; images * most];
            let mut starts = vec![0u32];
            for (image, own) in detections.iter().enumerate() {
                for (index, (corners, class)) in own.iter().enumerate() {
                    boxes[4 * (image * most + index)..][..4].copy_from_slice(corners);
                    types[image * most + index] = *class;
                }
                starts.push(starts[image] + labels[image].len() as u32);
            }
            let counts: Vec<u32> = detections.iter().map(|own| own.len() as u32).collect();
            let all: Vec<Classed> = labels.concat();
            let label_boxes: Vec<f32> = all.iter().flat_map(|(corners, _)| *corners).collect();
            let label_types: Vec<u32> = all.iter().map(|&(_, class)| class).collect();
            let [boxes, label_boxes] = [&boxes, &label_boxes].map(|v| Vector::of(device, v));
            let grid = ApMatch::grid(&starts);
            let [types, counts, label_types, starts] =
                [&types, &counts, &label_types, &starts].map(|v| Vector::of(device, v));
            let parameters = ApMatch {
                boxes: boxes.address(),
                types: types.address(),
                counts: counts.address(),
                label_boxes: label_boxes.address(),
                label_types: label_types.address(),
                label_starts: starts.address(),
                verdicts: verdicts_there.address(),
                detections_max: most as u32,
                unused: 0,
            };
            device.launch("ap_match", grid, &parameters).unwrap();
            let found = verdicts_there.read::<u32>();
            let mut hits = 0;
            for (image, own) in detections.iter().enumerate() {
                let expected = verdicts(own, &labels[image]);
                for (index, expected) in expected.iter().enumerate() {
                    let words = &found[4 * (image * most + index)..][..4];
                    let pair = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
                    assert_eq!([pair(0), pair(2)], *expected, "image {image}, {index}");
                    hits += expected[0].count_ones();
                }
            }
            assert!(hits > 50, "{hits}");
        }
    });
}

#[test]
fn a_picture_fills_its_frame_as_on_the_cpu() {
    each_way(|device, seed| {
        for (source, frame, enlarge) in [
            ((33, 20), (48, 64), true),
            ((70, 50), (40, 36), false),
            ((5, 1), (32, 32), true),
        ] {
            let draw = &mut Draw::new(seed);
            let fit = Letterbox::fit(source, frame, enlarge);
            let target = Vector::poisoned(device, frame.0 * frame.1);
            let taps = taps(&fit).map(|values| Vector::of(device, &values));
            for _ in 0..2 {
                let pixels: Vec<u8> = (0..source.0 * source.1 * 3)
                    .map(|_| (128.0 + 127.0 * draw.next()) as u8)
                    .collect();
                let there = Vector::of(device, &pixels);
                let addresses = taps.each_ref().map(Vector::address);
                let parameters =
                    LetterboxIn::new(&fit, there.address(), addresses, target.address());
                device
                    .launch("letterbox_in", parameters.grid(), &parameters)
                    .unwrap();
                let mut expected = vec![0u8; frame.0 * frame.1 * 3];
                fit.apply(&Picture::new(source.0, source.1, pixels), &mut expected);
                let found: Vec<u8> = target
                    .read::<u32>()
                    .iter()
                    .flat_map(|pixel| pixel.to_le_bytes()[..3].to_vec())
                    .collect();
                assert_eq!(found, expected);
            }
        }
    });
}

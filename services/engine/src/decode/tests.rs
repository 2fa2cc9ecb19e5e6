//! Rows computed by hand.

use super::*;

fn decoder(name: &str, class_count: usize) -> Decoder {
    Decoder::new(&ModelSpec::parse(name, class_count).unwrap())
}

fn threads() -> Threads {
    Threads::new(2).unwrap()
}

#[test]
fn a_certain_bin_is_the_distance() {
    let mut boxes = vec![0.0; 2 * 3 * 64];
    let scores = vec![0.0; 2 * 3 * 16];
    // Image 1, cell 2: left 1, top 2, right 3, bottom 4 cells.
    for (side, distance) in [1, 2, 3, 4].into_iter().enumerate() {
        boxes[(3 + 2) * 64 + side * 16 + distance] = 60.0;
    }
    let head = HeadLevel {
        stride: 8,
        height: 1,
        width: 3,
        boxes: &boxes,
        box_stride: 64,
        scores: &scores,
        score_stride: 16,
        ..HeadLevel::default()
    };
    let mut output = vec![f32::NAN; 2 * 3 * 7];
    decoder("yolo11n", 3).anchors(&threads(), &[head], &mut output);
    let row = &output[(3 + 2) * 7..];
    assert_eq!(
        row,
        [(2.5 + 1.0) * 8.0, 1.5 * 8.0, 32.0, 48.0, 0.5, 0.5, 0.5]
    );
    // Equal bins have their middle as expectation.
    assert_eq!(output[2], 15.0 * 8.0);
}

/// A level of two cells with boxes of distances 1, 2, 3, 4 in the second.
fn level<'a>(boxes: &'a [f32], scores: &'a [f32], extra: &'a [f32]) -> HeadLevel<'a> {
    HeadLevel {
        stride: 16,
        height: 1,
        width: 2,
        boxes,
        box_stride: 16,
        scores,
        score_stride: 16,
        extra,
        extra_stride: 16,
        ..HeadLevel::default()
    }
}

fn second_cell(values: &[f32]) -> Vec<f32> {
    let mut cells = vec![0.0; 32];
    cells[16..16 + values.len()].copy_from_slice(values);
    cells
}

fn assert_near(row: &[f32], expected: &[f32]) {
    assert_eq!(row.len(), expected.len());
    for (value, expected) in row.iter().zip(expected) {
        assert!((value - expected).abs() < 1e-4, "{row:?}");
    }
}

#[test]
fn distances_without_bins_are_taken_as_they_are_and_turned_by_the_angle() {
    let boxes = second_cell(&[1.0, 2.0, 3.0, 4.0]);
    let angle = std::f32::consts::FRAC_PI_2;
    let (scores, extra) = (second_cell(&[0.0]), second_cell(&[angle]));
    let mut output = vec![f32::NAN; 2 * 6];
    let head = level(&boxes, &scores, &extra);
    decoder("yolo26n-obb", 1).anchors(&threads(), &[head], &mut output);
    // The centre lies 1 right and 1 down of the cell's in the box's frame: 1 down and 1 left in the picture's.
    let expected = [0.5 * 16.0, 1.5 * 16.0, 64.0, 96.0, 0.5, angle];
    assert_near(&output[6..], &expected);
}

#[test]
fn angles_are_squeezed_where_the_family_says_so() {
    let quarter = std::f32::consts::FRAC_PI_4;
    assert_near(&[squeezed_angle(0.0)], &[quarter]);
    assert_near(&[squeezed_angle(-60.0)], &[-quarter]);
    assert_near(&[squeezed_angle(60.0)], &[3.0 * quarter]);
    let boxes = vec![0.0; 2 * 64];
    let cells = second_cell(&[0.0]);
    let head = HeadLevel {
        box_stride: 64,
        ..level(&boxes, &cells, &cells)
    };
    let mut output = vec![f32::NAN; 2 * 6];
    decoder("yolo11n-obb", 1).anchors(&threads(), &[head], &mut output);
    assert_near(&output[10..], &[0.5, quarter]);
}

#[test]
fn keypoints_are_offsets_of_the_cell() {
    let shape = KeypointShape { count: 1, dims: 3 };
    let boxes = second_cell(&[1.0, 2.0, 3.0, 4.0]);
    let (scores, extra) = (second_cell(&[0.0]), second_cell(&[0.25, -1.0, 0.0]));
    let spec = ModelSpec::parse("yolo26n-pose", 1).unwrap();
    let spec = spec.with_keypoints(shape).unwrap();
    let mut output = vec![f32::NAN; 2 * 8];
    let head = level(&boxes, &scores, &extra);
    Decoder::new(&spec).anchors(&threads(), &[head], &mut output);
    assert_near(&output[13..], &[1.75 * 16.0, -0.5 * 16.0, 0.5]);

    let boxes = vec![0.0; 2 * 64];
    let head = HeadLevel {
        box_stride: 64,
        ..level(&boxes, &scores, &extra)
    };
    let spec = ModelSpec::parse("yolov8n-pose", 1).unwrap();
    let spec = spec.with_keypoints(shape).unwrap();
    Decoder::new(&spec).anchors(&threads(), &[head], &mut output);
    assert_near(&output[13..], &[1.5 * 16.0, -2.0 * 16.0, 0.5]);
}

#[test]
fn the_surest_pairs_are_selected_in_order() {
    let rows = [
        [10.0, 20.0, 4.0, 8.0, 0.1, 0.7],
        [30.0, 40.0, 2.0, 2.0, 0.6, 0.5],
        [50.0, 60.0, 2.0, 2.0, 0.2, 0.3],
    ];
    let mut output = vec![f32::NAN; 2 * 6];
    decoder("yolo26n", 2).select(&threads(), 1, 2, rows.as_flattened(), &mut output);
    let expected = [
        [8.0, 16.0, 12.0, 24.0, 0.7, 1.0],
        [29.0, 39.0, 31.0, 41.0, 0.6, 0.0],
    ];
    assert_eq!(output, expected.as_flattened());
}

#[test]
fn probabilities_of_classes_add_up_to_one() {
    let mut logits = vec![0.0; 2 * 16];
    logits[16] = 1000.0;
    let mut output = vec![f32::NAN; 2 * 3];
    let view = View::dense(crate::ops::view::as_cells(&mut logits), 16);
    softmax(2, 3, view, &mut output);
    assert_near(&output, &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 1.0, 0.0, 0.0]);
}

//! One label file: rows of class and box, of class and polygon, or of class, box and keypoints, all normalised to the
//! picture. A rotated box is a polygon of its four corners.

use super::yolo::Strictness;
use crate::models::KeypointShape;

/// The largest label file that is read.
pub const LABEL_BYTES_MAX: u64 = 64 << 20;
/// Numbers may leave 0..1 by this much, as rounding does.
const TOLERANCE: f32 = 0.01;

/// A named point of an object: x and y as fractions of the picture, and whether it is labelled: 0 no, 1 yes but
/// hidden, 2 yes.
pub type Keypoint = [f32; 3];

/// One object of a picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Label {
    pub class: u32,
    /// Centre x, centre y, width, height as fractions of the picture.
    pub bounds: [f32; 4],
    /// Points as fractions of the picture; empty when only the box is known. The corners of a rotated box.
    pub polygon: Vec<[f32; 2]>,
    /// As many as the data set says; empty in one without.
    pub keypoints: Vec<Keypoint>,
}

impl Label {
    /// Makes a label of a box alone.
    pub fn boxed(class: u32, bounds: [f32; 4]) -> Self {
        Self {
            class,
            bounds,
            ..Self::default()
        }
    }

    /// Makes the label of a picture that shows one class as a whole.
    pub fn whole(class: u32) -> Self {
        Self::boxed(class, [0.5, 0.5, 1.0, 1.0])
    }
}

/// What the rows of a data set's label files hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowFormat {
    /// Bounds the class numbers.
    pub class_count: usize,
    /// Of every row; none in a data set of boxes or polygons.
    pub keypoints: Option<KeypointShape>,
}

/// Everything one label file said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Labels {
    pub labels: Vec<Label>,
    /// Rows that said the same as an earlier one, left out.
    pub duplicates: usize,
    /// Boxes without area, left out: nothing can match them.
    pub empty_boxes: usize,
    /// Rows that break a rule, left out.
    pub left_out: Vec<Refusal>,
}

/// Why a label file, or a row of it, can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Counted from 1; 0 when it is about the whole file.
    pub line: usize,
    pub rule: String,
}

/// Parses a label file. A row that breaks a rule refuses the file, or is left out, as `strictness` says.
pub fn parse(bytes: &[u8], format: RowFormat, strictness: Strictness) -> Result<Labels, Refusal> {
    let whole_file = |rule: String| Refusal { line: 0, rule };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| whole_file(format!("not UTF-8 text at byte {}", error.valid_up_to())))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut result = Labels::default();
    let mut refuse = |refusal: Refusal| match strictness {
        Strictness::Refuse => Err(refusal),
        Strictness::LeaveOut => {
            result.left_out.push(refusal);
            Ok(())
        }
    };
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        match parse_row(line) {
            Ok(row) if row.is_empty() => {}
            Ok(row) => rows.push((line_number, row)),
            Err(rule) => refuse(Refusal {
                line: line_number,
                rule,
            })?,
        }
    }
    // One long row makes the file a polygon file; a strict reader takes no box in it.
    let has_polygons =
        format.keypoints.is_none() && rows.iter().any(|(_, row)| row.len() > BOX_COLUMNS + 1);
    let mut labels = Vec::with_capacity(rows.len());
    for (line, row) in rows {
        let is_box = row.len() == BOX_COLUMNS && strictness == Strictness::LeaveOut;
        let label = match format.keypoints {
            Some(shape) => keypoint_label(&row, format.class_count, shape),
            None if has_polygons && !is_box => polygon_label(&row, format.class_count),
            None => box_label(&row, format.class_count),
        };
        match label {
            Ok(label) => labels.push(label),
            Err(rule) => refuse(Refusal { line, rule })?,
        }
    }
    result.left_out.sort_by_key(|row| row.line);
    let before = labels.len();
    labels.retain(|label| label.bounds[2] > 0.0 && label.bounds[3] > 0.0);
    result.empty_boxes = before - labels.len();
    result.duplicates = remove_duplicates(&mut labels);
    result.labels = labels;
    Ok(result)
}

const BOX_COLUMNS: usize = 5;

fn parse_row(line: &str) -> Result<Vec<f32>, String> {
    line.split_ascii_whitespace()
        .map(|word| match word.parse::<f32>() {
            Ok(value) if value.is_finite() => Ok(value),
            Ok(_) => Err(format!("'{word}' is not a finite number")),
            Err(_) => Err(format!("'{word}' is not a number")),
        })
        .collect()
}

fn box_label(row: &[f32], class_count: usize) -> Result<Label, String> {
    let &[class, x, y, width, height] = row else {
        return Err(format!(
            "a row has {BOX_COLUMNS} columns (class, centre x, centre y, width, height), this one has {}",
            row.len()
        ));
    };
    let class = class_of(class, class_count)?;
    check_coordinates(&row[1..])?;
    if width < 0.0 || height < 0.0 {
        return Err(format!(
            "width and height may not be negative: {width} × {height}"
        ));
    }
    Ok(Label::boxed(class, [x, y, width, height]))
}

/// A row of class, box and `count` points of `dims` numbers. Without a third number a point is labelled unless it
/// lies outside.
fn keypoint_label(row: &[f32], class_count: usize, shape: KeypointShape) -> Result<Label, String> {
    let columns = BOX_COLUMNS + shape.values();
    let KeypointShape { count, dims } = shape;
    if row.len() != columns {
        return Err(format!(
            "a row has {columns} columns (class, box and {count} keypoints of {dims} numbers), this one has {}",
            row.len()
        ));
    }
    let mut label = box_label(&row[..BOX_COLUMNS], class_count)?;
    for point in row[BOX_COLUMNS..].chunks_exact(dims) {
        check_coordinates(&point[..2])?;
        let visibility = match point.get(2) {
            None => f32::from(u8::from(point[0] >= 0.0 && point[1] >= 0.0)),
            Some(&visibility) if [0.0, 1.0, 2.0].contains(&visibility) => visibility,
            Some(visibility) => {
                return Err(format!(
                    "the visibility of a keypoint is 0, 1 or 2, not {visibility}"
                ));
            }
        };
        label.keypoints.push([point[0], point[1], visibility]);
    }
    Ok(label)
}

fn polygon_label(row: &[f32], class_count: usize) -> Result<Label, String> {
    if row.len() == BOX_COLUMNS {
        return Err("a box row in a file of polygons".into());
    }
    let (points, rest) = row[1..].as_chunks::<2>();
    if points.len() < 3 || !rest.is_empty() {
        return Err(format!(
            "a polygon row has a class and at least three pairs of x and y, this one has {} columns",
            row.len()
        ));
    }
    let class = class_of(row[0], class_count)?;
    check_coordinates(&row[1..])?;
    let low = |axis: usize| {
        points
            .iter()
            .map(|point| point[axis])
            .fold(f32::MAX, f32::min)
    };
    let high = |axis: usize| {
        points
            .iter()
            .map(|point| point[axis])
            .fold(f32::MIN, f32::max)
    };
    let ([left, top], [right, bottom]) = ([low(0), low(1)], [high(0), high(1)]);
    Ok(Label {
        class,
        bounds: [
            (left + right) / 2.0,
            (top + bottom) / 2.0,
            right - left,
            bottom - top,
        ],
        polygon: points.to_vec(),
        keypoints: Vec::new(),
    })
}

fn class_of(value: f32, class_count: usize) -> Result<u32, String> {
    if value.fract() != 0.0 || value < 0.0 {
        return Err(format!("a class is a whole number from 0, not {value}"));
    }
    if value >= class_count as f32 {
        return Err(format!(
            "class {value} is not in the data set, which has {class_count} classes (0 to {})",
            class_count - 1
        ));
    }
    Ok(value as u32)
}

fn check_coordinates(values: &[f32]) -> Result<(), String> {
    for &value in values {
        if value > 1.0 + TOLERANCE {
            return Err(format!(
                "coordinates are fractions of the picture, not pixels: {value} is above 1"
            ));
        }
        if value < -TOLERANCE {
            return Err(format!("coordinates may not be negative: {value}"));
        }
    }
    Ok(())
}

fn remove_duplicates(labels: &mut Vec<Label>) -> usize {
    let before = labels.len();
    let mut seen = std::collections::HashSet::with_capacity(before);
    labels.retain(|label| {
        let bounds = label.bounds.map(f32::to_bits);
        let points = label.polygon.iter().flatten();
        let points: Vec<u32> = points
            .chain(label.keypoints.iter().flatten())
            .map(|value| value.to_bits())
            .collect();
        seen.insert((label.class, bounds, points))
    });
    before - labels.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOXES: RowFormat = RowFormat {
        class_count: 2,
        keypoints: None,
    };
    const THREE_POINTS: RowFormat = RowFormat {
        class_count: 2,
        keypoints: Some(KeypointShape { count: 3, dims: 3 }),
    };

    fn strict(text: &[u8]) -> Result<Labels, Refusal> {
        parse(text, BOXES, Strictness::Refuse)
    }

    fn refusal(text: &str) -> (usize, String) {
        let refusal = strict(text.as_bytes()).unwrap_err();
        (refusal.line, refusal.rule)
    }

    #[test]
    fn boxes_are_read_with_windows_line_ends_tabs_exponents_and_a_byte_order_mark() {
        let text = "\u{feff}0 0.5 0.5 0.25 1e-1\r\n\n\t1.0\t0.5 0.5  0.1 0.1  ";
        let labels = strict(text.as_bytes()).unwrap();
        assert_eq!(
            labels.labels,
            [
                Label::boxed(0, [0.5, 0.5, 0.25, 0.1]),
                Label::boxed(1, [0.5, 0.5, 0.1, 0.1])
            ]
        );
        assert_eq!(strict(b"").unwrap(), Labels::default());
    }

    #[test]
    fn a_polygon_gives_its_bounds_as_the_box() {
        let labels = strict(b"1 0.1 0.2 0.5 0.2 0.5 0.8 0.1 0.8").unwrap().labels;
        let [x, y, width, height] = labels[0].bounds;
        for (seen, wanted) in [(x, 0.3), (y, 0.5), (width, 0.4), (height, 0.6)] {
            assert!((seen - wanted).abs() < 1e-6);
        }
        assert_eq!(labels[0].polygon.len(), 4);
    }

    #[test]
    fn rows_said_twice_and_boxes_without_area_are_left_out_and_counted() {
        let text = b"0 .5 .5 .1 .1\n0 .5 .5 .1 .1\n1 .5 .5 .1 .1\n1 .5 .5 0 .1\n";
        let labels = strict(text).unwrap();
        assert_eq!(
            (labels.labels.len(), labels.duplicates, labels.empty_boxes),
            (2, 1, 1)
        );
    }

    #[test]
    fn each_broken_rule_names_its_line() {
        for (text, line, rule) in [
            ("0 .5 .5 .1 .1\n0 .5 .5 .1", 2, "5 columns"),
            ("0 .5 .5 .1 .1 .9", 1, "this one has 6"),
            ("2 .5 .5 .1 .1", 1, "class 2 is not in the data set"),
            ("-1 .5 .5 .1 .1", 1, "whole number"),
            ("0.5 .5 .5 .1 .1", 1, "whole number"),
            ("\n0 60 .5 .1 .1", 2, "not pixels"),
            ("0 -0.2 .5 .1 .1", 1, "negative: -0.2"),
            ("0 .5 .5 -0.005 .1", 1, "width and height"),
            ("0 nan .5 .1 .1", 1, "not a finite number"),
            ("# comment", 1, "'#' is not a number"),
            (
                "0 .1 .1 .2 .2 .3 .3\n0 .5 .5 .1 .1",
                2,
                "box row in a file of polygons",
            ),
            ("0 .1 .1 .2 .2 .3 .3 .4", 1, "8 columns"),
        ] {
            let (seen_line, seen_rule) = refusal(text);
            assert_eq!(seen_line, line, "{text}: {seen_rule}");
            assert!(seen_rule.contains(rule), "{text}: {seen_rule}");
        }
        let refusal = strict(&[b'0', b' ', 0x80]).unwrap_err();
        assert_eq!(
            (refusal.line, refusal.rule.as_str()),
            (0, "not UTF-8 text at byte 2")
        );
    }

    #[test]
    fn a_lenient_reader_keeps_the_good_rows_and_says_which_it_left_out() {
        let text = b"0 .5 .5 .2 .2\n7 .5 .5 .2 .2\noops\n1 .5 .5 .2 .2\n0 .5 1.4 .2 .2\n";
        let labels = parse(text, BOXES, Strictness::LeaveOut).unwrap();
        assert_eq!(labels.labels.len(), 2);
        let lines: Vec<_> = labels.left_out.iter().map(|row| row.line).collect();
        assert_eq!(lines, [2, 3, 5]);
        let mixed = b"0 .5 .5 .4 .4\n1 .1 .1 .4 .1 .4 .4\n0 .1 .1 .4 .1 .4 .4 .2\n";
        let labels = parse(mixed, BOXES, Strictness::LeaveOut).unwrap();
        assert_eq!(labels.labels[0], Label::boxed(0, [0.5, 0.5, 0.4, 0.4]));
        assert_eq!(labels.labels[1].polygon.len(), 3);
        assert_eq!(labels.left_out[0].line, 3);
    }

    #[test]
    fn keypoints_follow_the_box_and_their_number_is_checked() {
        let row = "0 .5 .5 .2 .2 .1 .2 2 .3 .4 1 0 0 0";
        let labels = parse(row.as_bytes(), THREE_POINTS, Strictness::Refuse).unwrap();
        assert_eq!(labels.labels[0].bounds, [0.5, 0.5, 0.2, 0.2]);
        let points = &labels.labels[0].keypoints;
        assert_eq!(points[..], [[0.1, 0.2, 2.0], [0.3, 0.4, 1.0], [0.0; 3]]);
        for (row, rule) in [
            ("0 .5 .5 .2 .2 .1 .2 2 .3 .4 1", "14 columns"),
            ("0 .5 .5 .2 .2 .1 .2 2 .3 .4 1 0 0 3", "visibility"),
            ("0 .5 .5 .2 .2 .1 .2 2 .3 40 1 0 0 0", "not pixels"),
        ] {
            let refusal = parse(row.as_bytes(), THREE_POINTS, Strictness::Refuse).unwrap_err();
            assert!(
                refusal.line == 1 && refusal.rule.contains(rule),
                "{refusal:?}"
            );
        }
        let pairs = RowFormat {
            keypoints: Some(KeypointShape { count: 2, dims: 2 }),
            ..THREE_POINTS
        };
        let row = b"0 .5 .5 .2 .2 .1 .2 -.005 .4";
        let labels = parse(row, pairs, Strictness::Refuse).unwrap();
        let points = &labels.labels[0].keypoints;
        assert_eq!(points[..], [[0.1, 0.2, 1.0], [-0.005, 0.4, 0.0]]);
    }
}

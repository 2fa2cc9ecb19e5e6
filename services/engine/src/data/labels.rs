//! One label file: rows of class and box, or class and polygon, normalised to the picture.

/// The largest label file that is read.
pub const LABEL_BYTES_MAX: u64 = 64 << 20;
/// Numbers may leave 0..1 by this much, as rounding does.
const TOLERANCE: f32 = 0.01;

/// One object of a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Label {
    pub class: u32,
    /// Centre x, centre y, width, height as fractions of the picture.
    pub bounds: [f32; 4],
    /// Points as fractions of the picture; empty when only the box is known.
    pub polygon: Vec<[f32; 2]>,
}

impl Label {
    /// Makes a label without a polygon.
    pub fn boxed(class: u32, bounds: [f32; 4]) -> Self {
        Self {
            class,
            bounds,
            polygon: Vec::new(),
        }
    }
}

/// Everything one label file said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Labels {
    pub labels: Vec<Label>,
    /// Rows that said the same as an earlier one, left out.
    pub duplicates: usize,
    /// Boxes without area, left out: nothing can match them.
    pub empty_boxes: usize,
}

/// Why a label file can't be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Counted from 1; 0 when it is about the whole file.
    pub line: usize,
    pub rule: String,
}

/// Parses a label file; `class_count` bounds the class numbers.
pub fn parse(bytes: &[u8], class_count: usize) -> Result<Labels, Refusal> {
    let whole_file = |rule: String| Refusal { line: 0, rule };
    let text = std::str::from_utf8(bytes)
        .map_err(|error| whole_file(format!("not UTF-8 text at byte {}", error.valid_up_to())))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let row = parse_row(line).map_err(|rule| Refusal {
            line: line_number,
            rule,
        })?;
        if !row.is_empty() {
            rows.push((line_number, row));
        }
    }
    // One long row makes the file a polygon file; a box row in it would be read as half a polygon.
    let polygons = rows.iter().any(|(_, row)| row.len() > BOX_COLUMNS + 1);
    let mut result = Labels::default();
    for (line, row) in rows {
        let label = if polygons {
            polygon_label(&row, class_count)
        } else {
            box_label(&row, class_count)
        };
        let label = label.map_err(|rule| Refusal { line, rule })?;
        if label.bounds[2] <= 0.0 || label.bounds[3] <= 0.0 {
            result.empty_boxes += 1;
        } else {
            result.labels.push(label);
        }
    }
    result.duplicates = remove_duplicates(&mut result.labels);
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
        let points: Vec<[u32; 2]> = label
            .polygon
            .iter()
            .map(|point| point.map(f32::to_bits))
            .collect();
        seen.insert((label.class, bounds, points))
    });
    before - labels.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> (usize, String) {
        let refusal = parse(text.as_bytes(), 2).unwrap_err();
        (refusal.line, refusal.rule)
    }

    #[test]
    fn boxes_are_read_with_windows_line_ends_tabs_exponents_and_a_byte_order_mark() {
        let text = "\u{feff}0 0.5 0.5 0.25 1e-1\r\n\n\t1.0\t0.5 0.5  0.1 0.1  ";
        let labels = parse(text.as_bytes(), 2).unwrap();
        assert_eq!(
            labels.labels,
            [
                Label::boxed(0, [0.5, 0.5, 0.25, 0.1]),
                Label::boxed(1, [0.5, 0.5, 0.1, 0.1])
            ]
        );
        assert_eq!(parse(b"", 2).unwrap(), Labels::default());
    }

    #[test]
    fn a_polygon_gives_its_bounds_as_the_box() {
        let labels = parse(b"1 0.1 0.2 0.5 0.2 0.5 0.8 0.1 0.8", 2)
            .unwrap()
            .labels;
        let [x, y, width, height] = labels[0].bounds;
        for (seen, wanted) in [(x, 0.3), (y, 0.5), (width, 0.4), (height, 0.6)] {
            assert!((seen - wanted).abs() < 1e-6);
        }
        assert_eq!(labels[0].polygon.len(), 4);
    }

    #[test]
    fn rows_said_twice_and_boxes_without_area_are_left_out_and_counted() {
        let text = b"0 .5 .5 .1 .1\n0 .5 .5 .1 .1\n1 .5 .5 .1 .1\n1 .5 .5 0 .1\n";
        let labels = parse(text, 2).unwrap();
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
        let refusal = parse(&[b'0', b' ', 0x80], 2).unwrap_err();
        assert_eq!(
            (refusal.line, refusal.rule.as_str()),
            (0, "not UTF-8 text at byte 2")
        );
    }
}

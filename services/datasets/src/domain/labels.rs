//! Rows of a YOLO label file: `class center_x center_y width height`, fractions of the image's size.

use std::collections::HashSet;

use super::Findings;

/// How far outside the picture a coordinate may lie, to forgive rounding.
const SLACK: f64 = 0.01;
/// Boxes that one image may have.
pub const ANNOTATIONS_MAX: usize = 10_000;
const COLUMNS: usize = 5;

/// One box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Label {
    pub class_id: u32,
    pub center_x: f64,
    pub center_y: f64,
    pub width: f64,
    pub height: f64,
}

/// Reads the rows of a label file. Faulty rows are left out and become errors with their line.
pub fn parse(text: &str, file: &str, class_count: usize, findings: &mut Findings) -> Vec<Label> {
    let mut labels = Vec::new();
    let mut seen = HashSet::new();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, row) in text.lines().enumerate() {
        let line = u32::try_from(index + 1).unwrap_or(u32::MAX);
        if row.trim().is_empty() {
            continue;
        }
        match parse_row(row, class_count) {
            Ok(label) if label.width == 0.0 || label.height == 0.0 => {
                findings.note("BOX_EMPTY", file, line, "a box without area is left out");
            }
            Ok(label) => {
                let key = [label.center_x, label.center_y, label.width, label.height];
                if seen.insert((label.class_id, key.map(f64::to_bits))) {
                    labels.push(label);
                } else {
                    findings.note(
                        "LABEL_ROW_TWICE",
                        file,
                        line,
                        "the same row again is left out",
                    );
                }
            }
            Err((reason, message)) => findings.error(reason, file, line, message),
        }
    }
    if labels.len() > ANNOTATIONS_MAX {
        let message = format!(
            "{} boxes, at most {ANNOTATIONS_MAX} are taken",
            labels.len()
        );
        findings.error("TOO_MANY_ANNOTATIONS", file, 0, message);
        labels.truncate(ANNOTATIONS_MAX);
    }
    labels
}

type Refusal = (&'static str, String);

fn parse_row(row: &str, class_count: usize) -> Result<Label, Refusal> {
    let malformed = |message: String| ("LABEL_ROW_MALFORMED", message);
    let columns: Vec<&str> = row.split_whitespace().collect();
    if columns.len() != COLUMNS {
        let message = format!(
            "{} columns, a box has {COLUMNS}: class, center x, center y, width, height",
            columns.len()
        );
        return Err(malformed(message));
    }
    let mut numbers = [0.0; COLUMNS];
    for (number, column) in numbers.iter_mut().zip(&columns) {
        *number = column
            .parse()
            .ok()
            .filter(|number: &f64| number.is_finite())
            .ok_or_else(|| malformed(format!("'{column}' is not a number")))?;
    }
    let [class, center_x, center_y, width, height] = numbers;
    // Some tools write the class as 3.0.
    if class.fract() != 0.0 || class < 0.0 {
        return Err(malformed(format!("'{}' is not a class id", columns[0])));
    }
    if class >= class_count as f64 {
        let message =
            format!("class id {class} is out of range: there are {class_count} classes, from 0");
        return Err(("CLASS_ID_OUT_OF_RANGE", message));
    }
    for (name, value) in [
        ("center x", center_x),
        ("center y", center_y),
        ("width", width),
        ("height", height),
    ] {
        let is_size = name == "width" || name == "height";
        let least = if is_size { 0.0 } else { -SLACK };
        if value < least || value > 1.0 + SLACK {
            let message =
                format!("{name} {value} is not a fraction of the picture's size, between 0 and 1");
            return Err(("COORDINATE_OUT_OF_RANGE", message));
        }
    }
    Ok(Label {
        class_id: class as u32,
        center_x,
        center_y,
        width,
        height,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<Label>, Findings) {
        let mut findings = Findings::default();
        let labels = parse(text, "labels/a.txt", 2, &mut findings);
        (labels, findings)
    }

    #[test]
    fn good_rows_are_read_whatever_their_spacing() {
        let (labels, findings) = read("\u{feff}0 0.5 0.5 0.2 0.2\r\n\n1.0\t.25  .25 0.1 1e-1\n");
        assert_eq!(findings.count(), 0);
        assert_eq!(labels.len(), 2);
        assert_eq!((labels[1].class_id, labels[1].height), (1, 0.1));
    }

    #[test]
    fn a_faulty_row_is_named_with_its_line_and_rule() {
        for (row, reason, words) in [
            ("0 0.5 0.5 0.2", "LABEL_ROW_MALFORMED", "4 columns"),
            (
                "cat 0.5 0.5 0.2 0.2",
                "LABEL_ROW_MALFORMED",
                "'cat' is not a number",
            ),
            (
                "0.5 0.5 0.5 0.2 0.2",
                "LABEL_ROW_MALFORMED",
                "'0.5' is not a class id",
            ),
            ("0 nan 0.5 0.2 0.2", "LABEL_ROW_MALFORMED", "'nan'"),
            ("2 0.5 0.5 0.2 0.2", "CLASS_ID_OUT_OF_RANGE", "class id 2"),
            (
                "0 1.4 0.5 0.2 0.2",
                "COORDINATE_OUT_OF_RANGE",
                "center x 1.4",
            ),
            (
                "0 0.5 0.5 -0.2 0.2",
                "COORDINATE_OUT_OF_RANGE",
                "width -0.2",
            ),
        ] {
            let (labels, findings) = read(&format!("0 0.5 0.5 0.2 0.2\n{row}\n"));
            let error = findings.first_error().unwrap();
            assert_eq!((error.reason.as_str(), error.line), (reason, 2), "{row}");
            assert!(error.message.contains(words), "{}", error.message);
            assert_eq!(error.file, "labels/a.txt");
            assert_eq!(labels.len(), 1);
        }
    }

    #[test]
    fn rows_twice_and_boxes_without_area_are_left_out_and_said() {
        let (labels, findings) = read("0 .5 .5 .2 .2\n0 .5 .5 .2 .2\n1 .5 .5 0 .2\n");
        assert_eq!(labels.len(), 1);
        let reasons: Vec<_> = findings
            .kept()
            .into_iter()
            .map(|finding| finding.reason)
            .collect();
        assert_eq!(reasons, ["LABEL_ROW_TWICE", "BOX_EMPTY"]);
        assert!(findings.first_error().is_none());
    }
}

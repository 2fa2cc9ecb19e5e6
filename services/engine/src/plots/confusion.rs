//! The confusion matrix: predicted classes down, true ones across, the background last.

use super::chart::name_room;
use super::svg::{Anchor, Area, FONT_SIZE, INK, Svg, fitted, shade};
use crate::metrics::ConfusionMatrix;

/// The matrix is about so large, however many classes there are.
const SIDE: f64 = 640.0;
const CELL_MIN: f64 = 8.0;
const CELL_MAX: f64 = 96.0;
const TITLE_SIZE: f64 = 15.0;
/// Cells below it hold no number, and names stand at some rows only.
const CELL_WITH_NUMBER: f64 = 26.0;
const BACKGROUND: &str = "background";

/// Returns the plot; normalised, each column is the share of what a true class was taken for.
pub fn confusion(matrix: &ConfusionMatrix, classes: &[String], is_normalised: bool) -> String {
    let rows: Vec<&[u64]> = matrix.rows().collect();
    let count = rows.len();
    let names: Vec<String> = (0..count)
        .map(|index| match classes.get(index) {
            Some(name) if index + 1 < count => name.clone(),
            _ if index + 1 == count => BACKGROUND.into(),
            _ => format!("class {index}"),
        })
        .collect();
    let cell = (SIDE / count as f64).clamp(CELL_MIN, CELL_MAX);
    let room = name_room(&names, 60.0, 180.0);
    let side = cell * count as f64;
    let (left, top) = (room + 34.0, 44.0);
    let mut svg = Svg::new((left + side + 24.0).max(320.0), top + side + room + 34.0);
    let title = if is_normalised {
        "Confusion matrix, normalised"
    } else {
        "Confusion matrix"
    };
    svg.text((left + side / 2.0, 24.0), Anchor::Middle, TITLE_SIZE, title);

    let sums: Vec<u64> = (0..count)
        .map(|column| rows.iter().map(|row| row[column]).sum())
        .collect();
    let most = rows
        .iter()
        .flat_map(|row| row.iter())
        .copied()
        .max()
        .unwrap_or(0);
    for (row, counts) in rows.iter().enumerate() {
        for (column, &value) in counts.iter().enumerate() {
            let whole = if is_normalised { sums[column] } else { most };
            let depth = value as f64 / whole.max(1) as f64;
            let area = Area {
                x: left + column as f64 * cell,
                y: top + row as f64 * cell,
                width: cell,
                height: cell,
            };
            svg.fill(area, &shade(depth));
            if cell >= CELL_WITH_NUMBER && value > 0 {
                let text = if is_normalised {
                    format!("{depth:.2}")
                } else {
                    value.to_string()
                };
                let ink = if depth > 0.5 { "#ffffff" } else { INK };
                let size = FONT_SIZE.min(cell / 2.6);
                let place = (area.x + cell / 2.0, area.y + cell / 2.0 + size * 0.35);
                svg.coloured(place, Anchor::Middle, size, ink, &text);
            }
        }
    }
    let whole = Area {
        x: left,
        y: top,
        width: side,
        height: side,
    };
    svg.frame(whole, INK, 1.0);
    // Names need a line's height each.
    let step = (FONT_SIZE / cell).ceil().max(1.0) as usize;
    for (index, name) in names.iter().enumerate().step_by(step) {
        let middle = (index as f64 + 0.5) * cell;
        let name = fitted(name, FONT_SIZE, room - 8.0);
        svg.text(
            (left - 6.0, top + middle + 4.0),
            Anchor::End,
            FONT_SIZE,
            &name,
        );
        svg.upright((left + middle + 4.0, top + side + 8.0), Anchor::End, &name);
    }
    svg.upright((16.0, top + side / 2.0), Anchor::Middle, "Predicted");
    let foot = top + side + room + 24.0;
    svg.text((left + side / 2.0, foot), Anchor::Middle, FONT_SIZE, "True");
    svg.finish()
}

//! What a data set's labels are like: how many of each class, where the boxes lie and how large they are.

use super::chart::{colour_of, ticks};
use super::svg::{Anchor, Area, FONT_SIZE, INK, Svg, fitted, shade};

const PANEL: f64 = 360.0;
const MARGIN: f64 = 48.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 96.0;
const TITLE_SIZE: f64 = 15.0;
/// Squares of a density along each side.
const SQUARES: usize = 40;
/// With more classes their names don't fit under the bars.
const NAMES_MAX: usize = 40;

/// Returns the plot of labels: each a class and its box (centre and size as fractions of the picture).
pub fn labels(boxes: &[(u32, [f32; 4])], classes: &[String]) -> String {
    let panel = |index: f64| Area {
        x: MARGIN + index * (PANEL + MARGIN),
        y: TOP,
        width: PANEL,
        height: PANEL,
    };
    let mut svg = Svg::new(3.0 * (PANEL + MARGIN) + MARGIN, TOP + PANEL + BOTTOM);
    counts(&mut svg, panel(0.0), boxes, classes);
    let density_of = |first: usize| -> Vec<[f32; 2]> {
        boxes
            .iter()
            .map(|(_, bounds)| [bounds[first], bounds[first + 1]])
            .collect()
    };
    density(&mut svg, panel(1.0), &density_of(0), ["Centres", "x", "y"]);
    density(
        &mut svg,
        panel(2.0),
        &density_of(2),
        ["Sizes", "width", "height"],
    );
    svg.finish()
}

fn counts(svg: &mut Svg, area: Area, boxes: &[(u32, [f32; 4])], classes: &[String]) {
    let mut counts = vec![0u64; classes.len()];
    for &(class, _) in boxes {
        if let Some(count) = counts.get_mut(class as usize) {
            *count += 1;
        }
    }
    title(svg, area, "Labels of each class");
    let most = counts.iter().copied().max().unwrap_or(0).max(1) as f64;
    let step = area.width / classes.len().max(1) as f64;
    let foot = area.y + area.height;
    for (value, text) in ticks([0.0, most]) {
        let y = foot - value / most * area.height;
        svg.text((area.x - 4.0, y + 4.0), Anchor::End, FONT_SIZE, &text);
    }
    for (index, &count) in counts.iter().enumerate() {
        let height = count as f64 / most * area.height;
        let bar = Area {
            x: area.x + (index as f64 + 0.1) * step,
            y: foot - height,
            width: step * 0.8,
            height,
        };
        svg.fill(bar, &colour_of(index));
        if classes.len() <= NAMES_MAX {
            let name = fitted(&classes[index], FONT_SIZE, BOTTOM - 16.0);
            svg.upright((bar.x + step * 0.4 + 4.0, foot + 8.0), Anchor::End, &name);
        }
    }
    svg.frame(area, INK, 1.0);
}

/// Draws how many points fall into each square of the unit square, the top left first.
fn density(svg: &mut Svg, area: Area, points: &[[f32; 2]], [name, x_name, y_name]: [&str; 3]) {
    let square = |value: f32| ((value.clamp(0.0, 1.0) * SQUARES as f32) as usize).min(SQUARES - 1);
    let mut counts = vec![[0u64; SQUARES]; SQUARES];
    for &[x, y] in points {
        counts[square(y)][square(x)] += 1;
    }
    title(svg, area, name);
    let most = counts.iter().flatten().copied().max().unwrap_or(0).max(1) as f64;
    let side = area.width / SQUARES as f64;
    for (row, counts) in counts.iter().enumerate() {
        for (column, &count) in counts.iter().enumerate().filter(|&(_, &count)| count > 0) {
            let place = Area {
                x: area.x + column as f64 * side,
                y: area.y + row as f64 * side,
                width: side,
                height: side,
            };
            // Few points in a square must still be seen.
            svg.fill(place, &shade(0.15 + 0.85 * (count as f64 / most).sqrt()));
        }
    }
    let foot = area.y + area.height;
    for (value, text) in ticks([0.0, 1.0]) {
        svg.text(
            (area.x + value * area.width, foot + 16.0),
            Anchor::Middle,
            FONT_SIZE,
            &text,
        );
        svg.text(
            (area.x - 4.0, area.y + value * area.height + 4.0),
            Anchor::End,
            FONT_SIZE,
            &text,
        );
    }
    svg.text(
        (area.x + area.width / 2.0, foot + 34.0),
        Anchor::Middle,
        FONT_SIZE,
        x_name,
    );
    svg.upright(
        (area.x - 30.0, area.y + area.height / 2.0),
        Anchor::Middle,
        y_name,
    );
    svg.frame(area, INK, 1.0);
}

fn title(svg: &mut Svg, area: Area, text: &str) {
    let place = (area.x + area.width / 2.0, area.y - 12.0);
    svg.text(place, Anchor::Middle, TITLE_SIZE, text);
}

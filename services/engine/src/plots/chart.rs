//! Lines over two axes, with ticks, names and a legend.

use super::svg::{Anchor, Area, FAINT, FONT_SIZE, INK, Svg, colour, fitted, width_of};
use crate::predict::draw::COLOURS;

const TITLE_SIZE: f64 = 15.0;
/// Room round the axes: left, top, right, bottom.
const MARGINS: [f64; 4] = [58.0, 34.0, 16.0, 44.0];
const LEGEND_WIDTH: f64 = 220.0;
const LEGEND_STEP: f64 = 18.0;
const SAMPLE_LENGTH: f64 = 22.0;
/// About so many ticks on an axis.
const TICKS: f64 = 5.0;

/// One line and its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    pub colour: String,
    pub width: f64,
}

/// A chart to be drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    pub title: String,
    pub x_name: String,
    pub y_name: String,
    pub x: [f64; 2],
    pub y: [f64; 2],
    pub series: Vec<Series>,
    pub has_legend: bool,
}

/// Returns the colour of the line or class of a number.
pub fn colour_of(index: usize) -> String {
    colour(COLOURS[index % COLOURS.len()])
}

/// Returns the range of some values, widened where it is a point; 0 to 1 where there are none.
pub fn range(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let mut range = [f64::INFINITY, f64::NEG_INFINITY];
    for value in values.filter(|value| value.is_finite()) {
        range = [range[0].min(value), range[1].max(value)];
    }
    match range {
        [low, high] if low > high => [0.0, 1.0],
        [low, high] if low == high => [low - 0.5, high + 0.5],
        range => range,
    }
}

impl Chart {
    /// Draws the chart into an area.
    pub fn draw(&self, svg: &mut Svg, area: Area) {
        let [left, top, right, bottom] = MARGINS;
        let legend = if self.has_legend { LEGEND_WIDTH } else { 0.0 };
        let plot = Area {
            x: area.x + left,
            y: area.y + top,
            width: area.width - left - right - legend,
            height: area.height - top - bottom,
        };
        let middle = plot.x + plot.width / 2.0;
        let title = fitted(&self.title, TITLE_SIZE, area.width - left);
        svg.text((middle, area.y + 22.0), Anchor::Middle, TITLE_SIZE, &title);
        let x_at = |value: f64| plot.x + share(value, self.x) * plot.width;
        let y_at = |value: f64| plot.y + (1.0 - share(value, self.y)) * plot.height;
        let foot = plot.y + plot.height;
        for (value, text) in ticks(self.x) {
            let x = x_at(value);
            svg.line(&[(x, plot.y), (x, foot)], FAINT, 1.0);
            svg.text((x, foot + 16.0), Anchor::Middle, FONT_SIZE, &text);
        }
        for (value, text) in ticks(self.y) {
            let y = y_at(value);
            svg.line(&[(plot.x, y), (plot.x + plot.width, y)], FAINT, 1.0);
            svg.text((plot.x - 6.0, y + 4.0), Anchor::End, FONT_SIZE, &text);
        }
        svg.frame(plot, INK, 1.0);
        svg.text(
            (middle, foot + 36.0),
            Anchor::Middle,
            FONT_SIZE,
            &self.x_name,
        );
        svg.upright(
            (area.x + 14.0, plot.y + plot.height / 2.0),
            Anchor::Middle,
            &self.y_name,
        );
        for series in &self.series {
            // A value that is none leaves a gap.
            for piece in series
                .points
                .split(|(x, y)| !(x.is_finite() && y.is_finite()))
            {
                let points: Vec<_> = piece.iter().map(|&(x, y)| (x_at(x), y_at(y))).collect();
                if let [point] = points[..] {
                    svg.line(
                        &[(point.0 - 1.5, point.1), (point.0 + 1.5, point.1)],
                        &series.colour,
                        3.0,
                    );
                } else if !points.is_empty() {
                    svg.line(&points, &series.colour, series.width);
                }
            }
        }
        if self.has_legend {
            self.legend(
                svg,
                (plot.x + plot.width + 12.0, plot.y + 12.0),
                plot.height,
            );
        }
    }

    fn legend(&self, svg: &mut Svg, (x, y): (f64, f64), height: f64) {
        let room = ((height / LEGEND_STEP) as usize).max(1);
        let shown = self.series.len().min(room);
        for (index, series) in self.series.iter().take(shown).enumerate() {
            let y = y + index as f64 * LEGEND_STEP;
            svg.line(
                &[(x, y - 4.0), (x + SAMPLE_LENGTH, y - 4.0)],
                &series.colour,
                series.width,
            );
            let name = fitted(&series.name, FONT_SIZE, LEGEND_WIDTH - SAMPLE_LENGTH - 24.0);
            svg.text(
                (x + SAMPLE_LENGTH + 6.0, y),
                Anchor::Start,
                FONT_SIZE,
                &name,
            );
        }
    }
}

/// Returns where a value lies within a range, from 0 to 1.
fn share(value: f64, [low, high]: [f64; 2]) -> f64 {
    ((value - low) / (high - low)).clamp(0.0, 1.0)
}

/// Returns round values within a range and their texts.
pub fn ticks([low, high]: [f64; 2]) -> Vec<(f64, String)> {
    let raw = (high - low) / TICKS;
    if !raw.is_finite() || raw <= 0.0 {
        return Vec::new();
    }
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&step| step >= raw * (1.0 - 1e-9))
        .unwrap_or(10.0 * power);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last)
        .map(|index| {
            let value = index as f64 * step;
            (value, text_of(value, decimals))
        })
        .collect()
}

/// Writes a tick's value, in powers of ten where it would be long.
fn text_of(value: f64, decimals: usize) -> String {
    if decimals > 4 || value.abs() >= 1e6 {
        return format!("{value:.1e}");
    }
    format!("{value:.decimals$}")
}

/// Returns how much room names need beside a picture, within limits.
pub fn name_room(names: &[String], least: f64, most: f64) -> f64 {
    let widest = names
        .iter()
        .map(|name| width_of(name, FONT_SIZE))
        .fold(0.0, f64::max);
    (widest + 14.0).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(range: [f64; 2]) -> Vec<String> {
        ticks(range).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_and_inside() {
        assert_eq!(
            texts([0.0, 1.0]),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(texts([1.0, 60.0]), ["20", "40", "60"]);
        assert_eq!(
            texts([0.0, 0.002]),
            ["0.0000", "0.0005", "0.0010", "0.0015", "0.0020"]
        );
        assert_eq!(texts([-3.0, 4.0]), ["-2", "0", "2", "4"]);
        assert!(texts([1.0, 1.0]).is_empty() && texts([0.0, f64::NAN]).is_empty());
    }

    #[test]
    fn a_range_of_one_value_has_a_width() {
        assert_eq!(range([2.0, 2.0, f64::NAN].into_iter()), [1.5, 2.5]);
        assert_eq!(range(std::iter::empty()), [0.0, 1.0]);
    }
}

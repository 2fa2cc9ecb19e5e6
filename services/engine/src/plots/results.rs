//! The columns of `results.csv` over the epochs, one small chart each.

use super::chart::{Chart, Series, colour_of, range};
use super::svg::{Area, Svg};

const PANEL_WIDTH: f64 = 300.0;
const PANEL_HEIGHT: f64 = 240.0;
const COLUMNS: usize = 5;
const LINE: f64 = 2.0;
/// The column that is the x axis, and one that is no result.
const EPOCH: &str = "epoch";
const TIME: &str = "time";

/// Returns the plot; text that is no table gives a picture without charts.
pub fn results(csv: &str) -> String {
    let mut lines = csv.lines().filter(|line| !line.trim().is_empty());
    let heading: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .collect();
    let rows: Vec<Vec<f64>> = lines
        .map(|line| {
            line.split(',')
                .map(|cell| cell.trim().parse().unwrap_or(f64::NAN))
                .collect()
        })
        .collect();
    let column = |index: usize| -> Vec<f64> {
        let cell = |row: &Vec<f64>| row.get(index).copied().unwrap_or(f64::NAN);
        rows.iter().map(cell).collect()
    };
    let epochs = heading.iter().position(|&name| name == EPOCH).map(column);
    let charts: Vec<Chart> = heading
        .iter()
        .enumerate()
        .filter(|(_, name)| ![EPOCH, TIME, ""].contains(name))
        .map(|(index, name)| {
            let values = column(index);
            let epochs = epochs
                .clone()
                .unwrap_or_else(|| (1..=values.len()).map(|epoch| epoch as f64).collect());
            Chart {
                title: (*name).to_owned(),
                x_name: EPOCH.into(),
                y_name: String::new(),
                x: range(epochs.iter().copied()),
                y: range(values.iter().copied()),
                series: vec![Series {
                    name: String::new(),
                    points: epochs.into_iter().zip(values).collect(),
                    colour: colour_of(group(name)),
                    width: LINE,
                }],
                has_legend: false,
            }
        })
        .collect();
    let columns = charts.len().clamp(1, COLUMNS);
    let rows = charts.len().div_ceil(columns).max(1);
    let mut svg = Svg::new(PANEL_WIDTH * columns as f64, PANEL_HEIGHT * rows as f64);
    for (index, chart) in charts.iter().enumerate() {
        let area = Area {
            x: PANEL_WIDTH * (index % columns) as f64,
            y: PANEL_HEIGHT * (index / columns) as f64,
            width: PANEL_WIDTH,
            height: PANEL_HEIGHT,
        };
        chart.draw(&mut svg, area);
    }
    svg.finish()
}

/// Returns the number of a column's group: what stands before the slash.
fn group(name: &str) -> usize {
    const GROUPS: [&str; 4] = ["train", "val", "metrics", "lr"];
    let prefix = name.split('/').next().unwrap_or_default();
    GROUPS
        .iter()
        .position(|&group| group == prefix)
        .unwrap_or(GROUPS.len())
}

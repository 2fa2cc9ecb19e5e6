//! Precision, recall and F1 by confidence, and precision by recall: a line for each class and a bold one for all.

use super::chart::{Chart, Series, colour_of};
use super::svg::{Area, INK, Svg};
use crate::metrics::{ClassCurves, Curves, DetectReport};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
/// With more classes only the line for all of them is drawn.
const CLASSES_MAX: usize = 20;
const BOLD: f64 = 3.0;
const PLAIN: f64 = 1.5;

/// What is drawn over the confidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Precision,
    Recall,
    F1,
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Self::Precision => "Precision",
            Self::Recall => "Recall",
            Self::F1 => "F1",
        }
    }

    fn of_all(self, curves: &Curves) -> &[f64] {
        match self {
            Self::Precision => &curves.precision,
            Self::Recall => &curves.recall,
            Self::F1 => &curves.f1,
        }
    }

    fn of_class(self, curves: &ClassCurves) -> &[f64] {
        match self {
            Self::Precision => &curves.precision,
            Self::Recall => &curves.recall,
            Self::F1 => &curves.f1,
        }
    }
}

/// Returns the plot of a measure over the confidence.
pub fn confidence_curve(measure: Measure, curves: &Curves, classes: &[String]) -> String {
    let all = measure.of_all(curves);
    let name = match peak(all) {
        Some((value, confidence)) if measure != Measure::Recall => {
            format!("all classes {value:.2} at {confidence:.3}")
        }
        _ => "all classes".into(),
    };
    let of_classes = curves.classes.iter().map(|curves| {
        let name = class_name(classes, curves.class);
        (curves.class, name, measure.of_class(curves))
    });
    chart(
        format!("{} by confidence", measure.name()),
        ["Confidence", measure.name()],
        (name, all),
        of_classes.collect(),
    )
}

/// Returns the plot of precision over recall, at an overlap of 0.5.
pub fn precision_recall(report: &DetectReport, classes: &[String]) -> String {
    let curves = &report.curves.classes;
    let points = curves
        .first()
        .map_or(0, |curves| curves.precision_by_recall.len());
    let mean: Vec<f64> = (0..points)
        .map(|point| {
            let sum: f64 = curves
                .iter()
                .map(|curves| curves.precision_by_recall[point])
                .sum();
            sum / curves.len() as f64
        })
        .collect();
    let of_classes = curves.iter().zip(&report.classes).map(|(curves, class)| {
        let name = format!("{} {:.3}", class_name(classes, curves.class), class.ap50());
        (curves.class, name, &curves.precision_by_recall[..])
    });
    chart(
        "Precision by recall".into(),
        ["Recall", "Precision"],
        (format!("all classes {:.3} mAP50", report.map50), &mean),
        of_classes.collect(),
    )
}

fn chart(
    title: String,
    [x_name, y_name]: [&str; 2],
    (all_name, all): (String, &[f64]),
    of_classes: Vec<(u32, String, &[f64])>,
) -> String {
    let mut series = vec![Series {
        name: all_name,
        points: points(all),
        colour: INK.into(),
        width: BOLD,
    }];
    if of_classes.len() <= CLASSES_MAX {
        series.extend(of_classes.into_iter().map(|(class, name, values)| Series {
            name,
            points: points(values),
            colour: colour_of(class as usize),
            width: PLAIN,
        }));
        // The bold line lies on top of the others.
        series.rotate_left(1);
    }
    let chart = Chart {
        title,
        x_name: x_name.into(),
        y_name: y_name.into(),
        x: [0.0, 1.0],
        y: [0.0, 1.0],
        series,
        has_legend: true,
    };
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let area = Area {
        x: 0.0,
        y: 0.0,
        width: WIDTH,
        height: HEIGHT,
    };
    chart.draw(&mut svg, area);
    svg.finish()
}

/// Returns values as points evenly spaced from 0 to 1.
fn points(values: &[f64]) -> Vec<(f64, f64)> {
    let last = values.len().saturating_sub(1).max(1) as f64;
    let places = values.iter().enumerate();
    places
        .map(|(index, &value)| (index as f64 / last, value))
        .collect()
}

/// Returns the largest value and where it lies.
fn peak(values: &[f64]) -> Option<(f64, f64)> {
    let points = points(values)
        .into_iter()
        .filter(|(_, value)| value.is_finite());
    // The first of equal ones.
    points.fold(None, |best, (x, value)| match best {
        Some((most, _)) if most >= value => best,
        _ => Some((value, x)),
    })
}

fn class_name(classes: &[String], class: u32) -> String {
    let known = classes.get(class as usize);
    known.cloned().unwrap_or_else(|| format!("class {class}"))
}

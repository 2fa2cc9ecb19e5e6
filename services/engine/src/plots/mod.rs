//! Pictures of how a training went, as SVG: curves, confusion matrix, statistics of labels, results by epoch, samples
//! with boxes. Each function returns the text of one file, the same for the same input.
//!
//! For callers: [`write_validation`] and [`write_results`] write all files of their kind to a folder; the functions
//! behind them serve whoever wants one plot.

mod batch;
mod chart;
mod confusion;
mod curves;
mod labels;
mod results;
mod svg;

use std::path::Path;

pub use batch::{Boxed, Shown, batch};
pub use confusion::confusion;
pub use curves::{Measure, confidence_curve, precision_recall};
pub use labels::labels;
pub use results::results;

use crate::Result;
use crate::checkpoint::files::write_atomically;
use crate::metrics::DetectReport;

/// Writes the curves and the confusion matrices of a validation. `kind` tells what was matched: `Box`, `Mask`, `Pose`.
pub fn write_validation(
    folder: &Path,
    kind: &str,
    report: &DetectReport,
    classes: &[String],
) -> Result<()> {
    let write = |name: String, text: String| write_atomically(&folder.join(name), text.as_bytes());
    for (letter, measure) in [
        ("P", Measure::Precision),
        ("R", Measure::Recall),
        ("F1", Measure::F1),
    ] {
        let text = confidence_curve(measure, &report.curves, classes);
        write(format!("{kind}{letter}_curve.svg"), text)?;
    }
    write(
        format!("{kind}PR_curve.svg"),
        precision_recall(report, classes),
    )?;
    write(
        "confusion_matrix.svg".into(),
        confusion(&report.confusion, classes, false),
    )?;
    write(
        "confusion_matrix_normalized.svg".into(),
        confusion(&report.confusion, classes, true),
    )
}

/// Writes `results.svg` from the text of `results.csv`.
pub fn write_results(folder: &Path, csv: &str) -> Result<()> {
    write_atomically(&folder.join("results.svg"), results(csv).as_bytes())
}

#[cfg(test)]
mod tests;

//! Pictures of how a training went, as SVG: curves, confusion matrix, statistics of labels, results by epoch, samples
//! with boxes. Each function returns the text of one file, the same for the same input.
//!
//! For callers: [`write_start`], [`write_validation`], [`write_samples`] and [`write_results`] write all files of their
//! kind to a folder; the functions behind them serve whoever wants one plot.

mod batch;
mod chart;
mod confusion;
mod curves;
mod files;
mod labels;
mod results;
mod svg;

pub use batch::{Boxed, Shown, batch};
pub use confusion::confusion;
pub use curves::{Measure, confidence_curve, precision_recall};
pub use files::{write_results, write_samples, write_start, write_validation};
pub use labels::labels;
pub use results::results;

#[cfg(test)]
mod tests;

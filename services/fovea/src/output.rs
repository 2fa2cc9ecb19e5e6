//! What people and programs see: tables, JSON, amounts, spans and progress bars.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, SerializeOptions};

/// Writes a line to standard output; a closed pipe ends the program quietly.
pub fn line(text: impl AsRef<str>) {
    let written = writeln!(io::stdout().lock(), "{}", text.as_ref());
    if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// Writes a remark for people to standard error.
pub fn remark(text: impl AsRef<str>) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// Writes a message of the contract as JSON with the contract's own names.
pub fn json<M: Message + Name>(message: &M) -> Result<()> {
    line(serde_json::to_string_pretty(&value(message)?)?);
    Ok(())
}

/// Returns a message of the contract as a JSON value.
pub fn value<M: Message + Name>(message: &M) -> Result<serde_json::Value> {
    let descriptor = proto::pool()
        .get_message_by_name(&M::full_name())
        .with_context(|| format!("{} is not in the contract", M::full_name()))?;
    let dynamic = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())?;
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .skip_default_fields(false);
    Ok(dynamic.serialize_with_options(serde_json::value::Serializer, &options)?)
}

/// Columns that line up.
#[derive(Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Begins a table with its heading.
    pub fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self {
            rows: vec![heading.map(str::to_owned).to_vec()],
        }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }

    /// Adds a row of any length.
    pub fn row_of(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes it; the last column isn't padded.
    pub fn print(self) {
        let column_count = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..column_count)
            .map(|column| {
                self.rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            line(cells.join("  ").trim_end());
        }
    }
}

/// Returns micro-credits as credits: `0.0123`, at least two decimals and no more than needed.
pub fn credits(micros: i64) -> String {
    let text = kit::Amount::from_micros(micros).to_string();
    let Some((whole, fraction)) = text.split_once('.') else {
        return text;
    };
    let kept = fraction.trim_end_matches('0');
    format!("{whole}.{kept:0<2}")
}

/// Returns a span as people say it: `4.2 s`, `3 min 05 s`, `2 h 10 min`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    let whole = seconds.round() as u64;
    if seconds < 10.0 {
        format!("{seconds:.1} s")
    } else if whole < 60 {
        format!("{whole} s")
    } else if whole < 3600 {
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        format!("{} h {:02} min", whole / 3600, whole % 3600 / 60)
    }
}

/// Returns a span of the contract as people say it.
pub fn proto_span(message: Option<&prost_types::Duration>) -> String {
    message.map_or_else(|| "–".to_owned(), |message| span(to_duration(message)))
}

/// Returns a span of the contract; a negative one is zero.
pub fn to_duration(message: &prost_types::Duration) -> Duration {
    Duration::try_from(*message).unwrap_or_default()
}

/// Returns bytes as people say them: `12.3 MiB`.
pub fn bytes(count: i64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Returns a bar for a known length, hidden where nobody watches or JSON is asked for.
pub fn bar(length: u64, what: &str, is_bytes: bool, is_json: bool) -> ProgressBar {
    if is_json || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let counts = if is_bytes {
        "{binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}"
    } else {
        "{pos}/{len}"
    };
    let style =
        ProgressStyle::with_template(&format!("{{prefix:>12}} {{wide_bar}} {counts} {{msg}}"))
            .expect("invariant: the template is fixed");
    let bar = ProgressBar::new(length).with_style(style);
    bar.set_prefix(what.to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_spans_read_well() {
        assert_eq!(credits(1_500_000), "1.50");
        assert_eq!(credits(12_345), "0.012345");
        assert_eq!(credits(0), "0.00");
        assert_eq!(span(Duration::from_millis(4_240)), "4.2 s");
        assert_eq!(span(Duration::from_secs(185)), "3 min 05 s");
        assert_eq!(span(Duration::from_secs(7_800)), "2 h 10 min");
        assert_eq!(bytes(12_897_485), "12.3 MiB");
    }
}

//! Readings in columns: how metrics and host samples are stored.
//!
//! A chunk is a protobuf message of packed columns. The columns that every reading has (position,
//! fence, time in microseconds, epoch, step) hold the difference from the reading before, as
//! zigzag varints: a byte or two each. Each metric has its values as doubles and, unless it is
//! there in every reading, the rows it is in, again as differences. A thousand values of ten
//! metrics take about 9 KB.

use std::collections::BTreeMap;

use kit::time::Timestamp;
use prost::Message;

use crate::domain::{Metrics, Reading};

#[derive(Clone, PartialEq, Message)]
struct Columns {
    #[prost(sint64, repeated, tag = "1")]
    positions: Vec<i64>,
    #[prost(sint64, repeated, tag = "2")]
    fences: Vec<i64>,
    #[prost(sint64, repeated, tag = "3")]
    times: Vec<i64>,
    #[prost(sint64, repeated, tag = "4")]
    epochs: Vec<i64>,
    #[prost(sint64, repeated, tag = "5")]
    steps: Vec<i64>,
    #[prost(message, repeated, tag = "6")]
    metrics: Vec<Column>,
}

#[derive(Clone, PartialEq, Message)]
struct Column {
    #[prost(string, tag = "1")]
    name: String,
    /// Empty where the metric is in every row.
    #[prost(sint64, repeated, tag = "2")]
    rows: Vec<i64>,
    #[prost(double, repeated, tag = "3")]
    values: Vec<f64>,
}

/// Packs readings.
pub fn encode(readings: &[Reading]) -> Vec<u8> {
    let column = |value: fn(&Reading) -> i64| differences(readings.iter().map(value));
    let mut metrics: BTreeMap<&str, (Vec<i64>, Vec<f64>)> = BTreeMap::new();
    for (row, reading) in (0_i64..).zip(readings) {
        for (name, value) in &reading.values {
            let (rows, values) = metrics.entry(name).or_default();
            rows.push(row);
            values.push(*value);
        }
    }
    let metrics = metrics.into_iter().map(|(name, (rows, values))| Column {
        name: name.to_owned(),
        rows: if rows.len() == readings.len() {
            Vec::new()
        } else {
            differences(rows)
        },
        values,
    });
    Columns {
        positions: column(|reading| reading.position),
        fences: column(|reading| reading.fence),
        times: column(|reading| reading.at.micros()),
        epochs: column(|reading| i64::from(reading.epoch)),
        steps: column(|reading| reading.step),
        metrics: metrics.collect(),
    }
    .encode_to_vec()
}

/// Unpacks readings, or says what is wrong with the bytes.
pub fn decode(bytes: &[u8]) -> Result<Vec<Reading>, String> {
    let columns = Columns::decode(bytes).map_err(|error| error.to_string())?;
    let count = columns.positions.len();
    let [positions, fences, times, epochs, steps] = [
        columns.positions,
        columns.fences,
        columns.times,
        columns.epochs,
        columns.steps,
    ]
    .map(sums);
    if [&fences, &times, &epochs, &steps]
        .iter()
        .any(|column| column.len() != count)
    {
        return Err("its columns are not of one length".to_owned());
    }
    let mut readings: Vec<_> = (0..count)
        .map(|row| Reading {
            position: positions[row],
            fence: fences[row],
            at: Timestamp::from_micros(times[row]),
            epoch: i32::try_from(epochs[row]).unwrap_or(i32::MAX),
            step: steps[row],
            values: Metrics::new(),
        })
        .collect();
    for Column { name, rows, values } in columns.metrics {
        let rows = if rows.is_empty() {
            (0..count as i64).collect()
        } else {
            sums(rows)
        };
        if rows.len() != values.len() {
            return Err(format!("'{name}' has not one value a row"));
        }
        for (row, value) in rows.into_iter().zip(values) {
            let reading = usize::try_from(row)
                .ok()
                .and_then(|row| readings.get_mut(row));
            let reading = reading.ok_or_else(|| format!("'{name}' has a row that is not there"))?;
            reading.values.insert(name.clone(), value);
        }
    }
    Ok(readings)
}

/// Returns each value less the one before it, wrapping, so that every value survives.
pub fn differences(values: impl IntoIterator<Item = i64>) -> Vec<i64> {
    let step = |before: &mut i64, value: i64| {
        let difference = value.wrapping_sub(*before);
        *before = value;
        Some(difference)
    };
    values.into_iter().scan(0, step).collect()
}

/// Undoes [`differences`].
pub fn sums(differences: Vec<i64>) -> Vec<i64> {
    let step = |sum: &mut i64, difference: i64| {
        *sum = sum.wrapping_add(difference);
        Some(*sum)
    };
    differences.into_iter().scan(0, step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(count: i64) -> Vec<Reading> {
        let names = [
            "train/box_loss",
            "train/cls_loss",
            "train/dfl_loss",
            "lr/pg0",
            "lr/pg1",
        ];
        let reading = |step: i64| Reading {
            position: step * 3 + 1,
            fence: 1 + step / 60,
            at: Timestamp::from_micros(1_796_054_400_000_000 + step * 250_123),
            epoch: (step / 23) as i32,
            step,
            values: names
                .iter()
                .map(|name| ((*name).to_owned(), step as f64 * 0.1))
                .collect(),
        };
        (0..count).map(reading).collect()
    }

    #[test]
    fn readings_survive_their_bytes() {
        let mut all = readings(100);
        all[23].values.insert("metrics/mAP50(B)".into(), 0.5);
        all[46]
            .values
            .insert("metrics/mAP50(B)".into(), f64::INFINITY);
        all[50].values.clear();
        all[51].step = i64::MAX;
        all[52].step = i64::MIN;
        assert_eq!(decode(&encode(&all)).unwrap(), all);
        assert_eq!(decode(&encode(&[])).unwrap(), []);
        let odd = Metrics::from([("train/box_loss".into(), f64::NAN)]);
        let all = [Reading {
            values: odd,
            ..all[0].clone()
        }];
        assert!(decode(&encode(&all)).unwrap()[0].values["train/box_loss"].is_nan());
    }

    #[test]
    fn a_thousand_points_take_less_than_ten_bytes_each() {
        let bytes = encode(&readings(200));
        assert!(bytes.len() < 10_000, "{}", bytes.len());
    }

    #[test]
    fn broken_bytes_are_refused() {
        assert!(decode(b"no chunk").is_err());
        let columns = Columns {
            positions: vec![1, 2],
            ..Columns::default()
        };
        assert!(decode(&columns.encode_to_vec()).is_err());
        let metric = Column {
            name: "x".into(),
            rows: vec![7],
            values: vec![1.0],
        };
        let columns = Columns {
            metrics: vec![metric],
            ..Columns::default()
        };
        assert!(
            decode(&columns.encode_to_vec())
                .unwrap_err()
                .contains("'x'")
        );
    }
}

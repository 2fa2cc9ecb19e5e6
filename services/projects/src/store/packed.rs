//! Small values in columns: durations as nanoseconds, metrics packed, JSON of our own types.

use std::time::Duration;

use kit::store::{Error, Row};
use prost::Message;
use serde::Serialize;

use crate::domain::{Metrics, Wish};

/// Metrics as bytes: unlike JSON they keep what is not a number.
#[derive(Clone, PartialEq, Message)]
struct Packed {
    #[prost(btree_map = "string, double", tag = "1")]
    values: Metrics,
}

pub fn pack(metrics: &Metrics) -> Vec<u8> {
    Packed {
        values: metrics.clone(),
    }
    .encode_to_vec()
}

pub fn unpack(row: &Row, column: &str) -> Result<Metrics, Error> {
    let bytes = row.get::<Vec<u8>>(column)?;
    Packed::decode(bytes.as_slice())
        .map(|packed| packed.values)
        .map_err(|error| broken(column, error))
}

pub fn broken(column: &str, problem: impl std::fmt::Display) -> Error {
    Error::Column {
        column: column.to_owned(),
        problem: problem.to_string(),
    }
}

pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("invariant: our own types have text keys and no NaN")
}

/// 292 years fit; no run is that long.
pub fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

pub fn span(row: &Row, column: &str) -> Result<Duration, Error> {
    row.count(column).map(Duration::from_nanos)
}

pub fn small(row: &Row, column: &str) -> Result<i32, Error> {
    i32::try_from(row.get::<i64>(column)?).map_err(|error| broken(column, error))
}

const CANCEL: &str = "cancel";
const PAUSE: &str = "pause:";

pub fn wish_text(wish: &Option<Wish>) -> Option<String> {
    wish.as_ref().map(|wish| match wish {
        Wish::Cancel => CANCEL.to_owned(),
        Wish::Pause { cause } => format!("{PAUSE}{cause}"),
    })
}

pub fn wish(row: &Row, column: &str) -> Result<Option<Wish>, Error> {
    let Some(text) = row.get::<Option<String>>(column)? else {
        return Ok(None);
    };
    match text.strip_prefix(PAUSE) {
        Some(cause) => Ok(Some(Wish::Pause {
            cause: cause.to_owned(),
        })),
        None if text == CANCEL => Ok(Some(Wish::Cancel)),
        None => Err(broken(column, format!("'{text}' is no wish"))),
    }
}

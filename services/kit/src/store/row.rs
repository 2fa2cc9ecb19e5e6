//! Rows, and how our value types stand in columns: ids as 16 bytes, instants as microseconds,
//! amounts as micro-credits.

use std::fmt::Display;
use std::str::FromStr;

use sea_orm::sea_query::Nullable;
use sea_orm::{ColIdx, QueryResult, TryGetError, TryGetable, Value};
use serde::de::DeserializeOwned;

use super::Error;
use crate::id::{Entity, Id};
use crate::money::{Amount, PricePerHour};
use crate::time::Timestamp;

/// One row of a result.
pub struct Row(pub(super) QueryResult);

impl Row {
    /// Returns a column's value: `i64`, `i32`, `f64`, `bool`, `String`, `Vec<u8>`, `Id<E>`,
    /// `Timestamp`, `Amount`, `PricePerHour`, and an `Option` of each.
    pub fn get<T: TryGetable>(&self, column: &str) -> Result<T, Error> {
        self.0
            .try_get("", column)
            .map_err(|error| refuse(column, error))
    }

    /// Returns the value of the column at this place, from zero; for queries of one column.
    pub fn at<T: TryGetable>(&self, place: usize) -> Result<T, Error> {
        self.0
            .try_get_by_index(place)
            .map_err(|error| refuse(&place.to_string(), error))
    }

    /// Returns a text column's value as the type it was written from.
    pub fn parse<T: FromStr<Err: Display>>(&self, column: &str) -> Result<T, Error> {
        self.get::<String>(column)?
            .parse()
            .map_err(|error| refuse(column, error))
    }

    /// Returns a text column's JSON.
    pub fn json<T: DeserializeOwned>(&self, column: &str) -> Result<T, Error> {
        serde_json::from_str(&self.get::<String>(column)?).map_err(|error| refuse(column, error))
    }

    /// Returns a `bigint` column as a count.
    pub fn count(&self, column: &str) -> Result<u64, Error> {
        u64::try_from(self.get::<i64>(column)?).map_err(|error| refuse(column, error))
    }

    /// Returns a `bytea` column as this many bytes.
    pub fn bytes<const N: usize>(&self, column: &str) -> Result<[u8; N], Error> {
        let bytes = self.get::<Vec<u8>>(column)?;
        let length = bytes.len();
        bytes
            .try_into()
            .map_err(|_| refuse(column, format!("{length} bytes, expected {N}")))
    }
}

fn refuse(column: &str, problem: impl Display) -> Error {
    Error::Column {
        column: column.to_owned(),
        problem: problem.to_string(),
    }
}

/// What can be made of a row.
pub trait FromRow: Sized {
    /// Reads the row.
    fn from_row(row: &Row) -> Result<Self, Error>;
}

impl FromRow for () {
    fn from_row(_: &Row) -> Result<Self, Error> {
        Ok(())
    }
}

macro_rules! one_column {
    ($($type:ty),*) => {
        $(impl FromRow for $type {
            fn from_row(row: &Row) -> Result<Self, Error> {
                row.at(0)
            }
        })*
    };
}

one_column!(i64, i32, f64, bool, String, Vec<u8>, Timestamp, Amount);

impl<E: Entity> FromRow for Id<E> {
    fn from_row(row: &Row) -> Result<Self, Error> {
        row.at(0)
    }
}

impl<A: TryGetable, B: TryGetable> FromRow for (A, B) {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok((row.at(0)?, row.at(1)?))
    }
}

impl<A: TryGetable, B: TryGetable, C: TryGetable> FromRow for (A, B, C) {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok((row.at(0)?, row.at(1)?, row.at(2)?))
    }
}

impl<E: Entity> From<Id<E>> for Value {
    fn from(id: Id<E>) -> Self {
        Self::from(id.as_bytes().to_vec())
    }
}

impl<E: Entity> From<&Id<E>> for Value {
    fn from(id: &Id<E>) -> Self {
        Self::from(*id)
    }
}

impl<E: Entity> Nullable for Id<E> {
    fn null() -> Value {
        Value::Bytes(None)
    }
}

impl<E: Entity> TryGetable for Id<E> {
    fn try_get_by<I: ColIdx>(row: &QueryResult, index: I) -> Result<Self, TryGetError> {
        let bytes = Vec::<u8>::try_get_by(row, index)?;
        let bytes: [u8; 16] = bytes.try_into().map_err(|bytes: Vec<u8>| {
            let length = bytes.len();
            let problem = format!("an id of a {} has 16 bytes, not {length}", E::NAME);
            TryGetError::DbErr(sea_orm::DbErr::Type(problem))
        })?;
        Ok(Self::from_bytes(bytes))
    }
}

macro_rules! as_bigint {
    ($($type:ty, $from:expr, $into:expr;)*) => {
        $(
            impl From<$type> for Value {
                fn from(value: $type) -> Self {
                    Self::BigInt(Some($into(value)))
                }
            }

            impl Nullable for $type {
                fn null() -> Value {
                    Value::BigInt(None)
                }
            }

            impl TryGetable for $type {
                fn try_get_by<I: ColIdx>(row: &QueryResult, index: I) -> Result<Self, TryGetError> {
                    i64::try_get_by(row, index).map($from)
                }
            }
        )*
    };
}

as_bigint! {
    Timestamp, Timestamp::from_micros, Timestamp::micros;
    Amount, Amount::from_micros, Amount::micros;
}

impl From<PricePerHour> for Value {
    fn from(price: PricePerHour) -> Self {
        Self::BigInt(Some(price.micros()))
    }
}

impl Nullable for PricePerHour {
    fn null() -> Value {
        Value::BigInt(None)
    }
}

impl TryGetable for PricePerHour {
    fn try_get_by<I: ColIdx>(row: &QueryResult, index: I) -> Result<Self, TryGetError> {
        let micros = i64::try_get_by(row, index)?;
        Self::from_micros(micros)
            .map_err(|error| TryGetError::DbErr(sea_orm::DbErr::Type(error.to_string())))
    }
}

//! A few numbers in a fixed order: the loss items of a task, or the learning rates of the optimiser's groups.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// At most [`Row::LEN_MAX`] numbers; read as a slice.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Row {
    values: [f64; Row::LEN_MAX],
    len: usize,
}

impl Row {
    /// The most numbers of a row.
    pub const LEN_MAX: usize = 8;

    /// Adds the numbers of another row, place by place; a shorter row counts as zeros.
    pub fn add(&mut self, other: &[f64]) {
        self.len = self.len.max(other.len());
        for (value, other) in self.values.iter_mut().zip(other) {
            *value += other;
        }
    }

    /// Returns the row with every number changed.
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        self.iter().map(|&value| change(value)).collect()
    }
}

impl Deref for Row {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.values[..self.len]
    }
}

/// # Panics
/// When there are more numbers than a row has.
impl FromIterator<f64> for Row {
    fn from_iter<I: IntoIterator<Item = f64>>(numbers: I) -> Self {
        let mut row = Self::default();
        for number in numbers {
            row.values[row.len] = number;
            row.len += 1;
        }
        row
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(formatter)
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let numbers = Vec::<f64>::deserialize(deserializer)?;
        if numbers.len() > Self::LEN_MAX {
            let rule = format!("a row has at most {} numbers", Self::LEN_MAX);
            return Err(serde::de::Error::custom(rule));
        }
        Ok(numbers.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_list_in_json_and_adds_up_place_by_place() {
        let mut row: Row = [1.0, 2.5].into_iter().collect();
        assert_eq!(serde_json::to_string(&row).unwrap(), "[1.0,2.5]");
        assert_eq!(serde_json::from_str::<Row>("[1.0,2.5]").unwrap(), row);
        assert!(serde_json::from_str::<Row>("[1,2,3,4,5,6,7,8,9]").is_err());
        row.add(&[1.0, 1.0, 1.0]);
        assert_eq!(*row, [2.0, 3.5, 1.0]);
        assert_eq!(*row.map(|value| value * 2.0), [4.0, 7.0, 2.0]);
    }
}

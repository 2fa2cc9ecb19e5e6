//! Which layers of a model stay as they are while the others are trained.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::models::Tables;
use crate::network::{State, TensorInfo};
use crate::{Error, Result};

/// Rows of the model by number, or the beginnings of tensors' names; empty when everything is trained.
///
/// As text: `10` for the first ten rows, `0,3,5` or `[0, 3, 5]` for those rows, names such as `model.22.cv3` beside
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "String")]
pub struct Freeze {
    text: String,
    /// Each with a dot at its end, so that row 1 isn't row 10.
    prefixes: Vec<String>,
}

/// The most rows that a number alone freezes: more than any model has.
const ROWS_MAX: usize = 1000;

impl Freeze {
    /// Parses the text.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |rule: String| Error::Argument {
            argument: "freeze",
            rule,
        };
        let inside = text.trim().trim_start_matches('[').trim_end_matches(']');
        let words: Vec<&str> = inside
            .split(',')
            .map(|word| word.trim().trim_matches(['\'', '"']))
            .filter(|word| !word.is_empty())
            .collect();
        let is_list = text.trim().starts_with('[');
        let mut prefixes = Vec::new();
        for word in &words {
            match word.parse::<usize>() {
                Ok(count) if count > ROWS_MAX => {
                    return Err(refuse(format!("{count} is more than {ROWS_MAX} rows")));
                }
                Ok(count) if words.len() == 1 && !is_list => {
                    prefixes.extend((0..count).map(|row| format!("model.{row}.")));
                }
                Ok(row) => prefixes.push(format!("model.{row}.")),
                Err(_) if word.starts_with("model.") => {
                    prefixes.push(format!("{}.", word.trim_end_matches('.')));
                }
                Err(_) => {
                    return Err(refuse(format!(
                        "'{word}' is neither the number of a row nor a name such as model.22.cv3"
                    )));
                }
            }
        }
        Ok(Self {
            text: text.trim().to_owned(),
            prefixes,
        })
    }

    /// Returns whether everything is trained.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// Returns whether a tensor of the state dict stays as it is.
    pub fn holds(&self, tensor: &str) -> bool {
        self.prefixes
            .iter()
            .any(|prefix| tensor.starts_with(prefix))
    }
}

impl From<Freeze> for String {
    fn from(freeze: Freeze) -> Self {
        freeze.text
    }
}

impl TryFrom<Value> for Freeze {
    type Error = Error;

    fn try_from(value: Value) -> Result<Self> {
        match value {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Self::parse(&text),
            other => Self::parse(&other.to_string()),
        }
    }
}

/// Parameters and statistics that stay as they are.
#[derive(Debug, Default)]
pub struct Frozen {
    parameters: Vec<(Range<usize>, Vec<f32>)>,
    buffers: Vec<(Range<usize>, Vec<f32>)>,
}

impl Frozen {
    /// Keeps what `freeze` names, as it is now.
    pub fn new(freeze: &Freeze, tables: &Tables, state: &State) -> Self {
        let held = |tensors: &[TensorInfo], values: &[f32]| {
            let held = tensors.iter().filter(|tensor| freeze.holds(&tensor.name));
            held.map(|tensor| (tensor.range(), values[tensor.range()].to_vec()))
                .collect()
        };
        Self {
            parameters: held(&tables.parameters, &state.parameters),
            buffers: held(&tables.buffers, &state.buffers),
        }
    }

    /// Leaves frozen parameters out of the gradient and its length.
    pub fn clear_gradient(&self, gradient: &mut [f32]) {
        for (range, _) in &self.parameters {
            gradient[range.clone()].fill(0.0);
        }
    }

    /// Undoes decay and momentum of frozen parameters, and what batches did to their statistics.
    pub fn restore(&self, state: &mut State) {
        for (range, values) in &self.parameters {
            state.parameters[range.clone()].copy_from_slice(values);
        }
        for (range, values) in &self.buffers {
            state.buffers[range.clone()].copy_from_slice(values);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_frozen_by_count_number_or_name() {
        let frozen = |text: &str, tensor: &str| Freeze::parse(text).unwrap().holds(tensor);
        assert!(frozen("2", "model.1.bn.weight") && !frozen("2", "model.2.cv1.conv.weight"));
        assert!(!frozen("2", "model.10.cv1.conv.weight"));
        assert!(frozen("[2]", "model.2.cv1.conv.weight") && !frozen("[2]", "model.1.bn.weight"));
        assert!(frozen("0, 5", "model.5.conv.weight") && !frozen("0, 5", "model.3.conv.weight"));
        assert!(frozen("model.23.cv3", "model.23.cv3.0.2.weight"));
        assert!(!frozen("model.23.cv3", "model.23.cv2.0.2.weight"));
        assert!(Freeze::parse("").unwrap().is_empty() && Freeze::parse("0").unwrap().is_empty());
        for text in ["backbone", "-1", "99999"] {
            let error = Freeze::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("freeze: "), "{error}");
        }
    }

    #[test]
    fn files_may_hold_a_number_a_list_or_text() {
        for (file, text) in [
            ("3", "3"),
            ("[0, 2]", "[0,2]"),
            ("\"1,2\"", "1,2"),
            ("null", ""),
        ] {
            let freeze: Freeze = serde_json::from_str(file).unwrap();
            assert_eq!(String::from(freeze.clone()), text);
            let again = serde_json::to_string(&freeze).unwrap();
            assert_eq!(serde_json::from_str::<Freeze>(&again).unwrap(), freeze);
        }
    }
}

//! Everything a run needs to go on, and everything a model needs to be used, in one safetensors file.
//!
//! For callers: `Checkpoint::from_bytes`, `to_bytes`, `inference_state` (the averaged weights where there are any) and
//! `into_model` (weights only, for a registry). `files` keeps them on disk. A file is plain safetensors: tensors carry the
//! reference's state-dict names (`model.0.conv.weight`), averaged ones with `ema.` before it, the optimiser's vectors are
//! `optimizer.<name>`. The header, JSON in the file's metadata, says what and where in the run it is.
//!
//! **Invariant**: bytes are a function of the content, and reading gives back every bit or an error that says what
//! is wrong.

mod codec;
pub mod files;

pub use codec::is_checkpoint;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::models::ModelSpec;
use crate::network::State;
use crate::train::{EpochReport, Row, TrainOptions};
use crate::{Error, Result};

/// The version of the header and of the tensors' names.
pub const FORMAT_VERSION: u32 = 1;

/// A run's position: which batch comes next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Epochs finished, which is also the number of the one to go on with.
    pub epoch: u32,
    /// Batches of this epoch that are trained. All of them: the epoch's validation comes next.
    pub batch: u32,
    /// Batches of the whole run that are trained.
    pub iteration: u64,
    /// The first batch whose gradient is not yet in the weights.
    pub first_unstepped: u64,
    /// Optimiser steps.
    pub steps: u64,
    /// Updates of the average.
    pub average_updates: u64,
    /// Sums over this epoch's batches of the loss items, and how many had a finite loss.
    pub loss_sums: Row,
    pub loss_count: u64,
    /// Batches in a row without a finite loss.
    pub not_finite: u32,
    /// Seconds of training so far.
    pub elapsed_seconds: f64,
}

/// What a checkpoint says about itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub format: u32,
    /// The engine that wrote it, and on what: bits are promised for the same only.
    pub build: String,
    pub device: String,
    pub model: ModelSpec,
    pub classes: Vec<String>,
    pub options: TrainOptions,
    /// Of the data set, see `Dataset::fingerprint`.
    pub data: String,
    pub position: Position,
    /// The best fitness so far and the epoch that had it, counted from 0.
    pub best: Option<(f64, u32)>,
    /// One entry for each finished epoch.
    pub history: Vec<EpochReport>,
    /// Whether this is a model to use and no longer a run to continue.
    pub is_model: bool,
}

/// A run stopped at a position, or a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    pub header: Header,
    /// The weights in training; in a model, the averaged ones.
    pub state: State,
    pub average: Option<State>,
    /// The optimiser's memory by name.
    pub moments: BTreeMap<String, Vec<f32>>,
    /// Gradients that wait for the next step; empty when there are none.
    pub gradient: Vec<f32>,
}

impl Checkpoint {
    /// Reads a checkpoint; `place` is what errors call it.
    pub fn from_bytes(bytes: &[u8], place: &str) -> Result<Self> {
        codec::read(bytes).map_err(|rule| Error::Checkpoint {
            place: place.to_owned(),
            rule,
        })
    }

    /// Returns the checkpoint as the bytes of a file.
    pub fn to_bytes(&self) -> Vec<u8> {
        codec::write(self)
    }

    /// Returns the weights to predict with.
    pub fn inference_state(&self) -> &State {
        self.average.as_ref().unwrap_or(&self.state)
    }

    /// Drops what only training needs. Two runs with the same weights give the same bytes.
    pub fn into_model(self) -> Self {
        let mut header = self.header;
        header.position.elapsed_seconds = 0.0;
        header.is_model = true;
        for report in &mut header.history {
            report.forget_time();
        }
        Self {
            header,
            state: self.average.unwrap_or(self.state),
            average: None,
            moments: BTreeMap::new(),
            gradient: Vec::new(),
        }
    }

    /// Refuses to continue with another model, other classes or other data.
    pub fn check_continues(
        &self,
        place: &str,
        model: &ModelSpec,
        classes: &[String],
        data: &str,
    ) -> Result<()> {
        let refuse = |rule: String| {
            Err(Error::Checkpoint {
                place: place.to_owned(),
                rule,
            })
        };
        if self.header.is_model {
            return refuse("it is a model and holds no run to continue; start one from it".into());
        }
        if self.header.model != *model {
            return refuse(format!(
                "it holds a {} of {} classes, not a {} of {}",
                self.header.model.name(),
                self.header.model.class_count,
                model.name(),
                model.class_count
            ));
        }
        if self.header.classes != classes {
            return refuse("the data set's classes are others now".into());
        }
        if self.header.data != data {
            return refuse("the data set's pictures or labels changed since".into());
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::models;

    /// A checkpoint of fresh weights in mid-run.
    pub fn example() -> Checkpoint {
        let model = ModelSpec::parse("yolo11n", 2).unwrap();
        let state = models::initialise(&model, 7);
        let count = state.parameters.len();
        let mut average = state.clone();
        average.parameters[3] = f32::MIN_POSITIVE / 2.0;
        average.parameters[4] = -0.0;
        Checkpoint {
            header: Header {
                format: FORMAT_VERSION,
                build: "test".into(),
                device: "cpu".into(),
                model,
                classes: vec!["cat".into(), "großer 'Hund'".into()],
                options: TrainOptions::default(),
                data: "abc".into(),
                position: Position {
                    epoch: 3,
                    batch: 5,
                    iteration: 44,
                    loss_sums: [0.1, 1.0 / 3.0, 1e-300].into_iter().collect(),
                    ..Position::default()
                },
                best: Some((0.1 + 0.2, 2)),
                history: vec![EpochReport::default()],
                is_model: false,
            },
            state,
            average: Some(average),
            moments: BTreeMap::from([("mean".to_owned(), vec![0.25; count])]),
            gradient: vec![1e-30; count],
        }
    }

    fn error(bytes: &[u8]) -> String {
        Checkpoint::from_bytes(bytes, "last.fovea")
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn reading_gives_back_every_bit_and_writing_the_same_bytes() {
        let checkpoint = example();
        let bytes = checkpoint.to_bytes();
        let read = Checkpoint::from_bytes(&bytes, "x").unwrap();
        assert_eq!(read, checkpoint);
        let bits = |state: &State| {
            state
                .parameters
                .iter()
                .map(|v| v.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(bits(&read.state), bits(&checkpoint.state));
        assert_eq!(
            bits(read.inference_state()),
            bits(checkpoint.inference_state())
        );
        assert_eq!(read.to_bytes(), bytes);
    }

    #[test]
    fn any_safetensors_reader_finds_the_weights_by_name() {
        let checkpoint = example();
        let bytes = checkpoint.to_bytes();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let weight = tensors.tensor("model.0.conv.weight").unwrap();
        assert_eq!(weight.shape(), [16, 3, 3, 3]);
        assert_eq!(
            &weight.data()[..4],
            checkpoint.state.parameters[0].to_le_bytes()
        );
        assert!(tensors.tensor("ema.model.0.bn.running_var").is_ok());
    }

    #[test]
    fn a_model_keeps_the_averaged_weights_only() {
        let checkpoint = example();
        let average = checkpoint.average.clone().unwrap();
        let model = checkpoint.into_model();
        assert_eq!(model.state, average);
        let read = Checkpoint::from_bytes(&model.to_bytes(), "x").unwrap();
        assert_eq!(read, model);
        let spec = model.header.model.clone();
        let refused = read
            .check_continues("best.fovea", &spec, &model.header.classes, "abc")
            .unwrap_err();
        assert!(refused.to_string().contains("it is a model"));
    }

    #[test]
    fn a_damaged_file_is_refused_with_what_is_wrong() {
        let bytes = example().to_bytes();
        assert!(error(&[]).contains("last.fovea: truncated"));
        assert!(error(&bytes[..bytes.len() - 1]).contains("truncated"));
        assert!(error(&bytes[..100]).contains("truncated"));
        assert!(error(b"not a checkpoint at all").contains("not a checkpoint"));
        let mut changed = bytes.clone();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        assert!(error(&changed).contains("damaged: the checksum does not match"));
        let newer = {
            let mut checkpoint = example();
            checkpoint.header.format = FORMAT_VERSION + 1;
            checkpoint.to_bytes()
        };
        assert!(error(&newer).contains("format 2, this engine reads 1"));
    }

    #[test]
    fn another_model_other_classes_or_other_data_are_refused() {
        let checkpoint = example();
        let classes = checkpoint.header.classes.clone();
        let spec = checkpoint.header.model.clone();
        assert!(
            checkpoint
                .check_continues("x", &spec, &classes, "abc")
                .is_ok()
        );
        let larger = ModelSpec::parse("yolo11s", 2).unwrap();
        for (model, classes, data, rule) in [
            (
                &larger,
                &classes[..],
                "abc",
                "a yolo11n of 2 classes, not a yolo11s of 2",
            ),
            (&spec, &classes[..1], "abc", "classes are others"),
            (&spec, &classes[..], "abd", "pictures or labels changed"),
        ] {
            let error = checkpoint
                .check_continues("x", model, classes, data)
                .unwrap_err();
            assert!(error.to_string().contains(rule), "{error}");
        }
    }
}

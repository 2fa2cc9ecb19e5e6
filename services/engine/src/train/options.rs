//! The arguments of a training run, with the reference trainer's names and defaults.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::freeze::Freeze;
use crate::data::Augmentation;
use crate::data::batches::STRIDE;
use crate::data::cache::{CACHE_BYTES_DEFAULT, CacheKind, CacheOptions};
use crate::loss::Gains;
use crate::models::ModelSpec;
use crate::network::InputShape;
use crate::optim::{self, OptimizerKind, OptimizerSettings};
use crate::{Error, Precision, Result};

/// The longest run.
pub const EPOCHS_MAX: u32 = 100_000;
/// The most threads that prepare batches.
pub const WORKERS_MAX: usize = 64;

/// The longest time limit: about ten years.
const HOURS_MAX: f64 = 100_000.0;
/// Sides may differ by this fraction at most.
const MULTI_SCALE_MAX: f64 = 0.9;
/// Of decoded pictures, in the system's folder of temporary files.
const CACHE_FOLDER: &str = "fovea-pictures";

/// What to train, on what and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainOptions {
    /// A published name, such as `yolo11n`.
    pub model: String,
    /// `data.yaml` or the folder that holds it; not read when the caller brings a data set.
    pub data: PathBuf,
    /// A checkpoint or model file whose weights to start from.
    pub pretrained: Option<PathBuf>,
    pub epochs: u32,
    /// The most hours of the run, which set its epochs anew after each of them; 0 for no limit.
    pub time: f64,
    pub batch: usize,
    /// Pictures that an optimiser step is meant for: a step takes so many batches as come nearest.
    pub nbs: usize,
    /// Side of the pictures; brought to a multiple of the model's stride.
    pub imgsz: usize,
    /// How far the side may differ from batch to batch, as a fraction of it.
    pub multi_scale: f64,
    pub seed: u64,
    /// `auto`, `SGD`, `AdamW` or `MuSGD`. `auto` also chooses `lr0` and `momentum`.
    pub optimizer: String,
    pub lr0: f64,
    /// The last learning rate as a fraction of the first.
    pub lrf: f64,
    pub momentum: f64,
    pub weight_decay: f64,
    pub warmup_epochs: f64,
    pub warmup_momentum: f64,
    pub warmup_bias_lr: f64,
    /// Whether the rate falls along a cosine.
    pub cos_lr: bool,
    /// Stop after so many epochs without a better fitness; 0 never stops.
    pub patience: u32,
    /// Epochs at the end without mosaic.
    pub close_mosaic: u32,
    /// Share of the training pictures to use.
    pub fraction: f64,
    /// Whether to take all classes for one.
    pub single_cls: bool,
    /// How much more rare classes count: with the power of how much rarer they are. 0 for all the same.
    pub cls_pw: f64,
    /// Layers that stay as they are.
    pub freeze: Freeze,
    /// Whether to validate after each epoch.
    pub val: bool,
    /// Overlap above which validation suppresses a box.
    pub iou: f64,
    /// The most boxes of a picture in validation.
    pub max_det: usize,
    /// Keep a checkpoint of its own every so many epochs; 0 keeps none.
    pub save_period: u32,
    /// The most threads that prepare batches.
    pub workers: usize,
    /// Threads of the step; 0 takes all of the machine.
    pub threads: usize,
    /// `f32` or `mixed`.
    pub precision: Precision,
    /// Where decoded pictures are kept: `ram`, `disk` or `none`.
    pub cache: CacheKind,
    /// Memory for decoded pictures, in bytes.
    pub cache_bytes: u64,
    /// The folder for decoded pictures; empty for one in the system's folder of temporary files.
    pub cache_folder: PathBuf,
    /// Refuse a data set with broken images or labels instead of leaving them out.
    pub strict: bool,
    #[serde(flatten)]
    pub gains: Gains,
    #[serde(flatten)]
    pub augmentation: Augmentation,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            model: "yolo11n".into(),
            data: PathBuf::new(),
            pretrained: None,
            epochs: 100,
            time: 0.0,
            batch: 16,
            nbs: optim::NOMINAL_BATCH,
            imgsz: 640,
            multi_scale: 0.0,
            seed: 0,
            optimizer: "auto".into(),
            lr0: 0.01,
            lrf: 0.01,
            momentum: 0.937,
            weight_decay: 0.0005,
            warmup_epochs: 3.0,
            warmup_momentum: 0.8,
            warmup_bias_lr: 0.1,
            cos_lr: false,
            patience: 100,
            close_mosaic: 10,
            fraction: 1.0,
            single_cls: false,
            cls_pw: 0.0,
            freeze: Freeze::default(),
            val: true,
            iou: 0.7,
            max_det: 300,
            save_period: 0,
            workers: 8,
            threads: 0,
            precision: Precision::F32,
            cache: CacheKind::Ram,
            cache_bytes: CACHE_BYTES_DEFAULT,
            cache_folder: PathBuf::new(),
            strict: false,
            gains: Gains::default(),
            augmentation: Augmentation::default(),
        }
    }
}

impl TrainOptions {
    /// Sets one argument from text, as the command line and the contract give it; an unknown name and a value of the
    /// wrong kind are refused by name.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let refuse = |rule: String| Error::Setting {
            name: name.to_owned(),
            rule,
        };
        let mut tree = serde_json::to_value(&*self).map_err(|error| refuse(error.to_string()))?;
        let fields = tree
            .as_object_mut()
            .ok_or_else(|| refuse("no such argument".into()))?;
        let Some(known) = fields.get_mut(name) else {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            return Err(refuse(format!(
                "there is no such argument; there are {}",
                names.join(", ")
            )));
        };
        *known = match (&*known, value) {
            (Value::String(_), text) => Value::String(text.to_owned()),
            (Value::Bool(_), "true" | "True" | "1") => Value::Bool(true),
            (Value::Bool(_), "false" | "False" | "0") => Value::Bool(false),
            (Value::Null, text) => Value::String(text.to_owned()),
            (_, text) => serde_json::from_str(text)
                .ok()
                .filter(Value::is_number)
                .ok_or_else(|| refuse(format!("'{text}' is not what it takes")))?,
        };
        *self = serde_json::from_value(tree).map_err(|error| refuse(error.to_string()))?;
        Ok(())
    }

    /// Refuses arguments that no run can have, naming the argument and the rule.
    pub fn check(&self) -> Result<()> {
        ModelSpec::parse(&self.model, 1)?;
        let mut rounded = self.clone();
        rounded.round_size();
        InputShape::square(rounded.batch, rounded.imgsz).check()?;
        self.augmentation.check()?;
        let refuse = |argument, rule: String| Err(Error::Argument { argument, rule });
        if self.epochs == 0 || self.epochs > EPOCHS_MAX {
            let rule = format!("must be between 1 and {EPOCHS_MAX}, not {}", self.epochs);
            return refuse("epochs", rule);
        }
        if self.workers > WORKERS_MAX {
            return refuse(
                "workers",
                format!("must be at most {WORKERS_MAX}, not {}", self.workers),
            );
        }
        if !(1..=InputShape::BATCH_MAX).contains(&self.nbs) {
            let rule = format!(
                "must be between 1 and {}, not {}",
                InputShape::BATCH_MAX,
                self.nbs
            );
            return refuse("nbs", rule);
        }
        if self.max_det == 0 {
            return refuse("max_det", "must be at least 1".into());
        }
        if !self.optimizer.eq_ignore_ascii_case("auto") {
            OptimizerKind::parse(&self.optimizer)?;
        }
        let gains = &self.gains;
        let ranges = [
            ("lr0", self.lr0, 0.0, 10.0),
            ("lrf", self.lrf, 0.0, 1.0),
            ("momentum", self.momentum, 0.0, 0.9999),
            ("weight_decay", self.weight_decay, 0.0, 1.0),
            (
                "warmup_epochs",
                self.warmup_epochs,
                0.0,
                f64::from(EPOCHS_MAX),
            ),
            ("warmup_momentum", self.warmup_momentum, 0.0, 0.9999),
            ("warmup_bias_lr", self.warmup_bias_lr, 0.0, 10.0),
            ("time", self.time, 0.0, HOURS_MAX),
            ("multi_scale", self.multi_scale, 0.0, MULTI_SCALE_MAX),
            ("cls_pw", self.cls_pw, 0.0, 1.0),
            ("fraction", self.fraction, f64::MIN_POSITIVE, 1.0),
            ("iou", self.iou, 0.0, 1.0),
            ("box", f64::from(gains.boxes), 0.0, 1e6),
            ("cls", f64::from(gains.classes), 0.0, 1e6),
            ("dfl", f64::from(gains.distances), 0.0, 1e6),
            ("pose", f64::from(gains.keypoints), 0.0, 1e6),
            ("kobj", f64::from(gains.visibility), 0.0, 1e6),
            ("rle", f64::from(gains.likelihood), 0.0, 1e6),
            ("angle", f64::from(gains.angles), 0.0, 1e6),
        ];
        for (argument, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                return refuse(argument, format!("{value} is not between {low} and {high}"));
            }
        }
        Ok(())
    }

    /// Takes the side of pictures that published models of the task have, for who didn't ask for another.
    pub fn take_side_of_task(&mut self) -> Result<()> {
        self.imgsz = ModelSpec::parse(&self.model, 1)?.task.image_side();
        Ok(())
    }

    /// Brings the side of the pictures to the next multiple of the stride, and says so where it wasn't one.
    pub fn round_size(&mut self) -> Option<String> {
        let rounded = self.imgsz.checked_next_multiple_of(STRIDE)?;
        if rounded == self.imgsz || self.imgsz == 0 {
            return None;
        }
        let note = format!(
            "imgsz {} is no multiple of {STRIDE}, the model's stride: {rounded} is taken",
            self.imgsz
        );
        self.imgsz = rounded;
        Some(note)
    }

    /// Returns how many batches go into an optimiser step after the warm-up.
    pub fn accumulate(&self) -> usize {
        let ratio = self.nbs as f64 / self.batch.max(1) as f64;
        ratio.round_ties_even().max(1.0) as usize
    }

    /// Returns the weight decay for steps of more or fewer pictures than they are meant for.
    pub fn scaled_weight_decay(&self) -> f64 {
        self.weight_decay * (self.batch * self.accumulate()) as f64 / self.nbs as f64
    }

    /// Returns where decoded pictures are kept.
    pub fn cache(&self) -> CacheOptions {
        match self.cache {
            CacheKind::Ram => CacheOptions::Ram {
                limit_bytes: self.cache_bytes,
            },
            CacheKind::Disk if self.cache_folder.as_os_str().is_empty() => CacheOptions::Disk {
                folder: std::env::temp_dir().join(CACHE_FOLDER),
            },
            CacheKind::Disk => CacheOptions::Disk {
                folder: self.cache_folder.clone(),
            },
            CacheKind::None => CacheOptions::None,
        }
    }

    /// Returns the optimiser for a data set of `images` pictures and `classes` classes.
    pub fn optimizer_settings(&self, images: usize, classes: usize) -> Result<OptimizerSettings> {
        if self.optimizer.eq_ignore_ascii_case("auto") {
            return Ok(optim::auto(
                images,
                self.batch.max(self.nbs),
                self.epochs as usize,
                classes,
            ));
        }
        Ok(OptimizerSettings {
            kind: OptimizerKind::parse(&self.optimizer)?,
            learning_rate: self.lr0,
            momentum: self.momentum,
            warmup_bias_learning_rate: self.warmup_bias_lr,
        })
    }

    /// With a time limit, writes down what `auto` chooses: it depends on the epochs, which will change.
    pub fn settle_optimizer(&mut self, images: usize, classes: usize) -> Result<()> {
        if self.time > 0.0 {
            let settings = self.optimizer_settings(images, classes)?;
            self.optimizer = settings.kind.name().into();
            self.lr0 = settings.learning_rate;
            self.momentum = settings.momentum;
            self.warmup_bias_lr = settings.warmup_bias_learning_rate;
        }
        Ok(())
    }

    /// Returns the first epoch without mosaic, counted from 0.
    pub fn close_mosaic_at(&self) -> u32 {
        if self.close_mosaic == 0 {
            u32::MAX
        } else {
            self.epochs.saturating_sub(self.close_mosaic)
        }
    }

    /// Returns how many threads prepare batches on a machine of `cores` cores: the step needs them more.
    pub fn loader_threads(&self, cores: usize) -> usize {
        self.workers.min(cores / CORES_PER_WORKER).max(1)
    }
}

/// A loader thread prepares pictures several times faster than so many cores train on them.
const CORES_PER_WORKER: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_set_from_text_by_their_names() {
        let mut options = TrainOptions::default();
        for (name, value) in [
            ("model", "yolo11s"),
            ("epochs", "7"),
            ("lr0", "0.5"),
            ("cos_lr", "true"),
            ("mosaic", "0.25"),
            ("box", "5"),
            ("data", "some/folder"),
        ] {
            options.set(name, value).unwrap();
        }
        assert_eq!(
            (options.model.as_str(), options.epochs, options.lr0),
            ("yolo11s", 7, 0.5)
        );
        assert!(options.cos_lr && options.data.ends_with("folder"));
        assert_eq!(
            (options.augmentation.mosaic, options.gains.boxes),
            (0.25, 5.0)
        );
        for (name, value, words) in [
            ("mosiac", "1", "there is no such argument"),
            ("epochs", "many", "'many' is not what it takes"),
            ("epochs", "-1", "epochs"),
            ("cos_lr", "perhaps", "perhaps"),
        ] {
            let refused = options.set(name, value).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn the_defaults_pass_and_round_trip_with_flat_names() {
        let options = TrainOptions::default();
        options.check().unwrap();
        let text = serde_yaml::to_string(&options).unwrap();
        for line in [
            "model: yolo11n",
            "imgsz: 640",
            "box: 7.5",
            "hsv_s: 0.7",
            "close_mosaic: 10",
        ] {
            assert!(
                text.lines().any(|seen| seen == line),
                "{line} is not in\n{text}"
            );
        }
        assert_eq!(
            serde_yaml::from_str::<TrainOptions>(&text).unwrap(),
            options
        );
        assert_eq!(serde_json::from_str::<TrainOptions>("{}").unwrap(), options);
    }

    #[test]
    fn each_argument_out_of_range_is_named() {
        type Change = fn(&mut TrainOptions);
        let cases: [(&str, Change); 9] = [
            ("nbs", |options| options.nbs = 0),
            ("epochs", |options| options.epochs = 0),
            ("batch", |options| options.batch = 0),
            ("imgsz", |options| options.imgsz = 0),
            ("optimizer", |options| options.optimizer = "Magic".into()),
            ("lr0", |options| options.lr0 = f64::NAN),
            ("box", |options| options.gains.boxes = -1.0),
            ("mosaic", |options| options.augmentation.mosaic = 2.0),
            ("unknown model", |options| options.model = "yolo99".into()),
        ];
        for (name, change) in cases {
            let mut options = TrainOptions::default();
            change(&mut options);
            let error = options.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{name}: {error}");
        }
    }

    #[test]
    fn a_side_that_is_no_multiple_of_the_stride_is_rounded_up_and_told() {
        let mut options = TrainOptions {
            imgsz: 333,
            ..TrainOptions::default()
        };
        options.check().unwrap();
        let note = options.round_size().unwrap();
        assert_eq!(options.imgsz, 352);
        assert!(note.contains("333") && note.contains("352"), "{note}");
        assert_eq!(options.round_size(), None);
    }

    #[test]
    fn steps_take_the_batches_that_come_nearest_to_what_they_are_meant_for() {
        for (batch, nbs, accumulate, decay) in [
            (16, 64, 4, 0.0005),
            (5, 64, 13, 0.000_507_812_5),
            (128, 64, 1, 0.001),
            (4, 4, 1, 0.0005),
        ] {
            let options = TrainOptions {
                batch,
                nbs,
                ..TrainOptions::default()
            };
            assert_eq!(options.accumulate(), accumulate);
            assert!((options.scaled_weight_decay() - decay).abs() < 1e-12);
            if nbs == optim::NOMINAL_BATCH {
                let nominal = optim::scaled_weight_decay(0.0005, batch);
                assert_eq!(options.scaled_weight_decay(), nominal);
            }
        }
    }

    #[test]
    fn caches_and_frozen_layers_are_set_from_text() {
        let mut options = TrainOptions::default();
        for (name, value) in [
            ("cache", "disk"),
            ("freeze", "10"),
            ("auto_augment", "none"),
            ("single_cls", "true"),
            ("time", "0.5"),
        ] {
            options.set(name, value).unwrap();
        }
        options.check().unwrap();
        assert!(options.freeze.holds("model.9.cv1.conv.weight"));
        assert!(
            matches!(options.cache(), CacheOptions::Disk { folder } if folder.ends_with(CACHE_FOLDER))
        );
        assert!(
            options
                .set("cache", "tape")
                .unwrap_err()
                .to_string()
                .starts_with("cache")
        );
        assert!(
            options
                .set("freeze", "head")
                .unwrap_err()
                .to_string()
                .contains("neither")
        );
    }

    #[test]
    fn the_side_of_pictures_is_that_of_the_task() {
        for (model, side) in [("yolo11n-cls", 224), ("yolo26n", 640), ("yolo11n-seg", 640)] {
            let mut options = TrainOptions {
                model: model.into(),
                ..TrainOptions::default()
            };
            options.take_side_of_task().unwrap();
            assert_eq!(options.imgsz, side);
        }
    }

    #[test]
    fn mosaic_closes_so_many_epochs_before_the_end() {
        let mut options = TrainOptions {
            epochs: 60,
            ..TrainOptions::default()
        };
        assert_eq!(options.close_mosaic_at(), 50);
        options.close_mosaic = 0;
        assert_eq!(options.close_mosaic_at(), u32::MAX);
        options.epochs = 5;
        options.close_mosaic = 10;
        assert_eq!(options.close_mosaic_at(), 0);
    }
}

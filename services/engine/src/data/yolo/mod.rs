//! Reads a data set in the YOLO layout: `data.yaml`, image folders or lists, and label files beside them.

mod description;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use rayon::prelude::*;

use self::description::{Description, find_description};
use super::decode::{self, Source};
use super::labels::{self, LABEL_BYTES_MAX, RowFormat};
use super::{Dataset, Sample};
use crate::{Error, Result};

/// File name endings of images, also of those this build refuses by content.
const IMAGE_ENDINGS: [&str; 13] = [
    "avif", "bmp", "dng", "heic", "heif", "jp2", "jpeg", "jpg", "mpo", "png", "tif", "tiff", "webp",
];
/// The most images of a split.
pub const IMAGES_MAX: usize = 10_000_000;
/// How deep folders of images may be nested.
pub(super) const DEPTH_MAX: usize = 32;
/// The largest `data.yaml` and the largest list of images.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// What to do with an image or label file that breaks a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strictness {
    /// Refuse the data set, naming file, line and rule.
    Refuse,
    /// Leave the image or the row of labels out, count it and say why.
    #[default]
    LeaveOut,
}

/// What reading a data set found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Images found, also those left out.
    pub images: usize,
    /// Images without a label file, which count as background.
    pub unlabelled: usize,
    /// Label rows that were said before in the same file.
    pub duplicates: usize,
    /// Boxes without area.
    pub empty_boxes: usize,
    /// Images left out: place and rule.
    pub left_out: Vec<(String, String)>,
    /// Label rows left out, whose images stay with their other rows: place and rule.
    pub rows_left_out: Vec<(String, String)>,
    /// What was taken another way than written, in words.
    pub notes: Vec<String>,
}

/// Reads the data set described by `path`: a YAML file, or a folder that holds one.
pub fn open(path: &Path, strictness: Strictness) -> Result<(Dataset, Report)> {
    let yaml = find_description(path)?;
    let mut report = Report::default();
    let description = Description::read(&yaml, &mut report)?;
    let mut dataset = Dataset {
        classes: description.classes.clone(),
        keypoints: description.keypoints.clone(),
        ..Dataset::default()
    };
    dataset.train = description.split(&description.train, strictness, &mut report)?;
    dataset.val = description.split(&description.val, strictness, &mut report)?;
    dataset.test = description.split(&description.test, strictness, &mut report)?;
    for (name, samples) in [("train", &dataset.train), ("val", &dataset.val)] {
        if samples.is_empty() {
            return Err(description.refuse(format!("the {name} split holds no usable image")));
        }
    }
    Ok((dataset, report))
}

impl Description {
    fn split(
        &self,
        entries: &[PathBuf],
        strictness: Strictness,
        report: &mut Report,
    ) -> Result<Vec<Sample>> {
        let mut images = Vec::new();
        for entry in entries {
            if entry.is_dir() {
                list_images(entry, 0, &mut images)?;
            } else {
                self.list_file(entry, &mut images)?;
            }
        }
        images.sort();
        images.dedup();
        let outcomes: Vec<Result<Read>> = images
            .par_iter()
            .map(|image| self.read_sample(image, strictness))
            .collect();
        let mut samples = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            report.images += 1;
            match outcome {
                Ok(read) => {
                    report.unlabelled += usize::from(read.unlabelled);
                    report.duplicates += read.duplicates;
                    report.empty_boxes += read.empty_boxes;
                    report.rows_left_out.extend(read.rows_left_out);
                    samples.push(read.sample);
                }
                Err(Error::Data { place, rule }) if strictness == Strictness::LeaveOut => {
                    report.left_out.push((place, rule));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(samples)
    }

    fn list_file(&self, list: &Path, images: &mut Vec<PathBuf>) -> Result<()> {
        if ending(list).is_some_and(|ending| IMAGE_ENDINGS.contains(&ending.as_str())) {
            images.push(list.to_owned());
            return Ok(());
        }
        let folder = list.parent().unwrap_or(Path::new("."));
        for line in read_text(list)?.lines().map(str::trim) {
            if line.is_empty() {
                continue;
            }
            let beside = folder.join(line);
            let path = if line.starts_with("./") || beside.exists() {
                beside
            } else {
                self.resolve(line).map_or(beside, |(path, _)| path)
            };
            push_image(path, images)?;
        }
        Ok(())
    }

    fn read_sample(&self, image: &Path, strictness: Strictness) -> Result<Read> {
        let name = self.name_of(image);
        let source = Source::File(image.to_owned());
        decode::dimensions(&name, &source)?;
        let label_path = label_path(image);
        let mut read = Read {
            sample: Sample {
                name,
                source,
                labels: Vec::new(),
            },
            unlabelled: false,
            duplicates: 0,
            empty_boxes: 0,
            rows_left_out: Vec::new(),
        };
        let bytes = match std::fs::metadata(&label_path) {
            Ok(metadata) if metadata.len() > LABEL_BYTES_MAX => {
                return Err(Error::Data {
                    place: self.name_of(&label_path),
                    rule: format!("a label file may have {LABEL_BYTES_MAX} bytes"),
                });
            }
            Ok(_) => {
                std::fs::read(&label_path).map_err(Error::io(label_path.display().to_string()))?
            }
            Err(_) => {
                read.unlabelled = true;
                return Ok(read);
            }
        };
        let format = RowFormat {
            class_count: self.classes.len(),
            keypoints: self.keypoints.as_ref().map(|layout| layout.shape),
        };
        let place = |line: usize| match line {
            0 => self.name_of(&label_path),
            line => format!("{}:{line}", self.name_of(&label_path)),
        };
        let parsed = labels::parse(&bytes, format, strictness).map_err(|refusal| Error::Data {
            place: place(refusal.line),
            rule: refusal.rule,
        })?;
        // An image all of whose rows are bad would be learnt as background.
        if parsed.labels.is_empty()
            && let Some(first) = parsed.left_out.first()
        {
            return Err(Error::Data {
                place: place(first.line),
                rule: format!("{}; no row of the file can be used", first.rule),
            });
        }
        let rows = parsed.left_out.into_iter();
        read.rows_left_out = rows.map(|row| (place(row.line), row.rule)).collect();
        read.sample.labels = parsed.labels;
        read.duplicates = parsed.duplicates;
        read.empty_boxes = parsed.empty_boxes;
        Ok(read)
    }

    /// Returns the path inside the data set, with forward slashes.
    fn name_of(&self, path: &Path) -> String {
        let inside = self
            .roots
            .iter()
            .find_map(|root| path.strip_prefix(root).ok())
            .unwrap_or(path);
        inside.to_string_lossy().replace('\\', "/")
    }
}

struct Read {
    sample: Sample,
    unlabelled: bool,
    duplicates: usize,
    empty_boxes: usize,
    rows_left_out: Vec<(String, String)>,
}

/// Returns where an image's labels are: the last folder called `images` becomes `labels`, the ending `.txt`.
pub fn label_path(image: &Path) -> PathBuf {
    let parts: Vec<Component<'_>> = image.components().collect();
    let folder = parts
        .iter()
        .rposition(|part| part.as_os_str() == "images")
        .filter(|&index| index + 1 < parts.len());
    let path: PathBuf = parts
        .iter()
        .enumerate()
        .map(|(index, part)| {
            if Some(index) == folder {
                OsStr::new("labels")
            } else {
                part.as_os_str()
            }
        })
        .collect();
    path.with_extension("txt")
}

/// Adds the images of a folder and of those in it.
pub(super) fn list_images(folder: &Path, depth: usize, images: &mut Vec<PathBuf>) -> Result<()> {
    let place = folder.display().to_string();
    if depth > DEPTH_MAX {
        let rule = format!("folders of images may be {DEPTH_MAX} deep");
        return Err(Error::Data { place, rule });
    }
    for entry in std::fs::read_dir(folder).map_err(Error::io(&place))? {
        let path = entry.map_err(Error::io(&place))?.path();
        if path.is_dir() {
            list_images(&path, depth + 1, images)?;
        } else if ending(&path).is_some_and(|ending| IMAGE_ENDINGS.contains(&ending.as_str())) {
            push_image(path, images)?;
        }
    }
    Ok(())
}

fn push_image(path: PathBuf, images: &mut Vec<PathBuf>) -> Result<()> {
    if images.len() == IMAGES_MAX {
        return Err(Error::Data {
            place: path.display().to_string(),
            rule: format!("a split may have {IMAGES_MAX} images"),
        });
    }
    images.push(path);
    Ok(())
}

pub(super) fn ending(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_ascii_lowercase())
}

fn read_text(path: &Path) -> Result<String> {
    let place = path.display().to_string();
    let size = std::fs::metadata(path).map_err(Error::io(&place))?.len();
    if size > TEXT_BYTES_MAX {
        let rule = format!("a text file may have {TEXT_BYTES_MAX} bytes");
        return Err(Error::Data { place, rule });
    }
    let bytes = std::fs::read(path).map_err(Error::io(&place))?;
    let text = String::from_utf8(bytes).map_err(|error| Error::Data {
        place,
        rule: format!(
            "not UTF-8 text at byte {}",
            error.utf8_error().valid_up_to()
        ),
    })?;
    Ok(text
        .strip_prefix('\u{feff}')
        .map(str::to_owned)
        .unwrap_or(text))
}

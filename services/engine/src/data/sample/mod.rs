//! A data set out of nothing: seeded pictures of shaded shapes on textured ground, with exact boxes.
//!
//! It needs no download, has any number of pictures of any size, and can be learnt, so it serves the demo, tests
//! and load generators. Picture `i` of a seed is always the same, whatever the number of pictures.

mod draw;
mod shape;

use std::io::{Cursor, Seek, Write};
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use zip::write::SimpleFileOptions;

use super::decode::Source;
use super::labels::Label;
use super::picture::Picture;
use super::{Dataset, Sample};
use crate::{Error, Result};

pub use shape::NAMES as CLASSES;

/// The most pictures of a sample data set.
pub const IMAGES_MAX: u32 = 1_000_000;
const SIDE_MIN: usize = 32;
const SIDE_MAX: usize = 8192;
const JPEG_QUALITY: u8 = 90;

/// What to draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampleOptions {
    pub seed: u64,
    /// Pictures in all splits together.
    pub images: u32,
    pub width: usize,
    pub height: usize,
    /// Shapes to tell apart, 1 to the number of [`CLASSES`].
    pub classes: usize,
    /// The most objects in a picture.
    pub objects_max: u32,
    /// Share of pictures for validation and for the test.
    pub val_share: f64,
    pub test_share: f64,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            images: 120,
            width: 640,
            height: 480,
            classes: 4,
            objects_max: 8,
            val_share: 0.2,
            test_share: 0.1,
        }
    }
}

impl SampleOptions {
    /// Refuses values out of range.
    pub fn check(&self) -> Result<()> {
        let refuse = |argument, rule: String| Err(Error::Argument { argument, rule });
        if !(2..=IMAGES_MAX).contains(&self.images) {
            return refuse(
                "images",
                format!("{} is not between 2 and {IMAGES_MAX}", self.images),
            );
        }
        for side in [self.width, self.height] {
            if !(SIDE_MIN..=SIDE_MAX).contains(&side) {
                return refuse(
                    "size",
                    format!("{side} is not between {SIDE_MIN} and {SIDE_MAX}"),
                );
            }
        }
        if !(1..=CLASSES.len()).contains(&self.classes) {
            let rule = format!("{} is not between 1 and {}", self.classes, CLASSES.len());
            return refuse("classes", rule);
        }
        if self.objects_max == 0 || self.objects_max > draw::OBJECTS_MAX {
            let rule = format!(
                "{} is not between 1 and {}",
                self.objects_max,
                draw::OBJECTS_MAX
            );
            return refuse("objects", rule);
        }
        let shares = [self.val_share, self.test_share];
        if shares.iter().any(|share| !(0.0..1.0).contains(share)) || shares[0] + shares[1] >= 1.0 {
            return refuse(
                "splits",
                "shares are 0 or more and leave something to train on".into(),
            );
        }
        Ok(())
    }

    /// Returns picture `index` and its labels.
    pub fn picture(&self, index: u32) -> (Picture, Vec<Label>) {
        draw::picture(self, index)
    }

    /// Returns the split of picture `index`: the last ones are for validation and the test.
    fn split(&self, index: u32) -> &'static str {
        let share = |share: f64| (f64::from(self.images) * share).round() as u32;
        let val = share(self.val_share).max(1);
        let test = share(self.test_share).min(self.images - val - 1);
        if index >= self.images - test {
            "test"
        } else if index >= self.images - test - val {
            "val"
        } else {
            "train"
        }
    }

    fn description(&self) -> String {
        let mut text = String::from("train: images/train\nval: images/val\n");
        if self.split(self.images - 1) == "test" {
            text.push_str("test: images/test\n");
        }
        text.push_str("names:\n");
        for (index, name) in CLASSES[..self.classes].iter().enumerate() {
            text.push_str(&format!("  {index}: {name}\n"));
        }
        text
    }

    /// Calls `file` with each file of the data set, path and content.
    fn files(&self, mut file: impl FnMut(&str, &[u8]) -> Result<()>) -> Result<()> {
        self.check()?;
        file("data.yaml", self.description().as_bytes())?;
        for index in 0..self.images {
            let (picture, labels) = self.picture(index);
            let stem = format!("{}/{index:06}", self.split(index));
            file(&format!("images/{stem}.jpg"), &encode(&picture)?)?;
            file(&format!("labels/{stem}.txt"), rows(&labels).as_bytes())?;
        }
        Ok(())
    }
}

/// Writes the data set as a folder in the YOLO layout; `progress` hears the number of files written.
pub fn write_folder(
    options: &SampleOptions,
    folder: &Path,
    mut progress: impl FnMut(u32),
) -> Result<()> {
    let mut written = 0;
    options.files(|path, content| {
        let path = folder.join(path);
        let place = path.display().to_string();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(Error::io(&place))?;
        }
        std::fs::write(&path, content).map_err(Error::io(&place))?;
        written += 1;
        progress(written);
        Ok(())
    })
}

/// Writes the data set as a zip archive in the YOLO layout; the same options give the same bytes.
pub fn write_zip(
    options: &SampleOptions,
    target: impl Write + Seek,
    mut progress: impl FnMut(u32),
) -> Result<()> {
    let place = "sample archive";
    let failed = |error: zip::result::ZipError| Error::io(place)(std::io::Error::other(error));
    let mut archive = zip::ZipWriter::new(target);
    let mut written = 0;
    options.files(|path, content| {
        // JPEG doesn't get smaller.
        let method = if path.ends_with(".jpg") {
            zip::CompressionMethod::Stored
        } else {
            zip::CompressionMethod::Deflated
        };
        let entry = SimpleFileOptions::default()
            .compression_method(method)
            .last_modified_time(zip::DateTime::default());
        archive.start_file(path, entry).map_err(failed)?;
        archive.write_all(content).map_err(Error::io(place))?;
        written += 1;
        progress(written);
        Ok(())
    })?;
    archive.finish().map_err(failed)?;
    Ok(())
}

/// Returns the data set in memory.
pub fn dataset(options: &SampleOptions) -> Result<Dataset> {
    options.check()?;
    let mut dataset = Dataset {
        classes: CLASSES[..options.classes]
            .iter()
            .map(|&name| name.into())
            .collect(),
        ..Dataset::default()
    };
    for index in 0..options.images {
        let (picture, labels) = options.picture(index);
        let split = options.split(index);
        let sample = Sample {
            name: format!("images/{split}/{index:06}.jpg"),
            source: Source::Bytes(encode(&picture)?.into()),
            labels,
        };
        match split {
            "train" => dataset.train.push(sample),
            "val" => dataset.val.push(sample),
            _ => dataset.test.push(sample),
        }
    }
    Ok(dataset)
}

fn encode(picture: &Picture) -> Result<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY)
        .encode(
            picture.pixels(),
            picture.width() as u32,
            picture.height() as u32,
            image::ExtendedColorType::Rgb8,
        )
        .map_err(|error| Error::io("sample picture")(std::io::Error::other(error)))?;
    Ok(bytes.into_inner())
}

fn rows(labels: &[Label]) -> String {
    labels
        .iter()
        .map(
            |Label {
                 class,
                 bounds: [x, y, width, height],
                 ..
             }| { format!("{class} {x:.6} {y:.6} {width:.6} {height:.6}\n") },
        )
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::yolo::{self, Strictness};
    use super::*;

    const SMALL: SampleOptions = SampleOptions {
        seed: 3,
        images: 10,
        width: 96,
        height: 64,
        classes: 4,
        objects_max: 5,
        val_share: 0.2,
        test_share: 0.1,
    };

    #[test]
    fn a_written_folder_opens_strictly_and_says_what_was_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = 0;
        write_folder(&SMALL, folder.path(), |written| files = written).unwrap();
        assert_eq!(files, 21);
        let (read, report) = yolo::open(folder.path(), Strictness::Refuse).unwrap();
        assert_eq!(
            (read.train.len(), read.val.len(), read.test.len()),
            (7, 2, 1)
        );
        assert_eq!(
            (report.images, report.unlabelled, report.duplicates),
            (10, 0, 0)
        );
        let drawn = dataset(&SMALL).unwrap();
        assert_eq!(read.classes, drawn.classes);
        for (read, drawn) in read.train.iter().zip(&drawn.train) {
            assert_eq!(read.name, drawn.name);
            assert_eq!(read.labels.len(), drawn.labels.len());
            for (read, drawn) in read.labels.iter().zip(&drawn.labels) {
                assert_eq!(read.class, drawn.class);
                for (a, b) in read.bounds.iter().zip(drawn.bounds) {
                    assert!((a - b).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn the_same_options_give_the_same_archive_and_another_seed_another() {
        let archive = |options: &SampleOptions| {
            let mut bytes = Cursor::new(Vec::new());
            write_zip(options, &mut bytes, |_| ()).unwrap();
            bytes.into_inner()
        };
        assert_eq!(archive(&SMALL), archive(&SMALL));
        assert_ne!(
            archive(&SMALL),
            archive(&SampleOptions { seed: 4, ..SMALL })
        );
    }

    #[test]
    fn a_picture_does_not_depend_on_how_many_there_are() {
        let more = SampleOptions {
            images: 500,
            ..SMALL
        };
        assert_eq!(SMALL.picture(6), more.picture(6));
    }

    #[test]
    fn boxes_hold_their_shape_and_lie_inside() {
        for index in 0..10 {
            let (_, labels) = SMALL.picture(index);
            assert!((1..=5).contains(&labels.len()));
            for label in labels {
                let [x, y, width, height] = label.bounds;
                assert!(width * 96.0 >= 8.0 && height * 64.0 >= 8.0);
                assert!(x - width / 2.0 >= 0.0 && x + width / 2.0 <= 1.0);
                assert!(y - height / 2.0 >= 0.0 && y + height / 2.0 <= 1.0);
            }
        }
    }

    #[test]
    fn two_pictures_are_enough_and_options_out_of_range_are_refused() {
        let two = SampleOptions { images: 2, ..SMALL };
        let dataset = dataset(&two).unwrap();
        assert_eq!(
            (dataset.train.len(), dataset.val.len(), dataset.test.len()),
            (1, 1, 0)
        );
        for (options, argument) in [
            (SampleOptions { images: 1, ..SMALL }, "images"),
            (SampleOptions { width: 9, ..SMALL }, "size"),
            (
                SampleOptions {
                    classes: 99,
                    ..SMALL
                },
                "classes",
            ),
            (
                SampleOptions {
                    objects_max: 0,
                    ..SMALL
                },
                "objects",
            ),
            (
                SampleOptions {
                    val_share: 0.9,
                    test_share: 0.1,
                    ..SMALL
                },
                "splits",
            ),
        ] {
            let error = options.check().unwrap_err().to_string();
            assert!(error.starts_with(argument), "{error}");
        }
    }
}

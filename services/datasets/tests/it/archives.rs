//! Archives that tests import.

use std::io::{Cursor, Write as _};

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// Returns a zip of these files.
pub fn zip(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        writer
            .start_file(*name, SimpleFileOptions::default())
            .unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Returns a picture that differs with its number.
pub fn picture(number: u8) -> Vec<u8> {
    let pixels = RgbImage::from_fn(64, 48, |x, y| Rgb([number, (x * 3) as u8, (y * 5) as u8]));
    let mut bytes = Cursor::new(Vec::new());
    DynamicImage::ImageRgb8(pixels)
        .write_to(&mut bytes, ImageFormat::Png)
        .unwrap();
    bytes.into_inner()
}

pub const YAML: &str = "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n";

/// Returns the files of a good dataset: two training pictures, one of them background, and one for validation.
pub fn good() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("data.yaml", YAML.into()),
        ("images/train/a.png", picture(1)),
        ("images/train/b.png", picture(2)),
        ("images/val/v.png", picture(3)),
        (
            "labels/train/a.txt",
            b"0 0.5 0.5 0.2 0.4\n1 0.25 0.25 0.1 0.1\n".to_vec(),
        ),
        ("labels/val/v.txt", b"1 0.5 0.5 0.5 0.5\n".to_vec()),
    ]
}

/// Returns the good dataset with one file put in its place, or added.
pub fn good_but(name: &'static str, bytes: impl Into<Vec<u8>>) -> Vec<u8> {
    let mut files = good();
    files.retain(|(known, _)| *known != name);
    files.push((name, bytes.into()));
    zip(&files)
}

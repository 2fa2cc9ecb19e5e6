//! From the bytes of an image file to an RGB picture, upright and whole, or a reason why not.

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::PathBuf;
use std::sync::Arc;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::picture::Picture;
use crate::{Error, Result};

/// The most pixels of one image; more is refused from the header, before memory is taken.
pub const PIXELS_MAX: u64 = 178_956_970;
/// The largest image file that is read.
pub const FILE_BYTES_MAX: u64 = 512 << 20;
/// Images with a side shorter than this are refused.
pub const SIDE_MIN: usize = 10;

/// Where the bytes of an image are.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file that is read when the image is needed.
    File(PathBuf),
    /// The file's content.
    Bytes(Arc<[u8]>),
}

impl Source {
    /// Reads the whole file.
    pub fn read(&self) -> Result<Arc<[u8]>> {
        match self {
            Self::Bytes(bytes) => Ok(Arc::clone(bytes)),
            Self::File(path) => {
                let place = path.display().to_string();
                let file = File::open(path).map_err(Error::io(&place))?;
                let mut bytes = Vec::new();
                file.take(FILE_BYTES_MAX + 1)
                    .read_to_end(&mut bytes)
                    .map_err(Error::io(&place))?;
                if bytes.len() as u64 > FILE_BYTES_MAX {
                    let rule = format!("an image file may have {FILE_BYTES_MAX} bytes");
                    return Err(Error::Data { place, rule });
                }
                Ok(bytes.into())
            }
        }
    }

    /// Returns the number of bytes.
    pub fn size_bytes(&self) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
            Self::File(path) => Ok(std::fs::metadata(path)
                .map_err(Error::io(path.display().to_string()))?
                .len()),
        }
    }
}

/// Decodes an image file; `name` is what errors call it.
pub fn decode(name: &str, bytes: &[u8]) -> Result<Picture> {
    let refuse = |rule: String| Error::Data {
        place: name.to_owned(),
        rule,
    };
    let format = format_of(bytes).map_err(refuse)?;
    let (image, orientation) = if format == ImageFormat::Jpeg {
        decode_jpeg(bytes).map_err(refuse)?
    } else {
        let mut decoder = ImageReader::with_format(Cursor::new(bytes), format)
            .into_decoder()
            .map_err(|error| refuse(error.to_string()))?;
        let (width, height) = decoder.dimensions();
        check_size(u64::from(width), u64::from(height)).map_err(refuse)?;
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let image =
            DynamicImage::from_decoder(decoder).map_err(|error| refuse(error.to_string()))?;
        (image, orientation)
    };
    let mut image = image;
    image.apply_orientation(orientation);
    let image = image.into_rgb8();
    Ok(Picture::new(
        image.width() as usize,
        image.height() as usize,
        image.into_raw(),
    ))
}

/// Reads width and height, upright, from an image's header.
pub fn dimensions(name: &str, source: &Source) -> Result<(usize, usize)> {
    match source {
        Source::Bytes(bytes) => dimensions_of(name, Cursor::new(&bytes[..])),
        Source::File(path) => {
            let file = File::open(path).map_err(Error::io(path.display().to_string()))?;
            dimensions_of(name, BufReader::new(file))
        }
    }
}

fn dimensions_of(
    name: &str,
    mut reader: impl std::io::BufRead + std::io::Seek,
) -> Result<(usize, usize)> {
    let refuse = |rule: String| Error::Data {
        place: name.to_owned(),
        rule,
    };
    let mut start = Vec::new();
    reader
        .by_ref()
        .take(SNIFF_BYTES)
        .read_to_end(&mut start)
        .and_then(|_| reader.rewind())
        .map_err(Error::io(name))?;
    let format = format_of(&start).map_err(refuse)?;
    let mut decoder = ImageReader::with_format(reader, format)
        .into_decoder()
        .map_err(|error| refuse(error.to_string()))?;
    let (width, height) = decoder.dimensions();
    check_size(u64::from(width), u64::from(height)).map_err(refuse)?;
    let turned = matches!(
        decoder.orientation().unwrap_or(Orientation::NoTransforms),
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    );
    let (width, height) = (width as usize, height as usize);
    Ok(if turned {
        (height, width)
    } else {
        (width, height)
    })
}

const SNIFF_BYTES: u64 = 64;

/// Tells the format by content: names lie.
fn format_of(bytes: &[u8]) -> Result<ImageFormat, String> {
    if bytes.is_empty() {
        return Err("the file is empty".into());
    }
    match image::guess_format(bytes) {
        Ok(
            format @ (ImageFormat::Jpeg
            | ImageFormat::Png
            | ImageFormat::WebP
            | ImageFormat::Bmp
            | ImageFormat::Tiff),
        ) => Ok(format),
        Ok(ImageFormat::Gif) => {
            Err("GIF is not supported; use JPEG, PNG, WebP, BMP or TIFF".into())
        }
        Ok(other) => Err(format!(
            "{other:?} is not supported; use JPEG, PNG, WebP, BMP or TIFF"
        )),
        Err(_) if bytes.get(4..8) == Some(b"ftyp") => {
            Err("HEIC and AVIF are not supported; use JPEG, PNG, WebP, BMP or TIFF".into())
        }
        Err(_) => Err("not an image".into()),
    }
}

fn check_size(width: u64, height: u64) -> Result<(), String> {
    if width.saturating_mul(height) > PIXELS_MAX {
        return Err(format!(
            "{width}×{height} is more than {PIXELS_MAX} pixels, the most an image may have"
        ));
    }
    if width.min(height) < SIDE_MIN as u64 {
        return Err(format!(
            "{width}×{height} has a side shorter than {SIDE_MIN} pixels"
        ));
    }
    Ok(())
}

fn decode_jpeg(bytes: &[u8]) -> Result<(DynamicImage, Orientation), String> {
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::from(u16::MAX))
        .set_max_height(usize::from(u16::MAX))
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let explain = |error: zune_jpeg::errors::DecodeErrors| format!("damaged JPEG: {error:?}");
    decoder.decode_headers().map_err(explain)?;
    let (width, height) = decoder
        .dimensions()
        .ok_or_else(|| "damaged JPEG: no size".to_owned())?;
    check_size(width as u64, height as u64)?;
    // The decoder would fill what is missing with grey, and that must not be learnt.
    if !has_end_marker(bytes) {
        return Err("truncated JPEG: the end marker is missing".into());
    }
    let pixels = decoder.decode().map_err(explain)?;
    let orientation = decoder
        .exif()
        .and_then(|chunk| Orientation::from_exif_chunk(chunk))
        .unwrap_or(Orientation::NoTransforms);
    let (width, height) = (width as u32, height as u32);
    let image = match pixels.len() as u64 / (u64::from(width) * u64::from(height)) {
        1 => image::GrayImage::from_raw(width, height, pixels).map(DynamicImage::from),
        3 => image::RgbImage::from_raw(width, height, pixels).map(DynamicImage::from),
        _ => None,
    };
    let image = image.ok_or_else(|| "JPEG with an unknown colour space".to_owned())?;
    Ok((image, orientation))
}

/// Returns whether an end-of-image marker follows the first scan. Inside a scan its bytes can't occur; a
/// preview's marker lies in a segment before the scan; cameras may write anything behind it.
fn has_end_marker(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(&[0xFF, marker, high, low]) = bytes.get(at..at + 4) {
        let length = usize::from(u16::from_be_bytes([high, low]));
        at += if marker == 0xFF { 1 } else { 2 + length };
        if marker == START_OF_SCAN {
            break;
        }
    }
    bytes
        .get(at..)
        .is_some_and(|scan| scan.windows(2).any(|pair| pair == [0xFF, 0xD9]))
}

const START_OF_SCAN: u8 = 0xDA;

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file of the shared test data, or says that it is absent.
    fn shared(path: &str) -> Option<Vec<u8>> {
        crate::data::testing::shared_file(&format!("hard/images/{path}"))
    }

    #[test]
    fn every_way_to_store_the_quadrants_gives_the_same_upright_picture() {
        let wanted = [
            ((20, 15), [220, 30, 30]),
            ((100, 15), [30, 180, 60]),
            ((20, 65), [40, 60, 220]),
            ((100, 65), [235, 220, 40]),
        ];
        for name in [
            "img-exif1.jpg",
            "img-exif2.jpg",
            "img-exif3.jpg",
            "img-exif4.jpg",
            "img-exif6.jpg",
            "img-exif8.jpg",
            "img-cmyk.jpg",
            "img-progressive.jpg",
            "img-lzw.tif",
            "img.bmp",
            "img.webp",
            "img-png-named.jpg",
            "IMG_UPPER.JPEG",
        ] {
            let Some(bytes) = shared(name) else { return };
            let picture = decode(name, &bytes).unwrap();
            let source = Source::Bytes(bytes.into());
            assert_eq!((picture.width(), picture.height()), (120, 80), "{name}");
            assert_eq!(dimensions(name, &source).unwrap(), (120, 80), "{name}");
            for ((x, y), colour) in wanted {
                let seen = picture.at(x, y);
                let close = seen.iter().zip(colour).all(|(&a, b)| a.abs_diff(b) <= 40);
                assert!(close, "{name} at {x},{y}: {seen:?} instead of {colour:?}");
            }
        }
    }

    #[test]
    fn grey_deep_and_transparent_pictures_become_rgb() {
        for name in ["img-gray.jpg", "img-gray16.png", "img-la.png"] {
            let Some(bytes) = shared(name) else { return };
            let picture = decode(name, &bytes).unwrap();
            assert!(
                picture
                    .pixels()
                    .as_chunks::<3>()
                    .0
                    .iter()
                    .all(|[r, g, b]| r == g && g == b),
                "{name}"
            );
        }
        let Some(bytes) = shared("img-gray16.png") else {
            return;
        };
        let ramp = decode("img-gray16.png", &bytes).unwrap();
        let levels = [0, 60, 119].map(|x| ramp.at(x, 40)[0]);
        assert!(
            levels[0] < 3 && levels[1].abs_diff(127) < 4 && levels[2] > 252,
            "{levels:?}"
        );
    }

    #[test]
    fn what_is_no_whole_picture_is_refused_with_its_name_and_the_rule() {
        for (name, rule) in [
            ("img-truncated.jpg", "truncated JPEG"),
            ("img-zero.jpg", "empty"),
            ("img-text.jpg", "not an image"),
            ("img-page.png", "not an image"),
            ("img.svg", "not an image"),
            ("img.heic", "HEIC"),
            ("img-anim.gif", "GIF"),
            ("img-1x1.png", "shorter than 10"),
            ("img-60000x60000.png", "more than 178956970 pixels"),
        ] {
            let Some(bytes) = shared(name) else { return };
            let error = decode(name, &bytes).unwrap_err().to_string();
            assert!(error.starts_with(name) && error.contains(rule), "{error}");
        }
    }
}

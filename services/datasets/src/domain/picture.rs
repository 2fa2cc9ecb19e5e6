//! What a picture has to be: a known format by its content, a sensible size, whole pixels.

use std::io::Cursor;

use image::{DynamicImage, ImageDecoder as _, ImageError, ImageFormat, ImageReader, Limits};

/// The smallest side in pixels.
pub const SIDE_MIN: u32 = 10;
/// The most pixels of one picture.
pub const PIXELS_MAX: u64 = 178_956_970;
/// The most memory that decoding may take.
const DECODE_BYTES_MAX: u64 = 1 << 30;

/// What was learned of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// As it is shown: with its EXIF orientation applied.
    pub width: u32,
    pub height: u32,
}

/// Looks at a picture whole; an error is the reason and the message for people.
pub fn inspect(bytes: &[u8]) -> Result<Picture, (&'static str, String)> {
    let refuse = |message: String| ("IMAGE_UNREADABLE", message);
    if bytes.is_empty() {
        return Err(refuse("empty file".to_owned()));
    }
    let mut reader = ImageReader::new(Cursor::new(bytes))
        .with_guessed_format()
        .map_err(|error| refuse(error.to_string()))?;
    match reader.format() {
        None => return Err(refuse("not an image".to_owned())),
        Some(ImageFormat::Gif) => {
            return Err(refuse("unsupported: GIF, which may be animated".to_owned()));
        }
        Some(_) => {}
    }
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODE_BYTES_MAX);
    reader.limits(limits);
    let mut decoder = reader
        .into_decoder()
        .map_err(|error| refuse(words(&error)))?;
    let (stored_width, stored_height) = decoder.dimensions();
    let pixels = u64::from(stored_width) * u64::from(stored_height);
    if pixels > PIXELS_MAX {
        return Err(refuse(format!(
            "{stored_width}×{stored_height} is {pixels} pixels, at most {PIXELS_MAX} are read"
        )));
    }
    if stored_width.min(stored_height) < SIDE_MIN {
        return Err(refuse(format!(
            "{stored_width}×{stored_height}: a side is smaller than {SIDE_MIN} px"
        )));
    }
    let orientation = decoder
        .orientation()
        .map_err(|error| refuse(words(&error)))?;
    let pixels = DynamicImage::from_decoder(decoder).map_err(|error| refuse(words(&error)))?;
    let is_turned = {
        let mut probe = DynamicImage::new_luma8(2, 1);
        probe.apply_orientation(orientation);
        probe.width() == 1
    };
    let (width, height) = if is_turned {
        (pixels.height(), pixels.width())
    } else {
        (pixels.width(), pixels.height())
    };
    Ok(Picture { width, height })
}

fn words(error: &ImageError) -> String {
    match error {
        ImageError::Unsupported(error) => format!("unsupported: {error}"),
        ImageError::Limits(error) => format!("too big to decode: {error}"),
        other => format!("damaged or not an image: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        DynamicImage::new_rgb8(width, height)
            .write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png)
            .unwrap();
        bytes
    }

    #[test]
    fn a_picture_is_known_by_its_content() {
        assert_eq!(
            inspect(&png(20, 30)),
            Ok(Picture {
                width: 20,
                height: 30
            })
        );
    }

    #[test]
    fn what_is_no_whole_picture_is_refused_in_words() {
        let whole = png(64, 64);
        for (bytes, words) in [
            (Vec::new(), "empty file"),
            (b"hello, I am a text".to_vec(), "not an image"),
            (whole[..whole.len() / 2].to_vec(), "damaged"),
            (png(9, 30), "smaller than 10 px"),
        ] {
            let (reason, message) = inspect(&bytes).unwrap_err();
            assert_eq!(reason, "IMAGE_UNREADABLE");
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn a_size_that_would_fill_memory_is_refused_from_the_header() {
        let mut bytes = png(16, 16);
        bytes[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
        let checksum = crc32(&bytes[12..29]);
        bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
        let (_, message) = inspect(&bytes).unwrap_err();
        assert!(message.contains("3600000000 pixels"), "{message}");
    }

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |mut crc, byte| {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 {
                    crc >> 1 ^ 0xedb8_8320
                } else {
                    crc >> 1
                };
            }
            crc
        })
    }
}

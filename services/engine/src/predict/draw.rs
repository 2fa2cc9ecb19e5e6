//! Draws boxes with names and scores onto a picture, and writes pictures as files.

use std::io::Cursor;

use image::ExtendedColorType::Rgb8;
use image::ImageEncoder;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;

use super::font;
use super::{Found, Shape};
use crate::data::augment::polygon::{self, Point};
use crate::data::picture::Picture;
use crate::{Error, Result};

const JPEG_QUALITY: u8 = 92;
/// A box's line is this share of the picture's mean side, as is a dot of its letters.
const LINE_SHARE: f32 = 1.0 / 320.0;
/// How much of a mask's colour is mixed into the picture.
const TINT: f32 = 0.45;
/// Keypoints less likely seen are not drawn.
const SEEN_MIN: f32 = 0.5;
/// Where the white rim of a dot begins, in parts of its radius.
const RIM: f32 = 0.7;
/// Colours of the classes; further classes begin again.
pub(crate) const COLOURS: [[u8; 3]; 12] = [
    [230, 57, 70],
    [29, 120, 200],
    [46, 160, 67],
    [245, 155, 30],
    [138, 80, 200],
    [0, 160, 160],
    [220, 70, 160],
    [120, 140, 20],
    [90, 90, 210],
    [190, 100, 50],
    [70, 110, 130],
    [150, 30, 60],
];

/// A format of image files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageKind {
    Jpeg,
    Png,
}

/// Draws the objects, the surest on top: masks as a tint, turned boxes as they lie, keypoints as dots.
pub fn draw(picture: &mut Picture, found: &[Found]) {
    let mean_side = (picture.width() + picture.height()) as f32 / 2.0;
    let line = ((mean_side * LINE_SHARE).round() as usize).max(1);
    for object in found.iter().rev() {
        let colour = COLOURS[object.class as usize % COLOURS.len()];
        let [left, top, right, bottom] = object.bounds.map(|value| value.round().max(0.0) as usize);
        match &object.shape {
            Some(Shape::Turned { corners, .. }) => outline(picture, corners, line, colour),
            Some(Shape::Mask { outline, .. }) => {
                tint(picture, outline, colour);
                frame(picture, [left, top, right, bottom], line, colour);
            }
            Some(Shape::Keypoints(_)) | None => {
                frame(picture, [left, top, right, bottom], line, colour);
            }
        }
        if let Some(Shape::Keypoints(points)) = &object.shape {
            let seen = points.iter().filter(|point| point[2] >= SEEN_MIN);
            for &[x, y, _] in seen {
                dot(picture, [x, y], 2 * line, colour);
            }
        }
        let text = format!("{} {:.0}%", object.name, object.score * 100.0);
        label(picture, [left, top], line, colour, &text);
    }
}

/// Mixes a colour into what an outline encloses.
fn tint(picture: &mut Picture, outline: &[Point], colour: [u8; 3]) {
    let (width, height) = (picture.width(), picture.height());
    polygon::fill(outline, (width, height), |row, start, end| {
        let pixels = &mut picture.pixels_mut()[row * width * 3..];
        for pixel in pixels[start * 3..end * 3].as_chunks_mut::<3>().0 {
            for (level, colour) in pixel.iter_mut().zip(colour) {
                let mixed = f32::from(*level) * (1.0 - TINT) + f32::from(colour) * TINT;
                *level = mixed.round() as u8;
            }
        }
    });
}

/// Draws lines from corner to corner and back to the first.
fn outline(picture: &mut Picture, corners: &[Point], line: usize, colour: [u8; 3]) {
    let limits = [picture.width() as f32, picture.height() as f32];
    for (from, to) in corners.iter().zip(corners.iter().cycle().skip(1)) {
        let length = (to[0] - from[0]).hypot(to[1] - from[1]);
        // Corners may lie far outside, where nothing is drawn.
        let steps = length.ceil().clamp(1.0, 4.0 * (limits[0] + limits[1]));
        for step in 0..steps as usize {
            let place = |axis: usize| from[axis] + (to[axis] - from[axis]) * step as f32 / steps;
            let (x, y) = (place(0), place(1));
            if (0.0..limits[0]).contains(&x) && (0.0..limits[1]).contains(&y) {
                let (x, y) = (x as usize, y as usize);
                fill(picture, [x, y, x + line, y + line], colour);
            }
        }
    }
}

/// Draws a disc of a colour with a white rim.
fn dot(picture: &mut Picture, [x, y]: Point, radius: usize, colour: [u8; 3]) {
    let reach = radius as isize;
    for down in -reach..=reach {
        for across in -reach..=reach {
            let distance = (down as f32).hypot(across as f32);
            let (column, row) = (x as isize + across, y as isize + down);
            if distance > radius as f32 || column < 0 || row < 0 {
                continue;
            }
            let ink = if distance > radius as f32 * RIM {
                [255; 3]
            } else {
                colour
            };
            let (column, row) = (column as usize, row as usize);
            fill(picture, [column, row, column + 1, row + 1], ink);
        }
    }
}

/// Writes a picture as the bytes of a file.
pub fn encode(picture: &Picture, kind: ImageKind) -> Result<Vec<u8>> {
    let mut bytes = Cursor::new(Vec::new());
    let (width, height) = (picture.width() as u32, picture.height() as u32);
    let written = match kind {
        ImageKind::Jpeg => JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY).write_image(
            picture.pixels(),
            width,
            height,
            Rgb8,
        ),
        ImageKind::Png => {
            PngEncoder::new(&mut bytes).write_image(picture.pixels(), width, height, Rgb8)
        }
    };
    written.map_err(|error| Error::io("picture")(std::io::Error::other(error)))?;
    Ok(bytes.into_inner())
}

/// Draws the outline of a box, its line inside.
fn frame(picture: &mut Picture, bounds: [usize; 4], line: usize, colour: [u8; 3]) {
    let [left, top, right, bottom] = bounds;
    fill(picture, [left, top, right, top + line], colour);
    fill(
        picture,
        [left, bottom.saturating_sub(line), right, bottom],
        colour,
    );
    fill(picture, [left, top, left + line, bottom], colour);
    fill(
        picture,
        [right.saturating_sub(line), top, right, bottom],
        colour,
    );
}

/// Writes text on a plate above the corner of a box, or inside where there is no room.
fn label(picture: &mut Picture, corner: [usize; 2], dot: usize, colour: [u8; 3], text: &str) {
    let letters = text.chars().count();
    let width = (letters * (font::WIDTH + 1) + 1) * dot;
    let height = (font::HEIGHT + 2) * dot;
    let left = corner[0].min(picture.width().saturating_sub(width));
    let top = corner[1].saturating_sub(height);
    fill(picture, [left, top, left + width, top + height], colour);
    let bright = 2 * u32::from(colour[0]) + 5 * u32::from(colour[1]) + u32::from(colour[2]);
    let ink = if bright > 8 * 150 { [0; 3] } else { [255; 3] };
    for (index, letter) in text.chars().enumerate() {
        let x = left + (1 + index * (font::WIDTH + 1)) * dot;
        for (row, bits) in font::glyph(letter).into_iter().enumerate() {
            let y = top + (1 + row) * dot;
            for column in
                (0..font::WIDTH).filter(|column| bits >> (font::WIDTH - 1 - column) & 1 == 1)
            {
                let x = x + column * dot;
                fill(picture, [x, y, x + dot, y + dot], ink);
            }
        }
    }
}

/// Fills a rectangle (left, top, right, bottom) as far as it lies inside.
fn fill(picture: &mut Picture, [left, top, right, bottom]: [usize; 4], colour: [u8; 3]) {
    let (width, right) = (picture.width(), right.min(picture.width()));
    for y in top..bottom.min(picture.height()) {
        for x in left..right {
            let start = (y * width + x) * 3;
            picture.pixels_mut()[start..start + 3].copy_from_slice(&colour);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::decode::decode;

    fn found(bounds: [f32; 4]) -> Found {
        Found {
            class: 1,
            name: "Käfer".into(),
            score: 0.875,
            bounds,
            shape: None,
        }
    }

    fn with_shape(shape: Shape) -> Found {
        Found {
            shape: Some(shape),
            ..found([40.0, 40.0, 160.0, 100.0])
        }
    }

    #[test]
    fn a_mask_tints_what_it_covers() {
        let mut picture = Picture::filled(200, 120, [10; 3]);
        let outline = vec![[60.0, 60.0], [100.0, 60.0], [100.0, 90.0], [60.0, 90.0]];
        draw(
            &mut picture,
            &[with_shape(Shape::Mask {
                outline,
                area: 1200,
            })],
        );
        let tinted = COLOURS[1].map(|level| (5.5 + f32::from(level) * 0.45).round() as u8);
        assert_eq!([picture.at(60, 60), picture.at(99, 89)], [tinted; 2]);
        assert_eq!([picture.at(59, 70), picture.at(100, 70)], [[10; 3]; 2]);
    }

    #[test]
    fn keypoints_that_are_seen_are_dots() {
        let mut picture = Picture::filled(200, 120, [10; 3]);
        let points = vec![[80.0, 70.0, 0.9], [120.0, 70.0, 0.1], [0.0, 120.0, 1.0]];
        draw(&mut picture, &[with_shape(Shape::Keypoints(points))]);
        assert_eq!(picture.at(80, 70), COLOURS[1]);
        assert_eq!(picture.at(120, 70), [10; 3]);
    }

    #[test]
    fn a_turned_box_is_drawn_as_it_lies() {
        let mut picture = Picture::filled(200, 120, [10; 3]);
        let corners = [[100.0, 40.0], [160.0, 70.0], [100.0, 100.0], [40.0, 70.0]];
        let turned = Shape::Turned {
            corners,
            angle: 0.46,
        };
        let far = corners.map(|[x, y]| [x - 1e7, y + 1e7]);
        let outside = Shape::Turned {
            corners: far,
            angle: 0.0,
        };
        draw(&mut picture, &[with_shape(turned), with_shape(outside)]);
        for (x, y) in [(130, 55), (130, 85), (70, 85)] {
            assert_eq!(picture.at(x, y), COLOURS[1], "{x},{y}");
        }
        assert_eq!([picture.at(100, 70), picture.at(159, 99)], [[10; 3]; 2]);
    }

    #[test]
    fn a_box_is_drawn_on_its_edges_and_nowhere_inside() {
        let mut picture = Picture::filled(200, 120, [10; 3]);
        draw(&mut picture, &[found([50.0, 60.0, 150.0, 110.0])]);
        for (x, y) in [(50, 80), (149, 80), (100, 109), (149, 60)] {
            assert_eq!(picture.at(x, y), COLOURS[1], "{x},{y}");
        }
        assert_eq!(picture.at(100, 90), [10; 3]);
        assert!(picture.pixels().contains(&255), "the label has white ink");
    }

    #[test]
    fn boxes_at_or_beyond_the_border_do_no_harm() {
        let mut picture = Picture::filled(40, 30, [10; 3]);
        let everywhere = [
            [0.0, 0.0, 40.0, 30.0],
            [39.0, 29.0, 80.0, 70.0],
            [-9.0, -9.0, 0.0, 0.0],
        ];
        draw(&mut picture, &everywhere.map(found));
    }

    #[test]
    fn a_picture_survives_its_file() {
        let mut picture = Picture::filled(40, 30, [200, 100, 50]);
        picture.pixels_mut()[0] = 7;
        let png = encode(&picture, ImageKind::Png).unwrap();
        assert_eq!(decode("a.png", &png).unwrap(), picture);
        let jpeg = encode(&picture, ImageKind::Jpeg).unwrap();
        let read = decode("a.jpg", &jpeg).unwrap();
        assert_eq!((read.width(), read.height()), (40, 30));
        assert!(read.at(20, 15)[0].abs_diff(200) < 6);
    }
}

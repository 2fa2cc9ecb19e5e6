//! Four pictures on one canvas, meeting in a point.

use super::{Object, Scene};
use crate::data::labels::Label;
use crate::data::picture::{PADDING, Picture};
use crate::random::Philox;

/// Where the four pictures of a mosaic meet on a canvas of twice `size`.
pub fn mosaic_centre(stream: &mut Philox, size: usize) -> (usize, usize) {
    let (low, high) = (size as f64 / 2.0, size as f64 * 1.5);
    let x = stream.between(low, high) as usize;
    (x, stream.between(low, high) as usize)
}

/// Puts four pictures round `centre` on a grey canvas of twice `size`: top left, top right, bottom left,
/// bottom right. Each touches the centre and is cut off by the canvas.
pub fn mosaic(parts: [(&Picture, &[Label]); 4], centre: (usize, usize), size: usize) -> Scene {
    let side = 2 * size;
    let mut canvas = Picture::filled(side, side, [PADDING; 3]);
    let mut objects = Vec::new();
    for (index, (picture, labels)) in parts.into_iter().enumerate() {
        let (width, height) = (picture.width(), picture.height());
        let (is_right, is_lower) = (index % 2 == 1, index / 2 == 1);
        let (across, from_x, to_x) = place(centre.0, width, side, is_right);
        let (down, from_y, to_y) = place(centre.1, height, side, is_lower);
        canvas.paste(picture, (from_x, from_y), (across, down), (to_x, to_y));
        let offset = (to_x as f32 - from_x as f32, to_y as f32 - from_y as f32);
        for label in labels {
            let mut object = Object::placed(label, (width, height), offset);
            if object.clip([0.0, 0.0, side as f32, side as f32]) {
                objects.push(object);
            }
        }
    }
    Scene {
        picture: canvas,
        objects,
    }
}

/// Returns, for one axis, how much of a picture shows, from where in it, and to where on the canvas.
fn place(centre: usize, length: usize, side: usize, is_after: bool) -> (usize, usize, usize) {
    if is_after {
        (length.min(side - centre), 0, centre)
    } else {
        let shown = length.min(centre);
        (shown, length - shown, centre - shown)
    }
}

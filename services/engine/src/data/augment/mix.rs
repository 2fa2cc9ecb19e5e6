//! Two pictures in one: blended as a whole (Zhang et al. 2018, "mixup"), or a rectangle of one laid over the other
//! (Yun et al. 2019, "CutMix").

use super::{Corners, Scene, area, shared_area};
use crate::random::Philox;

/// Both parameters of the beta distribution from which a blend's weight comes: near one half.
const BLEND: u32 = 32;
/// Rectangles tried before a picture stays whole.
const CUT_TRIES: u32 = 3;
/// An object comes along when this part of its box lies inside the rectangle.
const INSIDE_MIN_BOX: f32 = 0.1;
const INSIDE_MIN_POLYGON: f32 = 0.01;

/// Blends `other`, of the same size, into the scene and joins their objects.
pub fn mixup(scene: &mut Scene, other: Scene, stream: &mut Philox) {
    let weight = stream.beta(BLEND) as f32;
    let pixels = scene.picture.pixels_mut().iter_mut();
    for (sample, &over) in pixels.zip(other.picture.pixels()) {
        *sample = (f32::from(*sample) * weight + f32::from(over) * (1.0 - weight)) as u8;
    }
    scene.objects.extend(other.objects);
}

/// Lays a rectangle of `other`, of the same size, over a place without objects, and takes along what lies in it;
/// changes nothing where no such place is found.
pub fn cutmix(scene: &mut Scene, other: &Scene, stream: &mut Philox) {
    let (width, height) = (scene.picture.width(), scene.picture.height());
    let mut rectangles = (0..CUT_TRIES).map(|_| draw_rectangle(stream, width, height));
    let Some([left, top, right, bottom]) = rectangles.find(|rectangle| {
        let frame = rectangle.map(|edge| edge as f32);
        let is_free = |corners: &Corners| shared_area(&frame, corners) == 0.0;
        area(&frame) > 0.0 && scene.objects.iter().all(|object| is_free(&object.corners))
    }) else {
        return;
    };
    let size = (right - left, bottom - top);
    scene
        .picture
        .paste(&other.picture, (left, top), size, (left, top));
    let frame = [left, top, right, bottom].map(|edge| edge as f32);
    for object in &other.objects {
        let least = if object.polygon.is_empty() {
            INSIDE_MIN_BOX
        } else {
            INSIDE_MIN_POLYGON
        };
        let mut inside = object.clone();
        if shared_area(&frame, &object.corners) >= least * object.area() && inside.clip(frame) {
            scene.objects.push(inside);
        }
    }
}

/// Draws left, top, right, bottom in pixels: any size and place, cut at the picture's borders.
fn draw_rectangle(stream: &mut Philox, width: usize, height: usize) -> [usize; 4] {
    // Of the uniform (beta 1, 1) part that stays, the side is the root of the rest.
    let share = (1.0 - stream.uniform()).sqrt();
    let mut range = |side: usize| {
        let half = (side as f64 * share) as usize / 2;
        let middle = stream.below(side as u32) as usize;
        (middle.saturating_sub(half), (middle + half).min(side))
    };
    let ((left, right), (top, bottom)) = (range(width), range(height));
    [left, top, right, bottom]
}

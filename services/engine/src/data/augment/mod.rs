//! What training does to a picture before the network sees it; boxes, outlines and keypoints go along.
//!
//! In this order: `mosaic`, `paste` (copies of instances), `warp`, `mix` (mixup and cutmix), `finish` (colours and
//! flips). Pictures that show one class as a whole go another way: `classify`, with the operations of `operations`.

mod augmix;
pub mod classify;
pub mod cuda;
mod finish;
mod mix;
mod mosaic;
mod operations;
mod paste;
mod policy;
pub mod polygon;
#[cfg(test)]
mod tests;
mod warp;

use serde::{Deserialize, Serialize};

pub use self::finish::recolour_and_flip;
pub use self::mix::{cutmix, mixup};
pub use self::mosaic::{mosaic, mosaic_centre};
pub use self::paste::copy_paste;
pub use self::warp::Warp;
use super::labels::{Keypoint, Label};
use super::picture::Picture;
use crate::{Error, Result};

/// How strongly training changes pictures; names and defaults are the reference trainer's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Augmentation {
    /// Largest change of hue, as a fraction of the circle.
    pub hsv_h: f64,
    /// Largest change of saturation, as a fraction.
    pub hsv_s: f64,
    /// Largest change of value, as a fraction.
    pub hsv_v: f64,
    /// Largest rotation in degrees.
    pub degrees: f64,
    /// Largest shift, as a fraction of the side.
    pub translate: f64,
    /// Largest change of size, as a fraction.
    pub scale: f64,
    /// Largest shear in degrees.
    pub shear: f64,
    /// Largest perspective, 0 to 0.001.
    pub perspective: f64,
    /// Probability of a flip top to bottom.
    pub flipud: f64,
    /// Probability of a flip left to right.
    pub fliplr: f64,
    /// Probability of swapping red and blue.
    pub bgr: f64,
    /// Probability of a mosaic of four pictures.
    pub mosaic: f64,
    /// Probability of laying another picture over the whole.
    pub mixup: f64,
    /// Probability of laying a part of another picture over a part without objects.
    pub cutmix: f64,
    /// Share of the outlined objects to paste once more, mirrored.
    pub copy_paste: f64,
    /// Probability of blanking a rectangle of a picture that is classified.
    pub erasing: f64,
    /// How colours and shape of pictures that are classified are changed.
    pub auto_augment: AutoAugment,
}

/// Recipes for pictures that are classified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AutoAugment {
    /// Two operations drawn from a list, of one strength (Cubuk et al. 2019, "RandAugment").
    #[default]
    RandAugment,
    /// One of 25 pairs of operations that were found to serve (Cubuk et al. 2019, "AutoAugment").
    AutoAugment,
    /// The picture mixed with versions of itself (Hendrycks et al. 2020, "AugMix").
    AugMix,
    /// Only colours, as strongly as `hsv_h`, `hsv_s` and `hsv_v` say.
    None,
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            hsv_h: 0.015,
            hsv_s: 0.7,
            hsv_v: 0.4,
            degrees: 0.0,
            translate: 0.1,
            scale: 0.5,
            shear: 0.0,
            perspective: 0.0,
            flipud: 0.0,
            fliplr: 0.5,
            bgr: 0.0,
            mosaic: 1.0,
            mixup: 0.0,
            cutmix: 0.0,
            copy_paste: 0.0,
            erasing: 0.4,
            auto_augment: AutoAugment::RandAugment,
        }
    }
}

impl Augmentation {
    /// Changes nothing: every picture is only brought to size.
    pub const NONE: Self = Self {
        hsv_h: 0.0,
        hsv_s: 0.0,
        hsv_v: 0.0,
        degrees: 0.0,
        translate: 0.0,
        scale: 0.0,
        shear: 0.0,
        perspective: 0.0,
        flipud: 0.0,
        fliplr: 0.0,
        bgr: 0.0,
        mosaic: 0.0,
        mixup: 0.0,
        cutmix: 0.0,
        copy_paste: 0.0,
        erasing: 0.0,
        auto_augment: AutoAugment::None,
    };

    /// Returns the options of the last epochs, which show whole pictures only.
    pub fn closed(self) -> Self {
        Self {
            mosaic: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            copy_paste: 0.0,
            ..self
        }
    }

    /// Refuses values out of range.
    pub fn check(&self) -> Result<()> {
        let ranges = [
            ("hsv_h", self.hsv_h, 0.0, 1.0),
            ("hsv_s", self.hsv_s, 0.0, 1.0),
            ("hsv_v", self.hsv_v, 0.0, 1.0),
            ("degrees", self.degrees, 0.0, 180.0),
            ("translate", self.translate, 0.0, 1.0),
            ("scale", self.scale, 0.0, 1.0),
            ("shear", self.shear, 0.0, 89.0),
            ("perspective", self.perspective, 0.0, 0.001),
            ("flipud", self.flipud, 0.0, 1.0),
            ("fliplr", self.fliplr, 0.0, 1.0),
            ("bgr", self.bgr, 0.0, 1.0),
            ("mosaic", self.mosaic, 0.0, 1.0),
            ("mixup", self.mixup, 0.0, 1.0),
            ("cutmix", self.cutmix, 0.0, 1.0),
            ("copy_paste", self.copy_paste, 0.0, 1.0),
            ("erasing", self.erasing, 0.0, 1.0),
        ];
        for (argument, value, low, high) in ranges {
            if !(low..=high).contains(&value) {
                let rule = format!("{value} is not between {low} and {high}");
                return Err(Error::Argument { argument, rule });
            }
        }
        Ok(())
    }
}

/// Left, top, right, bottom in pixels.
pub type Corners = [f32; 4];

/// An object of a picture in work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Object {
    pub class: u32,
    pub corners: Corners,
    /// The outline in pixels; empty when only the box is known.
    pub polygon: Vec<polygon::Point>,
    /// In pixels; those outside the picture are not visible.
    pub keypoints: Vec<Keypoint>,
}

impl Object {
    /// Puts a label of a picture of `size` (width, height) whose corner is at `offset`.
    pub fn placed(label: &Label, size: (usize, usize), offset: (f32, f32)) -> Self {
        let [x, y, width, height] = label.bounds;
        let (across, down) = (size.0 as f32, size.1 as f32);
        let (half_width, half_height) = (width / 2.0, height / 2.0);
        let place = |x: f32, y: f32| [x * across + offset.0, y * down + offset.1];
        let [left, top] = place(x - half_width, y - half_height);
        let [right, bottom] = place(x + half_width, y + half_height);
        let keypoint = |&[x, y, visibility]: &Keypoint| {
            let [x, y] = place(x, y);
            [x, y, visibility]
        };
        Self {
            class: label.class,
            corners: [left, top, right, bottom],
            polygon: label.polygon.iter().map(|&[x, y]| place(x, y)).collect(),
            keypoints: label.keypoints.iter().map(keypoint).collect(),
        }
    }

    /// Returns centre and size as fractions of a picture of `size`.
    pub fn bounds(&self, size: (usize, usize)) -> [f32; 4] {
        let [left, top, right, bottom] = self.corners;
        let (across, down) = (size.0 as f32, size.1 as f32);
        [
            (left + right) / 2.0 / across,
            (top + bottom) / 2.0 / down,
            (right - left) / across,
            (bottom - top) / down,
        ]
    }

    fn area(&self) -> f32 {
        area(&self.corners)
    }

    /// Cuts off what lies outside a frame; false when nothing is left.
    fn clip(&mut self, frame: Corners) -> bool {
        let [left, top, right, bottom] = frame;
        for [x, y, visibility] in &mut self.keypoints {
            if !(left..=right).contains(x) || !(top..=bottom).contains(y) {
                *visibility = 0.0;
            }
        }
        if !self.polygon.is_empty() {
            self.polygon = polygon::clip(&self.polygon, frame);
            let Some(corners) = polygon::bounding(&self.polygon) else {
                return false;
            };
            self.corners = corners;
        }
        self.corners = [
            self.corners[0].clamp(left, right),
            self.corners[1].clamp(top, bottom),
            self.corners[2].clamp(left, right),
            self.corners[3].clamp(top, bottom),
        ];
        self.area() > 0.0
    }

    /// Mirrors at the middle of a picture of `side`, left and right (axis 0) or top and bottom (axis 1). `flip` says
    /// which keypoint takes each one's place.
    fn mirror(&mut self, axis: usize, side: f32, flip: Option<&[usize]>) {
        let corners = self.corners;
        self.corners[axis] = side - corners[axis + 2];
        self.corners[axis + 2] = side - corners[axis];
        for point in &mut self.polygon {
            point[axis] = side - point[axis];
        }
        for point in &mut self.keypoints {
            point[axis] = side - point[axis];
        }
        if let Some(flip) = flip.filter(|_| !self.keypoints.is_empty()) {
            self.keypoints = flip.iter().map(|&from| self.keypoints[from]).collect();
        }
    }
}

fn area([left, top, right, bottom]: &Corners) -> f32 {
    (right - left) * (bottom - top)
}

/// Returns the area that two boxes share.
fn shared_area(a: &Corners, b: &Corners) -> f32 {
    let side = |axis: usize| (a[axis + 2].min(b[axis + 2]) - a[axis].max(b[axis])).max(0.0);
    side(0) * side(1)
}

/// A picture with its objects.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    pub picture: Picture,
    pub objects: Vec<Object>,
}

impl Scene {
    /// Puts labels on their own picture.
    pub fn new(picture: Picture, labels: &[Label]) -> Self {
        let size = (picture.width(), picture.height());
        let objects = labels
            .iter()
            .map(|label| Object::placed(label, size, (0.0, 0.0)))
            .collect();
        Self { picture, objects }
    }

    /// Returns the scene stretched to a square of `side`.
    pub fn resized(self, side: usize) -> Self {
        let (width, height) = (self.picture.width(), self.picture.height());
        if (width, height) == (side, side) {
            return self;
        }
        let scale = [side as f32 / width as f32, side as f32 / height as f32];
        let mut objects = self.objects;
        for object in &mut objects {
            for (axis, value) in object.corners.iter_mut().enumerate() {
                *value *= scale[axis % 2];
            }
            for [x, y] in &mut object.polygon {
                (*x, *y) = (*x * scale[0], *y * scale[1]);
            }
            for [x, y, _] in &mut object.keypoints {
                (*x, *y) = (*x * scale[0], *y * scale[1]);
            }
        }
        Self {
            picture: self.picture.resized(side, side),
            objects,
        }
    }
}

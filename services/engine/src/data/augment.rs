//! What training does to a picture before the network sees it: mosaic, affine, colour, flips; boxes go along.

use serde::{Deserialize, Serialize};

use super::colour::{self, Jitter};
use super::labels::Label;
use super::picture::{Matrix, PADDING, Picture};
use crate::random::{Philox, Use};
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
    };

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

/// An object of a picture in work: corners in pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    pub class: u32,
    /// Left, top, right, bottom.
    pub corners: [f32; 4],
    pub polygon: Vec<[f32; 2]>,
}

impl Object {
    /// Puts a label of a picture of `size` (width, height) whose corner is at `offset`.
    fn placed(label: &Label, size: (usize, usize), offset: (f32, f32)) -> Self {
        let [x, y, width, height] = label.bounds;
        let (across, down) = (size.0 as f32, size.1 as f32);
        let (half_width, half_height) = (width / 2.0, height / 2.0);
        Self {
            class: label.class,
            corners: [
                (x - half_width) * across + offset.0,
                (y - half_height) * down + offset.1,
                (x + half_width) * across + offset.0,
                (y + half_height) * down + offset.1,
            ],
            polygon: label
                .polygon
                .iter()
                .map(|&[x, y]| [x * across + offset.0, y * down + offset.1])
                .collect(),
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
        let [left, top, right, bottom] = self.corners;
        (right - left) * (bottom - top)
    }

    /// Cuts off what lies outside; false when nothing is left.
    fn clip(&mut self, size: (usize, usize)) -> bool {
        let (across, down) = (size.0 as f32, size.1 as f32);
        if !self.polygon.is_empty() {
            self.polygon = clip_polygon(&self.polygon, across, down);
        }
        let [left, top, right, bottom] = self.corners;
        self.corners = [
            left.clamp(0.0, across),
            top.clamp(0.0, down),
            right.clamp(0.0, across),
            bottom.clamp(0.0, down),
        ];
        self.area() > 0.0
    }
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
}

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
            if object.clip((side, side)) {
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

/// A drawn affine (or projective) map and the scale in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Warp {
    pub matrix: Matrix,
    pub scale: f64,
}

impl Warp {
    /// Draws the map that brings a picture of `source` (width, height) to a square of `size`.
    pub fn draw(
        stream: &mut Philox,
        options: &Augmentation,
        source: (usize, usize),
        size: usize,
    ) -> Self {
        let mut signed = |limit: f64| stream.between(-limit, limit);
        let perspective = (signed(options.perspective), signed(options.perspective));
        let angle = signed(options.degrees).to_radians();
        let scale = 1.0 + signed(options.scale);
        let shear = (signed(options.shear), signed(options.shear));
        let shift = (
            0.5 + signed(options.translate),
            0.5 + signed(options.translate),
        );
        let centred = Matrix::translation(source.0 as f64 / -2.0, source.1 as f64 / -2.0);
        let projected = Matrix([
            [1.0, 0.0, 0.0],
            [0.0, 1.0, 0.0],
            [perspective.0, perspective.1, 1.0],
        ]);
        let (sine, cosine) = (angle.sin() * scale, angle.cos() * scale);
        let turned = Matrix([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]]);
        let sheared = Matrix([
            [1.0, shear.0.to_radians().tan(), 0.0],
            [shear.1.to_radians().tan(), 1.0, 0.0],
            [0.0, 0.0, 1.0],
        ]);
        let moved = Matrix::translation(shift.0 * size as f64, shift.1 * size as f64);
        let matrix = moved
            .after(&sheared)
            .after(&turned)
            .after(&projected)
            .after(&centred);
        Self { matrix, scale }
    }

    /// Maps picture and objects to a square of `size`, and drops objects of which too little is left.
    pub fn apply(&self, scene: &Scene, size: usize) -> Scene {
        let objects = scene
            .objects
            .iter()
            .filter_map(|object| self.map(object, size))
            .collect();
        let picture = if self.matrix == Matrix::IDENTITY
            && (scene.picture.width(), scene.picture.height()) == (size, size)
        {
            scene.picture.clone()
        } else {
            scene.picture.warped(&self.matrix, size, size)
        };
        Scene { picture, objects }
    }

    fn map(&self, object: &Object, size: usize) -> Option<Object> {
        let apply = |[x, y]: [f32; 2]| {
            self.matrix
                .apply([f64::from(x), f64::from(y)])
                .map(|value| value as f32)
        };
        let mut mapped = object.clone();
        let has_polygon = !object.polygon.is_empty();
        if has_polygon {
            mapped.polygon = object.polygon.iter().map(|&point| apply(point)).collect();
            mapped.polygon = clip_polygon(&mapped.polygon, size as f32, size as f32);
            mapped.corners = bounding(&mapped.polygon)?;
        } else {
            let [left, top, right, bottom] = object.corners;
            let corners = [[left, top], [right, top], [right, bottom], [left, bottom]];
            mapped.corners = bounding(&corners.map(apply))?;
        }
        let is_kept = mapped.clip((size, size)) && {
            let [left, top, right, bottom] = mapped.corners;
            let (width, height) = (right - left, bottom - top);
            let before = f64::from(object.area()) * self.scale * self.scale;
            let left_over = f64::from(width * height) / (before + EPSILON);
            let least = if has_polygon {
                AREA_MIN_POLYGON
            } else {
                AREA_MIN_BOX
            };
            width > SIDE_MIN
                && height > SIDE_MIN
                && left_over > least
                && (width / height).max(height / width) < ASPECT_MAX
        };
        is_kept.then_some(mapped)
    }
}

/// What an object must still have after a warp: pixels a side, share of its scaled area, and shape.
const SIDE_MIN: f32 = 2.0;
const AREA_MIN_BOX: f64 = 0.1;
const AREA_MIN_POLYGON: f64 = 0.01;
const ASPECT_MAX: f32 = 100.0;
const EPSILON: f64 = 1e-16;

/// Changes colours and flips, drawn for (seed, epoch, sample).
pub fn recolour_and_flip(
    scene: &mut Scene,
    options: &Augmentation,
    seed: u64,
    epoch: u32,
    sample: u32,
) {
    let mut stream = Philox::new(seed, epoch, sample, Use::Colour);
    let by = Jitter {
        hue: stream.between(-1.0, 1.0) * options.hsv_h,
        saturation: stream.between(-1.0, 1.0) * options.hsv_s,
        value: stream.between(-1.0, 1.0) * options.hsv_v,
    };
    if by.hue != 0.0 || by.saturation != 0.0 || by.value != 0.0 {
        colour::jitter(&mut scene.picture, by);
    }
    let mut stream = Philox::new(seed, epoch, sample, Use::Flip);
    if stream.chance(options.flipud) {
        let height = scene.picture.height() as f32;
        scene.picture.flip_vertical();
        for object in &mut scene.objects {
            let [left, top, right, bottom] = object.corners;
            object.corners = [left, height - bottom, right, height - top];
        }
    }
    if stream.chance(options.fliplr) {
        let width = scene.picture.width() as f32;
        scene.picture.flip_horizontal();
        for object in &mut scene.objects {
            let [left, top, right, bottom] = object.corners;
            object.corners = [width - right, top, width - left, bottom];
        }
    }
    if stream.chance(options.bgr) {
        for pixel in scene.picture.pixels_mut().as_chunks_mut::<3>().0 {
            pixel.swap(0, 2);
        }
    }
}

/// Returns left, top, right, bottom of some points, if there are any.
fn bounding(points: &[[f32; 2]]) -> Option<[f32; 4]> {
    let first = points.first()?;
    Some(points.iter().fold(
        [first[0], first[1], first[0], first[1]],
        |[left, top, right, bottom], &[x, y]| {
            [left.min(x), top.min(y), right.max(x), bottom.max(y)]
        },
    ))
}

/// Cuts a polygon at the borders of a picture (Sutherland and Hodgman).
fn clip_polygon(points: &[[f32; 2]], width: f32, height: f32) -> Vec<[f32; 2]> {
    // One half plane after the other: axis, border, and on which side to stay.
    let borders = [
        (0, 0.0, 1.0f32),
        (0, width, -1.0),
        (1, 0.0, 1.0),
        (1, height, -1.0),
    ];
    let mut points = points.to_vec();
    for (axis, border, side) in borders {
        let depth = |point: &[f32; 2]| (point[axis] - border) * side;
        let mut inside = Vec::with_capacity(points.len() + 2);
        for (index, point) in points.iter().enumerate() {
            let before = &points[(index + points.len() - 1) % points.len()];
            let (from, to) = (depth(before), depth(point));
            if (from >= 0.0) != (to >= 0.0) {
                let part = from / (from - to);
                let mut cut = [
                    before[0] + part * (point[0] - before[0]),
                    before[1] + part * (point[1] - before[1]),
                ];
                cut[axis] = border;
                inside.push(cut);
            }
            if to >= 0.0 {
                inside.push(*point);
            }
        }
        points = inside;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Philox {
        Philox::new(1, 2, 3, Use::Test)
    }

    #[test]
    fn mosaic_parts_touch_the_centre_and_boxes_follow() {
        let colours = [[10, 0, 0], [0, 20, 0], [0, 0, 30], [40, 40, 0]];
        let pictures = colours.map(|colour| Picture::filled(32, 24, colour));
        let whole = [Label::boxed(1, [0.5, 0.5, 1.0, 1.0])];
        let parts = std::array::from_fn(|index| (&pictures[index], &whole[..]));
        let scene = mosaic(parts, (20, 40), 32);
        let picture = &scene.picture;
        assert_eq!((picture.width(), picture.height()), (64, 64));
        assert_eq!(picture.at(19, 39), colours[0]);
        assert_eq!(picture.at(20, 39), colours[1]);
        assert_eq!(picture.at(19, 40), colours[2]);
        assert_eq!(picture.at(20, 40), colours[3]);
        assert_eq!(
            picture.at(0, 15),
            [PADDING; 3],
            "24 rows above the centre are covered"
        );
        assert_eq!(picture.at(0, 16), colours[0]);
        assert_eq!(picture.at(52, 20), [PADDING; 3]);
        let corners: Vec<_> = scene.objects.iter().map(|object| object.corners).collect();
        assert_eq!(
            corners,
            [
                [0.0, 16.0, 20.0, 40.0],
                [20.0, 16.0, 52.0, 40.0],
                [0.0, 40.0, 20.0, 64.0],
                [20.0, 40.0, 52.0, 64.0]
            ]
        );
    }

    #[test]
    fn a_mosaic_drops_what_the_canvas_cuts_off_wholly() {
        let picture = Picture::filled(32, 32, [1; 3]);
        let left_edge = [Label::boxed(0, [0.1, 0.5, 0.2, 0.5])];
        let none: [Label; 0] = [];
        let scene = mosaic(
            [
                (&picture, &left_edge),
                (&picture, &none),
                (&picture, &none),
                (&picture, &none),
            ],
            (16, 32),
            32,
        );
        assert!(scene.objects.is_empty());
    }

    #[test]
    fn a_warp_without_freedom_centres_the_picture() {
        let warp = Warp::draw(&mut stream(), &Augmentation::NONE, (32, 16), 32);
        let scene = Scene::new(
            Picture::filled(32, 16, [9; 3]),
            &[Label::boxed(0, [0.5, 0.5, 1.0, 0.5])],
        );
        let out = warp.apply(&scene, 32);
        assert_eq!(out.picture.at(5, 8), [9; 3]);
        assert_eq!(out.picture.at(5, 7), [PADDING; 3]);
        assert_eq!(out.objects[0].corners, [0.0, 12.0, 32.0, 20.0]);
        assert_eq!(out.objects[0].bounds((32, 32)), [0.5, 0.5, 1.0, 0.25]);
    }

    #[test]
    fn boxes_move_with_the_pixels() {
        // A white square on black: after any warp its box must hold the white pixels and little more.
        let options = Augmentation {
            degrees: 30.0,
            shear: 10.0,
            perspective: 0.0005,
            ..Augmentation::default()
        };
        for sample in 0..20 {
            let mut picture = Picture::filled(96, 96, [0; 3]);
            picture.paste(
                &Picture::filled(24, 24, [255; 3]),
                (0, 0),
                (24, 24),
                (36, 36),
            );
            let scene = Scene::new(picture, &[Label::boxed(0, [0.5, 0.5, 0.25, 0.25])]);
            let mut stream = Philox::new(5, 0, sample, Use::Affine);
            let warp = Warp::draw(&mut stream, &options, (96, 96), 96);
            let mut out = warp.apply(&scene, 96);
            recolour_and_flip(
                &mut out,
                &Augmentation {
                    flipud: 0.5,
                    ..Augmentation::NONE
                },
                5,
                0,
                sample,
            );
            let Some(object) = out.objects.first() else {
                continue;
            };
            let mut seen = [f32::MAX, f32::MAX, f32::MIN, f32::MIN];
            for y in 0..96 {
                for x in 0..96 {
                    let pixel = out.picture.at(x, y);
                    if pixel[0] > 180 {
                        let (x, y) = (x as f32, y as f32);
                        seen = [
                            seen[0].min(x),
                            seen[1].min(y),
                            seen[2].max(x + 1.0),
                            seen[3].max(y + 1.0),
                        ];
                    }
                }
            }
            for (wanted, seen) in object.corners.iter().zip(seen) {
                assert!(
                    (wanted - seen).abs() < 4.0,
                    "sample {sample}: {:?} {seen:?}",
                    object.corners
                );
            }
        }
    }

    #[test]
    fn objects_of_which_little_is_left_are_dropped() {
        let keep = |corners: [f32; 4]| {
            let object = Object {
                class: 0,
                corners,
                polygon: Vec::new(),
            };
            let warp = Warp {
                matrix: Matrix::IDENTITY,
                scale: 1.0,
            };
            warp.map(&object, 100).is_some()
        };
        assert!(keep([10.0, 10.0, 13.0, 13.0]));
        assert!(!keep([10.0, 10.0, 12.0, 30.0]), "two pixels wide");
        assert!(!keep([-91.0, 10.0, 9.0, 30.0]), "nine per cent left");
        assert!(keep([-89.0, 10.0, 11.0, 30.0]));
        assert!(!keep([100.0, 10.0, 120.0, 30.0]));
    }

    #[test]
    fn a_polygon_gives_a_tighter_box_than_its_corners() {
        let diamond = Label {
            class: 0,
            bounds: [0.5, 0.5, 0.5, 0.5],
            polygon: vec![[0.5, 0.25], [0.75, 0.5], [0.5, 0.75], [0.25, 0.5]],
        };
        let scene = Scene::new(Picture::filled(100, 100, [0; 3]), &[diamond]);
        let angle = std::f64::consts::FRAC_PI_4;
        let (sine, cosine) = angle.sin_cos();
        let turn = Matrix::translation(50.0, 50.0)
            .after(&Matrix([
                [cosine, sine, 0.0],
                [-sine, cosine, 0.0],
                [0.0, 0.0, 1.0],
            ]))
            .after(&Matrix::translation(-50.0, -50.0));
        let out = Warp {
            matrix: turn,
            scale: 1.0,
        }
        .apply(&scene, 100);
        let [left, top, right, bottom] = out.objects[0].corners;
        let wanted = 50.0 / f32::sqrt(2.0);
        assert!((right - left - wanted).abs() < 1e-3 && (bottom - top - wanted).abs() < 1e-3);
    }

    #[test]
    fn clipping_a_polygon_cuts_it_at_the_border() {
        let clipped = clip_polygon(&[[-10.0, 5.0], [5.0, 5.0], [5.0, 20.0]], 10.0, 10.0);
        assert_eq!(bounding(&clipped), Some([0.0, 5.0, 5.0, 10.0]));
        assert!(clip_polygon(&[[-5.0, 1.0], [-1.0, 1.0], [-1.0, 9.0]], 10.0, 10.0).is_empty());
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let options = Augmentation {
            fliplr: 1.5,
            ..Augmentation::default()
        };
        assert_eq!(
            options.check().unwrap_err().to_string(),
            "fliplr: 1.5 is not between 0 and 1"
        );
        assert!(Augmentation::default().check().is_ok());
    }
}

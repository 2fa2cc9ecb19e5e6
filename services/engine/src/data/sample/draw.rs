//! Paints one picture: a textured ground, then shapes with shadow, shading and rim.

use super::super::labels::Label;
use super::super::picture::Picture;
use super::SampleOptions;
use super::shape;
use crate::random::{Philox, Use};

/// The most objects of a picture.
pub const OBJECTS_MAX: u32 = 64;
/// Places tried for one object before it is left out.
const TRIES: u32 = 20;
/// Two objects may share this part of the smaller one's box.
const OVERLAP_MAX: f32 = 0.15;
/// Radius of an object as a share of the shorter side.
const RADIUS: (f64, f64) = (0.07, 0.2);
/// An object is at least this many pixels from its middle to its rim.
const RADIUS_MIN: f64 = 5.0;
/// Knots of the ground's noise in each direction.
const KNOTS: usize = 64;

type Colour = [f32; 3];

/// One object to paint.
struct Figure {
    class: usize,
    centre: [f32; 2],
    radius: f32,
    /// Sine and cosine of the rotation.
    turn: (f32, f32),
    colour: Colour,
}

pub fn picture(options: &SampleOptions, index: u32) -> (Picture, Vec<Label>) {
    let mut stream = Philox::new(options.seed, 0, index, Use::Picture);
    let mut canvas = ground(&mut stream, options.width, options.height);
    let wanted = 1 + stream.below(options.objects_max);
    let mut boxes: Vec<[f32; 4]> = Vec::new();
    let mut labels = Vec::new();
    for _ in 0..wanted {
        let Some(figure) = place(&mut stream, options, &boxes) else {
            continue;
        };
        paint_shadow(&mut canvas, &figure);
        let bounds = paint(&mut canvas, &figure);
        boxes.push(bounds);
        let [left, top, right, bottom] = bounds;
        let (across, down) = (options.width as f32, options.height as f32);
        let bounds = [
            (left + right) / 2.0 / across,
            (top + bottom) / 2.0 / down,
            (right - left) / across,
            (bottom - top) / down,
        ];
        labels.push(Label::boxed(figure.class as u32, bounds));
    }
    (canvas, labels)
}

/// Draws an object and looks for a place where it hides no other.
fn place(stream: &mut Philox, options: &SampleOptions, taken: &[[f32; 4]]) -> Option<Figure> {
    let short = options.width.min(options.height) as f64;
    let class = stream.below(options.classes as u32) as usize;
    let angle = stream.between(0.0, std::f64::consts::TAU) as f32;
    let colour = vivid(stream);
    for _ in 0..TRIES {
        let radius = (stream.between(RADIUS.0, RADIUS.1) * short).max(RADIUS_MIN);
        let margin = radius + 1.0;
        let x = stream.between(margin, options.width as f64 - margin) as f32;
        let y = stream.between(margin, options.height as f64 - margin) as f32;
        let radius = radius as f32;
        let reach = [x - radius, y - radius, x + radius, y + radius];
        if taken
            .iter()
            .all(|other| overlap(&reach, other) <= OVERLAP_MAX)
        {
            return Some(Figure {
                class,
                centre: [x, y],
                radius,
                turn: angle.sin_cos(),
                colour,
            });
        }
    }
    None
}

/// Returns the common area as a share of the smaller box.
fn overlap(a: &[f32; 4], b: &[f32; 4]) -> f32 {
    let width = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let height = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let area = |bounds: &[f32; 4]| (bounds[2] - bounds[0]) * (bounds[3] - bounds[1]);
    width * height / area(a).min(area(b))
}

impl Figure {
    /// Returns the point in the shape's own units.
    fn local(&self, x: f32, y: f32) -> [f32; 2] {
        let (dx, dy) = (
            (x - self.centre[0]) / self.radius,
            (y - self.centre[1]) / self.radius,
        );
        let (sine, cosine) = self.turn;
        [dx * cosine + dy * sine, dy * cosine - dx * sine]
    }

    /// Returns columns and rows that the figure, grown by `margin` pixels, can touch.
    fn span(
        &self,
        canvas: &Picture,
        margin: f32,
    ) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let reach = self.radius + margin;
        let range = |centre: f32, side: usize| {
            let first = (centre - reach).floor().max(0.0) as usize;
            first..((centre + reach).ceil().max(0.0) as usize).min(side)
        };
        (
            range(self.centre[0], canvas.width()),
            range(self.centre[1], canvas.height()),
        )
    }
}

/// Paints the figure and returns left, top, right, bottom of the pixels more than half covered.
fn paint(canvas: &mut Picture, figure: &Figure) -> [f32; 4] {
    let mut bounds = [f32::MAX, f32::MAX, 0.0, 0.0];
    let (columns, rows) = figure.span(canvas, 1.0);
    for y in rows {
        for x in columns.clone() {
            let point = figure.local(x as f32 + 0.5, y as f32 + 0.5);
            let distance = shape::distance(figure.class, point) * figure.radius;
            let cover = (0.5 - distance).clamp(0.0, 1.0);
            if cover > 0.0 {
                // Light from above, and a darker rim an eighth of the radius wide.
                let rise = (figure.centre[1] - y as f32) / figure.radius;
                let depth = (-distance / figure.radius * 8.0).clamp(0.0, 1.0);
                let light = (0.88 + 0.2 * rise) * (0.62 + 0.38 * depth);
                blend(canvas, x, y, figure.colour.map(|part| part * light), cover);
            }
            if cover > 0.5 {
                let (x, y) = (x as f32, y as f32);
                bounds = [
                    bounds[0].min(x),
                    bounds[1].min(y),
                    bounds[2].max(x + 1.0),
                    bounds[3].max(y + 1.0),
                ];
            }
        }
    }
    bounds
}

/// Darkens the ground below and right of the figure.
fn paint_shadow(canvas: &mut Picture, figure: &Figure) {
    let shift = figure.radius * 0.14;
    let shadow = Figure {
        centre: [figure.centre[0] + shift, figure.centre[1] + shift],
        ..*figure
    };
    let blur = figure.radius * 0.12 + 1.0;
    let (columns, rows) = shadow.span(canvas, blur);
    for y in rows {
        for x in columns.clone() {
            let point = shadow.local(x as f32 + 0.5, y as f32 + 0.5);
            let distance = shape::distance(figure.class, point) * figure.radius;
            let dark = (0.5 - distance / (2.0 * blur)).clamp(0.0, 1.0) * 0.35;
            if dark > 0.0 {
                blend(canvas, x, y, [0.0; 3], dark);
            }
        }
    }
}

fn blend(canvas: &mut Picture, x: usize, y: usize, colour: Colour, cover: f32) {
    let start = (y * canvas.width() + x) * 3;
    let pixel = &mut canvas.pixels_mut()[start..start + 3];
    for (sample, part) in pixel.iter_mut().zip(colour) {
        let mixed = f32::from(*sample) * (1.0 - cover) + part * 255.0 * cover;
        *sample = (mixed + 0.5).clamp(0.0, 255.0) as u8;
    }
}

/// Paints the ground: a muted slope of two colours, coarse and fine noise, and at times stripes.
fn ground(stream: &mut Philox, width: usize, height: usize) -> Picture {
    let (first, second) = (muted(stream), muted(stream));
    let knots: Vec<f32> = (0..KNOTS * KNOTS)
        .map(|_| stream.uniform_f32() - 0.5)
        .collect();
    let slope = stream.between(0.0, std::f64::consts::TAU) as f32;
    let (slope_y, slope_x) = slope.sin_cos();
    let coarse = stream.between(4.0, 9.0) as f32;
    let fine = stream.between(20.0, 50.0) as f32;
    let strength = stream.between(0.08, 0.3) as f32;
    let stripes = if stream.chance(0.35) {
        stream.between(0.03, 0.09) as f32
    } else {
        0.0
    };
    let pitch = stream.between(30.0, 90.0) as f32;
    let scale = 1.0 / width.max(height) as f32;
    let mut coarse = Noise::new(&knots, coarse * scale, width);
    let mut fine = Noise::new(&knots, fine * scale, width);
    let mut picture = Picture::filled(width, height, [0; 3]);
    for (row, pixels) in picture.pixels_mut().chunks_exact_mut(width * 3).enumerate() {
        coarse.begin_row(row);
        fine.begin_row(row);
        let down = (row as f32 * scale - 0.5) * slope_y;
        for (column, pixel) in pixels.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let along = (column as f32 * scale - 0.5) * slope_x + down;
            let mix = (along + 0.5).clamp(0.0, 1.0);
            let mut light = (coarse.at(column) + 0.5 * fine.at(column)) * strength;
            if stripes > 0.0 {
                light += stripes * (along * pitch).sin();
            }
            for (channel, sample) in pixel.iter_mut().enumerate() {
                let part = first[channel] + (second[channel] - first[channel]) * mix + light;
                *sample = (part * 255.0).clamp(0.0, 255.0) as u8;
            }
        }
    }
    picture
}

/// Smooth noise in ±0.5: values at knots, eased between them, row by row.
struct Noise<'a> {
    knots: &'a [f32],
    /// Knots in a pixel.
    step: f32,
    /// The knot before each column and the eased way to the next.
    columns: Vec<(usize, f32)>,
    /// The knots of the row at hand, mixed from the two rows of knots round it.
    row: [f32; KNOTS],
}

impl<'a> Noise<'a> {
    fn new(knots: &'a [f32], step: f32, width: usize) -> Self {
        let columns = (0..width)
            .map(|column| eased(column as f32 * step))
            .collect();
        Self {
            knots,
            step,
            columns,
            row: [0.0; KNOTS],
        }
    }

    fn begin_row(&mut self, row: usize) {
        let (knot, down) = eased(row as f32 * self.step);
        let line = |knot: usize| &self.knots[knot % KNOTS * KNOTS..][..KNOTS];
        let (upper, lower) = (line(knot), line(knot + 1));
        for ((mixed, upper), lower) in self.row.iter_mut().zip(upper).zip(lower) {
            *mixed = upper + (lower - upper) * down;
        }
    }

    fn at(&self, column: usize) -> f32 {
        let (knot, right) = self.columns[column];
        let (before, after) = (self.row[knot % KNOTS], self.row[(knot + 1) % KNOTS]);
        before + (after - before) * right
    }
}

/// Returns the knot before a position and how far the next one counts.
fn eased(position: f32) -> (usize, f32) {
    let knot = position as usize;
    let part = position - knot as f32;
    (knot, part * part * (3.0 - 2.0 * part))
}

fn vivid(stream: &mut Philox) -> Colour {
    let hue = stream.uniform_f32();
    colour(
        hue,
        stream.between(0.65, 1.0) as f32,
        stream.between(0.75, 1.0) as f32,
    )
}

fn muted(stream: &mut Philox) -> Colour {
    let hue = stream.uniform_f32();
    colour(
        hue,
        stream.between(0.05, 0.35) as f32,
        stream.between(0.25, 0.85) as f32,
    )
}

/// Returns the colour of a hue, saturation and value, each 0 to 1.
fn colour(hue: f32, saturation: f32, value: f32) -> Colour {
    [5.0, 3.0, 1.0].map(|offset| {
        let place = (offset + hue * 6.0) % 6.0;
        value - value * saturation * place.min(4.0 - place).clamp(0.0, 1.0)
    })
}

//! Pictures of a batch side by side, with their boxes: what a model is taught, or what it found.

use super::chart::colour_of;
use super::svg::{Anchor, Area, FONT_SIZE, Svg, fitted, width_of};
use crate::Result;
use crate::data::Picture;
use crate::predict::draw::{self, ImageKind};

/// The most pictures of a plot.
pub const PICTURES_MAX: usize = 16;
/// Each picture fits a square of this side.
const CELL: f64 = 320.0;
const GAP: f64 = 6.0;
/// Room for a picture's name above it.
const NAME_HEIGHT: f64 = 18.0;
const LINE: f64 = 2.0;
const LABEL_SIZE: f64 = 11.0;

/// A box on a picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Boxed {
    pub class: u32,
    /// Of a prediction.
    pub score: Option<f32>,
    /// Left, top, right, bottom in pixels.
    pub bounds: [f32; 4],
}

/// A picture to show.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown<'a> {
    pub name: String,
    pub picture: &'a Picture,
    pub boxes: Vec<Boxed>,
}

/// Returns the plot of the first pictures.
pub fn batch(pictures: &[Shown<'_>], classes: &[String]) -> Result<String> {
    let pictures = &pictures[..pictures.len().min(PICTURES_MAX)];
    let columns = (pictures.len() as f64).sqrt().ceil().max(1.0);
    let rows = (pictures.len() as f64 / columns).ceil().max(1.0);
    let tallest = pictures
        .iter()
        .map(|shown| shown_size(shown.picture)[1])
        .fold(0.0, f64::max);
    let (across, down) = (CELL + GAP, tallest + NAME_HEIGHT + GAP);
    let mut svg = Svg::new(GAP + columns * across, GAP + rows * down);
    for (index, shown) in pictures.iter().enumerate() {
        let (row, column) = ((index as f64 / columns).floor(), index as f64 % columns);
        let corner = (GAP + column * across, GAP + row * down);
        picture(&mut svg, corner, shown, classes)?;
    }
    Ok(svg.finish())
}

/// Returns width and height of a picture in the plot.
fn shown_size(picture: &Picture) -> [f64; 2] {
    let (width, height) = (picture.width() as f64, picture.height() as f64);
    let scale = (CELL / width).min(CELL / height);
    [width * scale, height * scale]
}

fn picture(svg: &mut Svg, (x, y): (f64, f64), shown: &Shown<'_>, classes: &[String]) -> Result<()> {
    let [width, height] = shown_size(shown.picture);
    let scale = width / shown.picture.width() as f64;
    let name = fitted(&shown.name, FONT_SIZE, CELL);
    svg.text((x, y + FONT_SIZE), Anchor::Start, FONT_SIZE, &name);
    let top = y + NAME_HEIGHT;
    let area = Area {
        x,
        y: top,
        width,
        height,
    };
    let bytes = if scale < 1.0 {
        let [width, height] = [width, height].map(|side| (side.round() as usize).max(1));
        draw::encode(&shown.picture.resized(width, height), ImageKind::Jpeg)?
    } else {
        draw::encode(shown.picture, ImageKind::Jpeg)?
    };
    svg.jpeg(area, &bytes);
    for boxed in &shown.boxes {
        let [left, top_edge, right, bottom] = boxed.bounds.map(|edge| f64::from(edge) * scale);
        let [left, right] = [left, right].map(|edge| x + edge.clamp(0.0, area.width));
        let [upper, lower] = [top_edge, bottom].map(|edge| top + edge.clamp(0.0, area.height));
        let colour = colour_of(boxed.class as usize);
        let outline = Area {
            x: left,
            y: upper,
            width: right - left,
            height: lower - upper,
        };
        svg.frame(outline, &colour, LINE);
        let class = classes.get(boxed.class as usize);
        let class = class
            .cloned()
            .unwrap_or_else(|| format!("class {}", boxed.class));
        let text = match boxed.score {
            Some(score) => format!("{class} {score:.2}"),
            None => class,
        };
        let text = fitted(&text, LABEL_SIZE, CELL / 2.0);
        // Above the box where there is room, else inside.
        let foot = if upper - top >= LABEL_SIZE + 3.0 {
            upper
        } else {
            upper + LABEL_SIZE + 3.0
        };
        let plate = Area {
            x: left,
            y: foot - LABEL_SIZE - 3.0,
            width: width_of(&text, LABEL_SIZE) + 4.0,
            height: LABEL_SIZE + 3.0,
        };
        svg.fill(plate, &colour);
        svg.coloured(
            (left + 2.0, foot - 3.0),
            Anchor::Start,
            LABEL_SIZE,
            "#ffffff",
            &text,
        );
    }
    Ok(())
}

//! A small writer of SVG 1.1: dark on a light ground, numbers with one decimal, text escaped.

use std::fmt::Write as _;

/// The ground and the ink.
const GROUND: &str = "#ffffff";
pub const INK: &str = "#1f2933";
pub const FAINT: &str = "#d5dbe1";
pub const FONT_SIZE: f64 = 12.0;
/// The mean width of a letter, as a share of its size.
const LETTER_WIDTH: f64 = 0.58;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Which end of a text lies at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

/// A rectangle in the picture's own units, from the top left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// A picture under construction.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

impl Svg {
    /// Begins a picture.
    pub fn new(width: f64, height: f64) -> Self {
        let [width, height] = [width, height].map(number);
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"{FONT_SIZE}\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"{GROUND}\"/>\n"
        );
        Self { text }
    }

    /// Ends the picture and returns the text of its file.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.text
            .write_fmt(element)
            .expect("invariant: text grows without fail");
        self.text.push('\n');
    }

    /// Fills a rectangle.
    pub fn fill(&mut self, area: Area, colour: &str) {
        let [x, y, width, height] = area.numbers();
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{colour}\"/>"
        ));
    }

    /// Draws the outline of a rectangle.
    pub fn frame(&mut self, area: Area, colour: &str, width: f64) {
        let [x, y, across, down] = area.numbers();
        self.add(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{across}\" height=\"{down}\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"{}\"/>",
            number(width)
        ));
    }

    /// Draws a line through points.
    pub fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let points: Vec<String> = points
            .iter()
            .map(|&(x, y)| format!("{},{}", number(x), number(y)))
            .collect();
        self.add(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\" \
             stroke-linejoin=\"round\"/>",
            points.join(" "),
            number(width)
        ));
    }

    /// Writes a text whose foot stands at `y`.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: f64, text: &str) {
        self.coloured((x, y), anchor, size, INK, text);
    }

    /// Writes a text in a colour.
    pub fn coloured(
        &mut self,
        (x, y): (f64, f64),
        anchor: Anchor,
        size: f64,
        colour: &str,
        text: &str,
    ) {
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" font-size=\"{}\" fill=\"{colour}\">{}</text>",
            number(x),
            number(y),
            anchor.name(),
            number(size),
            escaped(text)
        ));
    }

    /// Writes a text from below upwards, its middle at the place.
    pub fn upright(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let [x, y] = [x, y].map(number);
        self.add(format_args!(
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{}\" fill=\"{INK}\" transform=\"rotate(-90 {x} {y})\">{}</text>",
            anchor.name(),
            escaped(text)
        ));
    }

    /// Places the bytes of a JPEG file.
    pub fn jpeg(&mut self, area: Area, bytes: &[u8]) {
        let [x, y, width, height] = area.numbers();
        self.add(format_args!(
            "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" \
             href=\"data:image/jpeg;base64,{}\"/>",
            base64(bytes)
        ));
    }
}

impl Area {
    fn numbers(self) -> [String; 4] {
        [self.x, self.y, self.width, self.height].map(number)
    }
}

/// Returns a text cut to a width, with an ellipsis where something is missing.
pub fn fitted(text: &str, size: f64, width: f64) -> String {
    let letters = (width / (size * LETTER_WIDTH)).max(1.0) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let kept: String = text.chars().take(letters.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// Returns about how wide a text is.
pub fn width_of(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * LETTER_WIDTH
}

/// Returns a colour as SVG writes it.
pub fn colour([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Returns a shade between the ground and a dark blue; 0 is the ground, 1 the blue.
pub fn shade(depth: f64) -> String {
    const DEEP: [f64; 3] = [8.0, 69.0, 148.0];
    let depth = depth.clamp(0.0, 1.0);
    colour(DEEP.map(|deep| (255.0 + (deep - 255.0) * depth).round() as u8))
}

/// Writes a coordinate: one decimal, none where it is whole. What is no number is 0.
fn number(value: f64) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".into(),
        Some(whole) => whole.into(),
        None => text,
    }
}

/// Escapes text for XML; letters that XML has no place for become a question mark.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            letter if letter.is_control() => escaped.push('?'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Encodes bytes as RFC 4648 says.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for place in 0..4 {
            let letter = BASE64[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_as_the_standard_shows() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn text_cannot_break_out_of_its_element() {
        assert_eq!(
            escaped("<a & \"b\">\u{7}"),
            "&lt;a &amp; &quot;b&quot;&gt;?"
        );
    }

    #[test]
    fn coordinates_are_short_and_finite() {
        let texts = [1.0, -0.04, 2.25, f64::NAN].map(number);
        assert_eq!(texts, ["1", "0", "2.2", "0"]);
    }

    #[test]
    fn long_texts_are_cut_at_letters() {
        assert_eq!(fitted("größere", 10.0, 30.0), "größ…");
        assert_eq!(fitted("kurz", 10.0, 30.0), "kurz");
    }
}

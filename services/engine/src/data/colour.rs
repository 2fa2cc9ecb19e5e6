//! Colour jitter on 8-bit hue, saturation and value, with the ranges OpenCV uses (hue in half degrees).

use super::picture::Picture;

/// Half degrees in the circle of hues.
const HUES: usize = 180;

/// Factors of one picture's jitter; zeros change nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Jitter {
    /// Fraction of the circle added to the hue.
    pub hue: f64,
    /// Fraction added to the saturation.
    pub saturation: f64,
    /// Fraction added to the value.
    pub value: f64,
}

/// Jitters the picture's colours in place; grey pixels stay grey.
pub fn jitter(picture: &mut Picture, jitter: Jitter) {
    let hues: [u8; HUES] = std::array::from_fn(|hue| {
        (hue as f64 + HUES as f64 * jitter.hue).rem_euclid(HUES as f64) as u8
    });
    let scale = |factor: f64| -> [u8; 256] {
        std::array::from_fn(|level| (level as f64 * (1.0 + factor)).clamp(0.0, 255.0) as u8)
    };
    let (saturations, values) = (scale(jitter.saturation), scale(jitter.value));
    let tables = Tables::new();
    for pixel in picture.pixels_mut().as_chunks_mut::<3>().0 {
        let [hue, saturation, value] = tables.to_hsv(*pixel);
        // A hue table shifted by a fraction just below zero may hold 180, the same hue as 0.
        let hue = hues[usize::from(hue)];
        *pixel = to_rgb(
            hue,
            saturations[usize::from(saturation)],
            values[usize::from(value)],
        );
    }
}

/// Reciprocals in fixed point, so that a conversion needs no division.
struct Tables {
    saturation: [i32; 256],
    hue: [i32; 256],
}

impl Tables {
    const BITS: u32 = 12;

    fn new() -> Self {
        let divide = |numerator: f64| -> [i32; 256] {
            std::array::from_fn(|level| match level {
                0 => 0,
                _ => (numerator * f64::from(1 << Self::BITS) / level as f64).round() as i32,
            })
        };
        Self {
            saturation: divide(255.0),
            hue: divide(HUES as f64 / 6.0),
        }
    }

    #[inline]
    fn to_hsv(&self, [red, green, blue]: [u8; 3]) -> [u8; 3] {
        const HALF: i32 = 1 << (Tables::BITS - 1);
        let value = red.max(green).max(blue);
        let spread = value - red.min(green).min(blue);
        let saturation =
            (i32::from(spread) * self.saturation[usize::from(value)] + HALF) >> Self::BITS;
        let (r, g, b, wide) = (
            i32::from(red),
            i32::from(green),
            i32::from(blue),
            i32::from(spread),
        );
        let sixths = if value == red {
            g - b
        } else if value == green {
            b - r + 2 * wide
        } else {
            r - g + 4 * wide
        };
        let hue = (sixths * self.hue[usize::from(spread)] + HALF) >> Self::BITS;
        let hue = if hue < 0 { hue + HUES as i32 } else { hue };
        [hue.min(HUES as i32 - 1) as u8, saturation as u8, value]
    }
}

#[inline]
fn to_rgb(hue: u8, saturation: u8, value: u8) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f32::from(hue) * (6.0 / HUES as f32);
    let sector = sixths as u32;
    let part = sixths - sector as f32;
    let strength = f32::from(saturation) * (1.0 / 255.0);
    let level = f32::from(value);
    let round = |value: f32| (value + 0.5) as u8;
    let low = round(level * (1.0 - strength));
    let falling = round(level * (1.0 - strength * part));
    let rising = round(level * (1.0 - strength * (1.0 - part)));
    match sector {
        0 | 6 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Jitter = Jitter {
        hue: 0.0,
        saturation: 0.0,
        value: 0.0,
    };

    fn changed(pixel: [u8; 3], by: Jitter) -> [u8; 3] {
        let mut picture = Picture::filled(1, 1, pixel);
        jitter(&mut picture, by);
        picture.at(0, 0)
    }

    #[test]
    fn primary_colours_have_the_hues_of_opencv() {
        let tables = Tables::new();
        assert_eq!(tables.to_hsv([255, 0, 0]), [0, 255, 255]);
        assert_eq!(tables.to_hsv([0, 255, 0]), [60, 255, 255]);
        assert_eq!(tables.to_hsv([0, 0, 255]), [120, 255, 255]);
        assert_eq!(tables.to_hsv([255, 0, 255]), [150, 255, 255]);
        assert_eq!(tables.to_hsv([128, 128, 128]), [0, 0, 128]);
        assert_eq!(tables.to_hsv([200, 100, 50]), [10, 191, 200]);
        assert_eq!(tables.to_hsv([255, 0, 1]), [0, 255, 255]);
    }

    #[test]
    fn no_jitter_moves_a_colour_by_the_rounding_of_hsv_only() {
        for red in (0..=255).step_by(15) {
            for green in (0..=255).step_by(15) {
                for blue in (0..=255).step_by(15) {
                    let seen = changed([red, green, blue], NOTHING);
                    for (a, b) in seen.iter().zip([red, green, blue]) {
                        assert!(a.abs_diff(b) <= 5, "{red} {green} {blue} became {seen:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn each_factor_does_what_it_says() {
        let red = [200, 0, 0];
        assert_eq!(
            changed(
                red,
                Jitter {
                    hue: 1.0 / 3.0,
                    ..NOTHING
                }
            ),
            [0, 200, 0]
        );
        assert_eq!(
            changed(
                red,
                Jitter {
                    hue: -1.0 / 3.0,
                    ..NOTHING
                }
            ),
            [0, 0, 200]
        );
        assert_eq!(
            changed(
                red,
                Jitter {
                    saturation: -1.0,
                    ..NOTHING
                }
            ),
            [200; 3]
        );
        assert_eq!(
            changed(
                red,
                Jitter {
                    value: 1.0,
                    ..NOTHING
                }
            ),
            [255, 0, 0]
        );
        assert_eq!(
            changed(
                red,
                Jitter {
                    value: -0.5,
                    ..NOTHING
                }
            ),
            [100, 0, 0]
        );
        let grey = [90; 3];
        assert_eq!(
            changed(
                grey,
                Jitter {
                    hue: 0.3,
                    saturation: 0.9,
                    value: 0.0
                }
            ),
            grey
        );
        for hue in [-1e-9, 1e-9, -0.015, 0.999_999] {
            changed(red, Jitter { hue, ..NOTHING });
        }
    }
}

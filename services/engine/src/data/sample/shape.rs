//! The shapes: signed distances from their outlines, negative inside, in units where they fit the unit circle.

/// Names of the shapes; the class of a label is an index into them.
pub const NAMES: [&str; 6] = ["circle", "square", "triangle", "star", "ring", "cross"];

const RING_WIDTH: f32 = 0.26;
const CROSS_ARM: f32 = 0.3;
const STAR_INNER: f32 = 0.46;

/// Returns the signed distance of a point from the outline of shape `class`.
pub fn distance(class: usize, [x, y]: [f32; 2]) -> f32 {
    let radius = x.hypot(y);
    match class {
        0 => radius - 1.0,
        1 => rectangle(
            x,
            y,
            std::f32::consts::FRAC_1_SQRT_2,
            std::f32::consts::FRAC_1_SQRT_2,
        ),
        2 => polygon(3, 0.5, x, y),
        3 => polygon(5, STAR_INNER, x, y),
        4 => (radius - (1.0 - RING_WIDTH)).abs() - RING_WIDTH,
        _ => {
            let reach = (1.0 - CROSS_ARM * CROSS_ARM).sqrt();
            rectangle(x, y, reach, CROSS_ARM).min(rectangle(x, y, CROSS_ARM, reach))
        }
    }
}

fn rectangle(x: f32, y: f32, half_width: f32, half_height: f32) -> f32 {
    let (dx, dy) = (x.abs() - half_width, y.abs() - half_height);
    dx.max(0.0).hypot(dy.max(0.0)) + dx.max(dy).min(0.0)
}

/// A star of `points` tips on the unit circle, its notches at radius `inner`; `inner` cos(π/points) is a polygon.
fn polygon(points: u32, inner: f32, x: f32, y: f32) -> f32 {
    // All tips look alike, so the point is turned into the half sector between a tip and a notch.
    let sector = std::f32::consts::TAU / points as f32;
    let angle = x.atan2(-y);
    let turned = (angle - (angle / sector).round() * sector).abs();
    let radius = x.hypot(y);
    let (px, py) = (radius * turned.sin(), radius * turned.cos());
    let notch = (inner * (sector / 2.0).sin(), inner * (sector / 2.0).cos());
    let (edge_x, edge_y) = (notch.0, notch.1 - 1.0);
    let (from_x, from_y) = (px, py - 1.0);
    let along = (from_x * edge_x + from_y * edge_y) / (edge_x * edge_x + edge_y * edge_y);
    let along = along.clamp(0.0, 1.0);
    let away = (from_x - along * edge_x).hypot(from_y - along * edge_y);
    let is_outside = edge_y * from_x - edge_x * from_y < 0.0;
    if is_outside { away } else { -away }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_inside_the_unit_circle_and_reaches_it() {
        for (class, name) in NAMES.iter().enumerate() {
            let mut reach = 0f32;
            let mut inside = 0;
            for row in -60..=60 {
                for column in -60..=60 {
                    let point = [column as f32 / 50.0, row as f32 / 50.0];
                    let distance = distance(class, point);
                    if distance < 0.0 {
                        reach = reach.max(point[0].hypot(point[1]));
                        inside += 1;
                    }
                }
            }
            assert!(reach > 0.93 && reach <= 1.001, "{name} reaches {reach}");
            assert!(
                (1800..7900).contains(&inside),
                "{name} has {inside} of 7854 points"
            );
        }
    }

    #[test]
    fn only_the_ring_has_a_hole() {
        for (class, name) in NAMES.iter().enumerate() {
            let is_filled = distance(class, [0.0, 0.0]) < 0.0;
            assert_eq!(is_filled, *name != "ring", "{name}");
        }
    }
}

//! Plane geometry of outlines in pixels: bounds, clipping, filling, and the smallest turned rectangle.

/// A point, x right and y down.
pub type Point = [f32; 2];

/// Returns left, top, right, bottom of some points, if there are any.
pub fn bounding(points: &[Point]) -> Option<[f32; 4]> {
    let first = points.first()?;
    Some(points.iter().fold(
        [first[0], first[1], first[0], first[1]],
        |[left, top, right, bottom], &[x, y]| {
            [left.min(x), top.min(y), right.max(x), bottom.max(y)]
        },
    ))
}

/// Cuts a polygon at a frame of left, top, right, bottom (Sutherland and Hodgman). Parts of a hollow outline stay
/// joined along the frame, where they cover nothing.
pub fn clip(points: &[Point], [left, top, right, bottom]: [f32; 4]) -> Vec<Point> {
    // One half plane after the other: axis, border, and on which side to stay.
    let borders = [
        (0, left, 1.0f32),
        (0, right, -1.0),
        (1, top, 1.0),
        (1, bottom, -1.0),
    ];
    let mut points = points.to_vec();
    for (axis, border, side) in borders {
        let depth = |point: &Point| (point[axis] - border) * side;
        if points.iter().all(|point| depth(point) >= 0.0) {
            continue;
        }
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

/// Calls `span` with each row and the columns `start..end` whose middles lie inside the polygon, rows in order;
/// where an outline crosses itself, inside means an odd number of crossings away.
pub fn fill(
    points: &[Point],
    (width, height): (usize, usize),
    mut span: impl FnMut(usize, usize, usize),
) {
    // The first pixel whose middle is not before a position.
    let first =
        |position: f32, side: usize| (position - 0.5).ceil().clamp(0.0, side as f32) as usize;
    let mut crossings: Vec<(usize, f32)> = Vec::new();
    for (index, &end) in points.iter().enumerate() {
        let start = points[(index + points.len() - 1) % points.len()];
        let (upper, lower) = if start[1] <= end[1] {
            (start, end)
        } else {
            (end, start)
        };
        let slope = (lower[0] - upper[0]) / (lower[1] - upper[1]);
        for row in first(upper[1], height)..first(lower[1], height) {
            let down = row as f32 + 0.5 - upper[1];
            crossings.push((row, upper[0] + down * slope));
        }
    }
    crossings.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    for pair in crossings.chunks_exact(2) {
        let (start, end) = (first(pair[0].1, width), first(pair[1].1, width));
        if start < end {
            span(pair[0].0, start, end);
        }
    }
}

/// A rectangle turned about its centre.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnedRectangle {
    pub centre: Point,
    /// The longer side.
    pub width: f32,
    pub height: f32,
    /// From the x axis to the longer side, towards the y axis, in −π/4 to 3π/4 radians.
    pub angle: f32,
}

impl TurnedRectangle {
    /// Returns the corners, going round.
    pub fn corners(&self) -> [Point; 4] {
        let (sine, cosine) = self.angle.sin_cos();
        let along = [self.width / 2.0 * cosine, self.width / 2.0 * sine];
        let across = [-self.height / 2.0 * sine, self.height / 2.0 * cosine];
        [(1.0, 1.0), (1.0, -1.0), (-1.0, -1.0), (-1.0, 1.0)]
            .map(|(a, b)| [0, 1].map(|axis| self.centre[axis] + a * along[axis] + b * across[axis]))
    }
}

/// Returns the rectangle of smallest area round some points, if there are any. One of its sides lies along a side
/// of their hull (Freeman and Shapira 1975).
pub fn turned_rectangle(points: &[Point]) -> Option<TurnedRectangle> {
    let hull = convex_hull(points);
    let &start = hull.first()?;
    let mut best = None;
    let mut least = f64::INFINITY;
    for (index, &from) in hull.iter().enumerate() {
        let to = hull[(index + 1) % hull.len()];
        let (dx, dy) = (to[0] - from[0], to[1] - from[1]);
        let length = dx.hypot(dy);
        let (cosine, sine) = if length > 0.0 {
            (dx / length, dy / length)
        } else {
            (1.0, 0.0)
        };
        let mut reach = [f64::MAX, f64::MIN, f64::MAX, f64::MIN];
        for &[x, y] in &hull {
            let (along, across) = (x * cosine + y * sine, y * cosine - x * sine);
            reach = [
                reach[0].min(along),
                reach[1].max(along),
                reach[2].min(across),
                reach[3].max(across),
            ];
        }
        let (width, height) = (reach[1] - reach[0], reach[3] - reach[2]);
        if width * height < least {
            least = width * height;
            best = Some((reach, cosine, sine));
        }
    }
    let Some(([low, high, near, far], cosine, sine)) = best else {
        return Some(TurnedRectangle {
            centre: start.map(|value| value as f32),
            width: 0.0,
            height: 0.0,
            angle: 0.0,
        });
    };
    let (along, across) = ((low + high) / 2.0, (near + far) / 2.0);
    let (mut width, mut height) = (high - low, far - near);
    let mut angle = sine.atan2(cosine);
    if width < height {
        (width, height) = (height, width);
        angle += std::f64::consts::FRAC_PI_2;
    }
    Some(TurnedRectangle {
        centre: [
            (along * cosine - across * sine) as f32,
            (along * sine + across * cosine) as f32,
        ],
        width: width as f32,
        height: height as f32,
        angle: half_turn(angle),
    })
}

/// Returns the angle less whole half turns, in −π/4 to 3π/4: a rectangle turned by one looks the same.
fn half_turn(angle: f64) -> f32 {
    use std::f64::consts::{FRAC_PI_4, PI};
    let wrapped = ((angle + FRAC_PI_4).rem_euclid(PI) - FRAC_PI_4) as f32;
    // Rounding may reach the end that belongs to the start.
    if wrapped >= (3.0 * FRAC_PI_4) as f32 {
        -FRAC_PI_4 as f32
    } else {
        wrapped
    }
}

/// Returns the corners of the hull, going round (Andrew's monotone chain).
fn convex_hull(points: &[Point]) -> Vec<[f64; 2]> {
    let mut points: Vec<[f64; 2]> = points.iter().map(|point| point.map(f64::from)).collect();
    points.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    points.dedup();
    if points.len() < 3 {
        return points;
    }
    let turn = |a: &[f64; 2], b: &[f64; 2], c: &[f64; 2]| {
        (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
    };
    let mut hull: Vec<[f64; 2]> = Vec::new();
    let mut chain = |points: &mut dyn Iterator<Item = &[f64; 2]>| {
        let base = hull.len();
        for &point in points {
            while hull.len() >= base + 2
                && turn(&hull[hull.len() - 2], &hull[hull.len() - 1], &point) <= 0.0
            {
                hull.pop();
            }
            hull.push(point);
        }
        // The last point begins the other chain.
        hull.pop();
    };
    chain(&mut points.iter());
    chain(&mut points.iter().rev());
    hull
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FRAME: [f32; 4] = [0.0, 0.0, 10.0, 10.0];

    fn filled(points: &[Point], size: (usize, usize)) -> Vec<bool> {
        let mut pixels = vec![false; size.0 * size.1];
        fill(points, size, |row, start, end| {
            pixels[row * size.0..][start..end].fill(true);
        });
        pixels
    }

    #[test]
    fn clipping_a_polygon_cuts_it_at_the_frame() {
        let clipped = clip(&[[-10.0, 5.0], [5.0, 5.0], [5.0, 20.0]], FRAME);
        assert_eq!(bounding(&clipped), Some([0.0, 5.0, 5.0, 10.0]));
        assert!(clip(&[[-5.0, 1.0], [-1.0, 1.0], [-1.0, 9.0]], FRAME).is_empty());
        let inside = [[1.0, 1.0], [9.0, 1.0], [5.0, 9.0]];
        assert_eq!(clip(&inside, FRAME), inside);
    }

    #[test]
    fn a_rectangle_fills_the_pixels_whose_middles_it_holds() {
        let square = [[1.0, 2.0], [4.0, 2.0], [4.0, 5.0], [1.0, 5.0]];
        let pixels = filled(&square, (6, 6));
        for (index, &inside) in pixels.iter().enumerate() {
            let (x, y) = (index % 6, index / 6);
            assert_eq!(
                inside,
                (1..4).contains(&x) && (2..5).contains(&y),
                "{x} {y}"
            );
        }
    }

    #[test]
    fn a_hollow_outline_leaves_its_hollow_empty() {
        // A square with a bite from the right.
        let bitten = [
            [0.0, 0.0],
            [9.0, 0.0],
            [9.0, 3.0],
            [3.0, 3.0],
            [3.0, 6.0],
            [9.0, 6.0],
            [9.0, 9.0],
            [0.0, 9.0],
        ];
        let pixels = filled(&bitten, (9, 9));
        assert_eq!(pixels.iter().filter(|&&inside| inside).count(), 81 - 18);
        assert!(pixels[4 * 9 + 2] && !pixels[4 * 9 + 3]);
    }

    #[test]
    fn a_rectangle_is_found_again_from_its_corners_with_the_longer_side_as_width() {
        for step in 0..24 {
            let angle = -0.78 + step as f32 * 0.13;
            let rectangle = TurnedRectangle {
                centre: [50.0, 40.0],
                width: 30.0,
                height: 12.0,
                angle,
            };
            let found = turned_rectangle(&rectangle.corners()).unwrap();
            assert!((found.width - 30.0).abs() < 1e-3 && (found.height - 12.0).abs() < 1e-3);
            assert!((found.centre[0] - 50.0).abs() < 1e-3);
            let angle = half_turn(f64::from(angle));
            assert!(
                (found.angle - angle).abs() < 1e-4,
                "{} {angle}",
                found.angle
            );
        }
        let upright = [[0.0, 0.0], [4.0, 0.0], [4.0, 8.0], [0.0, 8.0]];
        let found = turned_rectangle(&upright).unwrap();
        assert_eq!((found.width, found.height), (8.0, 4.0));
        assert!((found.angle - std::f32::consts::FRAC_PI_2).abs() < 1e-6);
    }

    #[test]
    fn points_on_a_line_or_none_at_all_have_a_rectangle_or_none() {
        assert_eq!(turned_rectangle(&[]), None);
        assert_eq!(turned_rectangle(&[[3.0, 4.0]; 5]).unwrap().width, 0.0);
        let line = turned_rectangle(&[[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]).unwrap();
        assert!((line.width - 10.0).abs() < 1e-5 && line.height.abs() < 1e-5);
    }

    proptest! {
        #[test]
        fn the_rectangle_holds_every_point_and_is_no_larger_than_the_upright_one(
            points in prop::collection::vec([-50f32..50.0, -50f32..50.0], 1..12)
        ) {
            let found = turned_rectangle(&points).unwrap();
            let (sine, cosine) = found.angle.sin_cos();
            for [x, y] in &points {
                let (dx, dy) = (x - found.centre[0], y - found.centre[1]);
                prop_assert!((dx * cosine + dy * sine).abs() <= found.width / 2.0 + 1e-3);
                prop_assert!((dy * cosine - dx * sine).abs() <= found.height / 2.0 + 1e-3);
            }
            let [left, top, right, bottom] = bounding(&points).unwrap();
            prop_assert!(found.width * found.height <= (right - left) * (bottom - top) * 1.001 + 1e-2);
            prop_assert!(found.width >= found.height);
            let quarter = std::f32::consts::FRAC_PI_4;
            prop_assert!((-quarter - 1e-6..3.0 * quarter).contains(&found.angle));
        }

        #[test]
        fn what_is_filled_covers_as_much_as_the_polygon(
            corners in prop::collection::vec([0f32..64.0, 0f32..64.0], 3)
        ) {
            let [a, b, c] = [corners[0], corners[1], corners[2]];
            let area = ((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])).abs() / 2.0;
            let count = filled(&corners, (64, 64)).iter().filter(|&&inside| inside).count();
            // A pixel's middle decides: the border is at most the outline's length off.
            let outline: f32 = [(a, b), (b, c), (c, a)]
                .map(|(from, to): (Point, Point)| (to[0] - from[0]).hypot(to[1] - from[1]))
                .iter()
                .sum();
            prop_assert!((count as f32 - area).abs() <= outline / 2.0 + 1.0);
        }

        #[test]
        fn clipping_and_filling_agree(
            corners in prop::collection::vec([-30f32..90.0, -30f32..90.0], 3..8)
        ) {
            let whole = filled(&corners, (64, 64));
            let clipped = filled(&clip(&corners, [0.0, 0.0, 64.0, 64.0]), (64, 64));
            let differ = whole.iter().zip(&clipped).filter(|(a, b)| a != b).count();
            // Middles that lie on an edge may fall either way after rounding.
            prop_assert!(differ <= 4, "{differ}");
        }
    }
}

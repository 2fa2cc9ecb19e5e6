//! The outline of a mask: follows the edges between pixels inside and pixels outside, then leaves out what a straight
//! line tells as well.

use crate::data::augment::polygon::Point;

/// How far in pixels an outline may leave the pixels' edges: a slanted line's steps reach 0.71.
const TOLERANCE: f32 = 0.75;

/// Some pixels of a rectangle, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bitmap {
    pub width: usize,
    pub height: usize,
    pub pixels: Vec<bool>,
}

impl Bitmap {
    /// Returns how many pixels are set.
    pub fn area(&self) -> usize {
        self.pixels.iter().filter(|&&pixel| pixel).count()
    }

    /// Returns the outline that encloses most, clockwise as seen, its corners those of pixels; pixels that touch at a
    /// corner belong together, and holes are covered. Nothing is set: nothing is returned.
    pub fn largest_outline(&self) -> Vec<Point> {
        let mut is_followed = vec![false; self.pixels.len()];
        let (mut largest, mut largest_area) = (Vec::new(), 0);
        for y in 0..self.height as isize {
            for x in 0..self.width as isize {
                // Every closed edge goes up somewhere, at the left of a pixel that is set.
                let starts = self.is_set(x, y) && !self.is_set(x - 1, y);
                if starts && !is_followed[y as usize * self.width + x as usize] {
                    let corners = self.follow([x, y + 1], &mut is_followed);
                    let area = doubled_area(&corners);
                    if area > largest_area {
                        (largest, largest_area) = (corners, area);
                    }
                }
            }
        }
        simplified(&largest)
    }

    fn is_set(&self, x: isize, y: isize) -> bool {
        let is_inside =
            (0..self.width as isize).contains(&x) && (0..self.height as isize).contains(&y);
        is_inside && self.pixels[y as usize * self.width + x as usize]
    }

    /// Goes round from a corner upwards with what is set at the right, and returns the corners where the way turns.
    fn follow(&self, start: [isize; 2], is_followed: &mut [bool]) -> Vec<[isize; 2]> {
        /// Right, down, left, up.
        const STEPS: [[isize; 2]; 4] = [[1, 0], [0, 1], [-1, 0], [0, -1]];
        /// From a corner to the pixels ahead: at the left and at the right of the way.
        const AHEAD: [[[isize; 2]; 2]; 4] = [
            [[0, -1], [0, 0]],
            [[0, 0], [-1, 0]],
            [[-1, 0], [-1, -1]],
            [[-1, -1], [0, -1]],
        ];
        const UP: usize = 3;
        let (mut corner, mut way) = (start, UP);
        let mut corners = Vec::new();
        loop {
            corner = [corner[0] + STEPS[way][0], corner[1] + STEPS[way][1]];
            if way == UP {
                is_followed[corner[1] as usize * self.width + corner[0] as usize] = true;
            }
            let [left, right] = AHEAD[way].map(|[x, y]| self.is_set(corner[0] + x, corner[1] + y));
            let turned = match (left, right) {
                (true, _) => (way + 3) % 4,
                (false, true) => way,
                (false, false) => (way + 1) % 4,
            };
            if turned != way {
                corners.push(corner);
                way = turned;
            }
            if corner == start && way == UP {
                return corners;
            }
        }
    }
}

/// Returns twice the area inside, negative for the edge of a hole.
fn doubled_area(corners: &[[isize; 2]]) -> isize {
    let next = corners.iter().cycle().skip(1);
    let pairs = corners.iter().zip(next);
    pairs.map(|(a, b)| a[0] * b[1] - b[0] * a[1]).sum()
}

/// Leaves out corners near the straight line between others (Ramer 1972; Douglas and Peucker 1973), unless what is left
/// would enclose nothing.
fn simplified(corners: &[[isize; 2]]) -> Vec<Point> {
    let points: Vec<Point> = corners.iter().map(|&[x, y]| [x as f32, y as f32]).collect();
    let Some(&first) = points.first() else {
        return Vec::new();
    };
    let squared = |point: &Point| (point[0] - first[0]).powi(2) + (point[1] - first[1]).powi(2);
    let farthest = |range: std::ops::Range<usize>, distance: &dyn Fn(&Point) -> f32| {
        range
            .map(|index| (index, distance(&points[index])))
            .fold(
                (0, 0.0),
                |best, next| if next.1 > best.1 { next } else { best },
            )
    };
    let (opposite, _) = farthest(0..points.len(), &squared);
    let mut stays = vec![false; points.len()];
    (stays[0], stays[opposite]) = (true, true);
    // The way round is open at its first point, which is its last, too.
    let mut parts = vec![(0, opposite), (opposite, points.len())];
    while let Some((from, to)) = parts.pop() {
        let (a, b) = (points[from], points[to % points.len()]);
        let (index, distance) = farthest(from + 1..to, &|point| from_line(point, a, b));
        if distance > TOLERANCE {
            stays[index] = true;
            parts.extend([(from, index), (index, to)]);
        }
    }
    let is_small = stays.iter().filter(|&&stays| stays).count() < 3;
    let kept = points.iter().zip(stays);
    let kept = kept.filter(|(_, stays)| *stays || is_small);
    kept.map(|(point, _)| *point).collect()
}

/// Returns the distance of a point from the line between two others.
fn from_line(point: &Point, a: Point, b: Point) -> f32 {
    let line = [b[0] - a[0], b[1] - a[1]];
    let to = [point[0] - a[0], point[1] - a[1]];
    let length = line[0].hypot(line[1]);
    if length == 0.0 {
        return to[0].hypot(to[1]);
    }
    (line[0] * to[1] - line[1] * to[0]).abs() / length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::augment::polygon;

    fn bitmap(rows: &[&str]) -> Bitmap {
        Bitmap {
            width: rows[0].len(),
            height: rows.len(),
            pixels: rows.concat().bytes().map(|byte| byte == b'#').collect(),
        }
    }

    #[test]
    fn a_rectangle_has_its_corners() {
        let outline = bitmap(&["......", ".####.", ".####.", "......"]).largest_outline();
        assert_eq!(outline.len(), 4);
        for corner in [[1.0, 1.0], [5.0, 1.0], [5.0, 3.0], [1.0, 3.0]] {
            assert!(outline.contains(&corner), "{outline:?}");
        }
    }

    #[test]
    fn of_several_parts_the_largest_is_taken_and_its_hole_covered() {
        let map = bitmap(&["##.....", "##.####", "...#..#", "...#..#", "...####"]);
        assert_eq!(map.area(), 16);
        let outline = map.largest_outline();
        assert_eq!(polygon::bounding(&outline), Some([3.0, 1.0, 7.0, 5.0]));
        assert_eq!(outline.len(), 4);
    }

    #[test]
    fn pixels_that_touch_at_a_corner_are_one() {
        let map = bitmap(&["#..", ".#.", "..#"]);
        assert_eq!(
            polygon::bounding(&map.largest_outline()),
            Some([0.0, 0.0, 3.0, 3.0])
        );
    }

    #[test]
    fn nothing_has_no_outline_and_one_pixel_has_four_corners() {
        assert!(bitmap(&["...", "..."]).largest_outline().is_empty());
        assert_eq!(bitmap(&["#"]).largest_outline().len(), 4);
    }

    #[test]
    fn a_disc_is_told_by_few_points_and_filled_again() {
        let pixels = (0..100 * 100).map(|index| {
            let place = [index % 100, index / 100].map(|at| at as f32 - 49.5);
            place[0].hypot(place[1]) < 40.0
        });
        let disc = Bitmap {
            width: 100,
            height: 100,
            pixels: pixels.collect(),
        };
        let outline = disc.largest_outline();
        assert!(outline.len() < 80, "{} points", outline.len());
        let (mut same, mut either) = (0, disc.area());
        polygon::fill(&outline, (100, 100), |row, start, end| {
            let inside = disc.pixels[row * 100..][start..end]
                .iter()
                .filter(|&&pixel| pixel);
            let inside = inside.count();
            same += inside;
            either += end - start - inside;
        });
        assert!(same as f64 / either as f64 > 0.97, "{same} of {either}");
    }
}

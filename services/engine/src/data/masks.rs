//! The outlines of a picture's objects as one map: which pixel belongs to which object, smaller ones on top.

use super::augment::polygon::{self, Point};

/// Pixels of the picture for one of the map, in each direction.
pub const MASK_RATIO: usize = 4;

/// Which object each pixel belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IndexMap {
    pub width: usize,
    pub height: usize,
    /// 0 for no object, `i + 1` for object `i`; rows from the top.
    pub indices: Vec<u16>,
}

/// The most objects of a picture that a map tells apart.
pub const OBJECTS_MAX: usize = u16::MAX as usize;

/// A run of pixels in a row of the map.
struct Run {
    row: usize,
    start: usize,
    end: usize,
}

/// Draws outlines of a picture of `size` (width and height, multiples of [`MASK_RATIO`]) on a map a quarter as wide
/// and high. Returns the map and the objects from the largest mask to the smallest: object `i` of the map is outline
/// `order[i]`.
pub fn index_map(outlines: &[&[Point]], size: (usize, usize)) -> (IndexMap, Vec<usize>) {
    let (width, height) = (size.0 / MASK_RATIO, size.1 / MASK_RATIO);
    let masks: Vec<(usize, Vec<Run>)> = outlines
        .iter()
        .map(|outline| {
            let runs = mask(outline, size);
            (runs.iter().map(|run| run.end - run.start).sum(), runs)
        })
        .collect();
    let mut order: Vec<usize> = (0..outlines.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(masks[index].0));
    order.truncate(OBJECTS_MAX);
    let mut indices = vec![0u16; width * height];
    for (place, &index) in order.iter().enumerate() {
        for run in &masks[index].1 {
            indices[run.row * width..][run.start..run.end].fill(place as u16 + 1);
        }
    }
    let map = IndexMap {
        width,
        height,
        indices,
    };
    (map, order)
}

/// Returns the runs of a quarter-size mask. A pixel of it is what a bilinear resize of the full mask makes of the four
/// pixels round its middle, rounded: set when two of the four are.
fn mask(outline: &[Point], (width, height): (usize, usize)) -> Vec<Run> {
    const SET_MIN: u8 = 2;
    /// Of each group of four rows or columns, those next to the middle.
    const MIDDLE: std::ops::Range<usize> = 1..3;
    let mut runs = Vec::new();
    let mut counts = vec![0u8; width / MASK_RATIO];
    let mut at_row = None;
    let mut finish = |row: Option<usize>, counts: &mut [u8]| {
        let Some(row) = row else { return };
        let mut column = 0;
        for group in counts.chunk_by(|a, b| (*a >= SET_MIN) == (*b >= SET_MIN)) {
            if group[0] >= SET_MIN {
                runs.push(Run {
                    row,
                    start: column,
                    end: column + group.len(),
                });
            }
            column += group.len();
        }
        counts.fill(0);
    };
    polygon::fill(outline, (width, height), |row, start, end| {
        if !MIDDLE.contains(&(row % MASK_RATIO)) {
            return;
        }
        let row = row / MASK_RATIO;
        if at_row != Some(row) {
            finish(at_row, &mut counts);
            at_row = Some(row);
        }
        for column in start..end {
            if MIDDLE.contains(&(column % MASK_RATIO)) {
                counts[column / MASK_RATIO] += 1;
            }
        }
    });
    finish(at_row, &mut counts);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn square(left: f32, top: f32, side: f32) -> Vec<Point> {
        vec![
            [left, top],
            [left + side, top],
            [left + side, top + side],
            [left, top + side],
        ]
    }

    #[test]
    fn smaller_objects_lie_on_larger_ones() {
        let (small, large) = (square(8.0, 8.0, 8.0), square(0.0, 0.0, 24.0));
        let apart = square(28.0, 28.0, 4.0);
        let (map, order) = index_map(&[&small, &large, &apart], (32, 32));
        assert_eq!(order, [1, 0, 2]);
        assert_eq!((map.width, map.height), (8, 8));
        let at = |x: usize, y: usize| map.indices[y * 8 + x];
        assert_eq!((at(0, 0), at(5, 5), at(6, 6)), (1, 1, 0));
        assert_eq!((at(2, 2), at(3, 3), at(4, 4)), (2, 2, 1));
        assert_eq!(at(7, 7), 3);
        let count = |index| map.indices.iter().filter(|&&seen| seen == index).count();
        assert_eq!([count(1), count(2), count(3)], [32, 4, 1]);
    }

    #[test]
    fn a_pixel_is_set_when_half_of_its_middle_is() {
        // Of columns 1 and 2 of the first pixel, the second starts inside.
        let half = [[2.0, 0.0], [4.0, 0.0], [4.0, 4.0], [2.0, 4.0]];
        let less = [[3.0, 0.0], [4.0, 0.0], [4.0, 4.0], [3.0, 4.0]];
        let corner = [[2.0, 2.0], [4.0, 2.0], [4.0, 4.0], [2.0, 4.0]];
        for (outline, wanted) in [(&half, 1), (&less, 0), (&corner, 0)] {
            let (map, _) = index_map(&[outline], (4, 4));
            assert_eq!(map.indices, [wanted]);
        }
    }

    #[test]
    fn an_object_too_small_for_the_map_keeps_its_place() {
        let (large, dot) = (square(0.0, 0.0, 16.0), square(5.0, 5.0, 0.5));
        let (map, order) = index_map(&[&dot, &[], &large], (16, 16));
        assert_eq!(order, [2, 0, 1]);
        assert!(map.indices.iter().all(|&index| index == 1));
    }

    #[test]
    fn ten_thousand_objects_are_told_apart() {
        let squares: Vec<Vec<Point>> = (0..10_000)
            .map(|index| square((index % 100 * 4) as f32, (index / 100 * 4) as f32, 4.0))
            .collect();
        let outlines: Vec<&[Point]> = squares.iter().map(Vec::as_slice).collect();
        let (map, _) = index_map(&outlines, (400, 400));
        let mut seen = map.indices.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10_000);
    }
}

//! Detections of a one-to-one branch: the surest rows, without suppression.

use super::{Decoder, Extra, SIDES};
use crate::parallel::Threads;

/// Box, score, class.
const FIXED: usize = SIDES + 2;

impl Decoder {
    /// Writes `[batch][detections][6 + extras]` from decoded rows of anchors: of the anchors with the largest
    /// best probability, the largest pairs of anchor and class. Equals go in the order of anchor, then class.
    pub fn select(
        &self,
        threads: &Threads,
        batch: usize,
        detections: usize,
        rows: &[f32],
        output: &mut [f32],
    ) {
        let length = FIXED + self.extra.count();
        assert_eq!(
            output.len(),
            batch * detections * length,
            "invariant: a row per detection"
        );
        let images = rows.chunks_exact(rows.len() / batch);
        let targets = output.chunks_exact_mut(detections * length);
        threads.run_each(images.zip(targets), |_, (rows, output)| {
            let rows: Vec<&[f32]> = rows.chunks_exact(self.row_length()).collect();
            for (pair, target) in self
                .best_pairs(&rows, detections)
                .into_iter()
                .zip(output.chunks_exact_mut(length))
            {
                let row = rows[pair.anchor];
                target[..SIDES].copy_from_slice(&self.bounds(row));
                target[SIDES] = pair.score;
                target[SIDES + 1] = pair.class as f32;
                target[FIXED..].copy_from_slice(&row[SIDES + self.class_count..]);
            }
        });
    }

    fn best_pairs(&self, rows: &[&[f32]], detections: usize) -> Vec<Pair> {
        let scores = |anchor: usize| &rows[anchor][SIDES..][..self.class_count];
        let best = |anchor: usize| scores(anchor).iter().copied().fold(0.0, f32::max);
        let anchors = (0..rows.len()).map(|anchor| Pair {
            score: best(anchor),
            anchor,
            class: 0,
        });
        let anchors = largest(anchors.collect(), detections);
        let pairs = anchors.iter().flat_map(|&Pair { anchor, .. }| {
            let scores = scores(anchor).iter().enumerate();
            scores.map(move |(class, &score)| Pair {
                score,
                anchor,
                class,
            })
        });
        largest(pairs.collect(), detections)
    }

    /// Returns corners, or the turned box as it is.
    fn bounds(&self, row: &[f32]) -> [f32; SIDES] {
        let [x, y, width, height] = [row[0], row[1], row[2], row[3]];
        match self.extra {
            Extra::Angle { .. } => [x, y, width, height],
            _ => [
                x - width / 2.0,
                y - height / 2.0,
                x + width / 2.0,
                y + height / 2.0,
            ],
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Pair {
    score: f32,
    anchor: usize,
    class: usize,
}

/// Returns the first `count` by falling score.
fn largest(mut pairs: Vec<Pair>, count: usize) -> Vec<Pair> {
    let order = |a: &Pair, b: &Pair| {
        b.score
            .total_cmp(&a.score)
            .then(a.anchor.cmp(&b.anchor))
            .then(a.class.cmp(&b.class))
    };
    if count < pairs.len() {
        pairs.select_nth_unstable_by(count, order);
        pairs.truncate(count);
    }
    pairs.sort_unstable_by(order);
    pairs
}

//! Fewer points that look like all of them.
//!
//! Largest triangle, three buckets (Steinarsson, 2013): the first and the last point stay, the
//! others are cut into equal buckets, and of each bucket stays the point that spans the largest
//! triangle with the one kept before it and the middle of the next bucket. A value that is not
//! finite stays always: the step at which a training diverged must not vanish.

/// Returns at most `limit` of the points, which have rising steps.
pub fn thin(points: &[(i64, f64)], limit: usize) -> Vec<(i64, f64)> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    if points.len() <= limit {
        return points.to_vec();
    }
    match limit {
        0 => return Vec::new(),
        1 => return vec![*last],
        2 => return vec![*first, *last],
        _ => {}
    }
    let inner = &points[1..points.len() - 1];
    let buckets = limit - 2;
    let bounds = |bucket: usize| inner.len() * bucket / buckets;
    let mut kept = Vec::with_capacity(limit);
    kept.push(*first);
    let mut anchor = *first;
    for bucket in 0..buckets {
        let here = &inner[bounds(bucket)..bounds(bucket + 1)];
        let ahead = if bucket + 1 < buckets {
            &inner[bounds(bucket + 1)..bounds(bucket + 2)]
        } else {
            std::slice::from_ref(last)
        };
        let chosen = choose(here, anchor, middle(ahead));
        if chosen.1.is_finite() {
            anchor = chosen;
        }
        kept.push(chosen);
    }
    kept.push(*last);
    kept
}

fn choose(bucket: &[(i64, f64)], anchor: (i64, f64), ahead: (f64, f64)) -> (i64, f64) {
    if let Some(odd) = bucket.iter().find(|(_, value)| !value.is_finite()) {
        return *odd;
    }
    let (x, y) = (
        anchor.0 as f64,
        if anchor.1.is_finite() { anchor.1 } else { 0.0 },
    );
    let area = |point: &(i64, f64)| {
        ((x - ahead.0) * (point.1 - y) - (x - point.0 as f64) * (ahead.1 - y)).abs()
    };
    let largest = bucket
        .iter()
        .max_by(|left, right| area(left).total_cmp(&area(right)));
    *largest.expect("invariant: there are more points than buckets, none is empty")
}

/// Returns the mean of the finite points, or of the steps alone where there is none.
fn middle(points: &[(i64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let step = points.iter().map(|(step, _)| *step as f64).sum::<f64>() / count;
    let finite = points
        .iter()
        .map(|(_, value)| *value)
        .filter(|value| value.is_finite());
    let (sum, finite_count) = finite.fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    (
        step,
        if finite_count > 0.0 {
            sum / finite_count
        } else {
            0.0
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: i64) -> Vec<(i64, f64)> {
        (0..count)
            .map(|step| (step, (step as f64 / 50.0).sin()))
            .collect()
    }

    #[test]
    fn few_points_stay_as_they_are() {
        let points = wave(10);
        assert_eq!(thin(&points, 10), points);
        assert_eq!(thin(&[], 5), []);
        assert_eq!(thin(&points, 0), []);
        assert_eq!(thin(&points, 1), [points[9]]);
        assert_eq!(thin(&points, 2), [points[0], points[9]]);
    }

    #[test]
    fn ends_stay_the_limit_holds_and_steps_rise() {
        let points = wave(10_007);
        for limit in [3, 4, 10, 999, 10_006] {
            let kept = thin(&points, limit);
            assert_eq!(kept.len(), limit);
            assert_eq!((kept[0], kept[limit - 1]), (points[0], points[10_006]));
            assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
            assert!(kept.iter().all(|point| points[point.0 as usize] == *point));
        }
    }

    #[test]
    fn a_peak_is_not_lost() {
        let mut points = wave(5_000);
        points[3_210].1 = 40.0;
        assert!(thin(&points, 50).contains(&(3_210, 40.0)));
    }

    #[test]
    fn a_value_that_is_not_finite_is_not_lost() {
        let mut points = wave(5_000);
        points[4_000].1 = f64::NAN;
        points[100].1 = f64::INFINITY;
        let kept = thin(&points, 50);
        assert!(
            kept.iter()
                .any(|(step, value)| *step == 4_000 && value.is_nan())
        );
        assert!(kept.contains(&(100, f64::INFINITY)));
        assert_eq!(kept.len(), 50);
    }
}

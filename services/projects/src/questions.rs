//! What can be asked about runs: series, logs, comparisons. Reads only.

use std::collections::BTreeMap;

use kit::id::{self, Id};

use crate::commands::{METRICS, Projects, SAMPLES};
use crate::domain::{Comparison, Line, Point, Run, Superseded, compare, merge, thin};
use crate::error::Error;
use crate::store::{self, Segment};

/// Segments that are looked at in one go.
const SEGMENTS_AT_A_TIME: i64 = 16;
/// What the names of host samples begin with; their steps are seconds since the run began.
const SYSTEM: &str = "system/";

/// The values of one metric at rising steps.
pub type Series = BTreeMap<String, Vec<(i64, f64)>>;

impl Projects {
    /// Returns the metrics of a run by name, each thinned to at most `point_limit` points.
    pub async fn metrics(
        &self,
        run: &Run,
        names: &[String],
        point_limit: usize,
    ) -> Result<Series, Error> {
        let mut series = self.series(run, names).await?;
        let wants_system = names.is_empty() || names.iter().any(|name| name.starts_with(SYSTEM));
        if wants_system {
            series.extend(self.system_series(run, names).await?);
        }
        for values in series.values_mut() {
            *values = thin(values, point_limit);
        }
        Ok(series)
    }

    /// Returns all values of a run's metrics that no later attempt has superseded.
    async fn series(&self, run: &Run, names: &[String]) -> Result<Series, Error> {
        let superseded = self.superseded(run.id).await?;
        let mut points: BTreeMap<String, Vec<Point>> = BTreeMap::new();
        store::readings(self.store.read(), run.id, METRICS, |reading| {
            for (name, value) in reading.values {
                if names.is_empty() || names.contains(&name) {
                    points.entry(name).or_default().push(Point {
                        step: reading.step,
                        fence: reading.fence,
                        position: reading.position,
                        value,
                    });
                }
            }
        })
        .await?;
        let series = points
            .into_iter()
            .map(|(name, points)| (name, merge(points, &superseded)));
        Ok(series.filter(|(_, values)| !values.is_empty()).collect())
    }

    async fn system_series(&self, run: &Run, names: &[String]) -> Result<Series, Error> {
        let began = run.started_at.unwrap_or(run.created_at);
        let mut series = Series::new();
        store::readings(self.store.read(), run.id, SAMPLES, |reading| {
            let second = i64::try_from(reading.at.since(began).as_secs()).unwrap_or(i64::MAX);
            for (name, value) in reading.values {
                if names.is_empty() || names.contains(&name) {
                    series.entry(name).or_default().push((second, value));
                }
            }
        })
        .await?;
        for values in series.values_mut() {
            values.sort_by_key(|(second, _)| *second);
            values.dedup_by_key(|(second, _)| *second);
        }
        Ok(series)
    }

    /// Returns what the attempts of a run have superseded.
    pub async fn superseded(&self, run: Id<id::Run>) -> Result<Superseded, Error> {
        let attempts = store::attempts(self.store.read(), run).await?;
        Ok(Superseded::by(
            attempts
                .iter()
                .map(|attempt| (attempt.fence, attempt.start_step)),
        ))
    }

    /// Sets runs side by side.
    pub async fn comparison(&self, runs: &[Run]) -> Result<Comparison, Error> {
        let mut series = Vec::with_capacity(runs.len());
        for run in runs {
            series.push(self.series(run, &[]).await?);
        }
        Ok(compare(runs, &series))
    }

    /// Returns lines of a log above a sequence, in its order.
    pub async fn log_page(&self, run: &Run, after: i64, limit: usize) -> Result<Vec<Line>, Error> {
        let sql = self.store.read();
        // The tail first: a line that becomes part of a segment meanwhile is then seen twice,
        // never not at all.
        let tail = store::lines_after_sequence(sql, run.id, after, limit as i64).await?;
        let segments =
            store::segments_after_sequence(sql, run.id, after, SEGMENTS_AT_A_TIME).await?;
        let is_cut = segments.len() as i64 == SEGMENTS_AT_A_TIME;
        let mut lines: BTreeMap<i64, Line> =
            tail.into_iter().map(|line| (line.sequence, line)).collect();
        let mut complete = i64::MAX;
        for segment in &segments {
            let page_end = lines.keys().nth(limit.saturating_sub(1));
            if page_end.is_some_and(|end| *end < segment.first_sequence) {
                break;
            }
            if is_cut {
                complete = segment.last_sequence;
            }
            for line in self.segment_lines(run, segment, after).await? {
                lines.insert(line.sequence, line);
            }
        }
        let page = lines.into_values().filter(|line| line.sequence <= complete);
        Ok(page.take(limit).collect())
    }

    /// Returns lines of a log above a position, in that order, and the position up to which that
    /// is all there is: `i64::MAX` when nothing was left out.
    pub async fn log_since(
        &self,
        run: &Run,
        after: i64,
        limit: usize,
    ) -> Result<(Vec<Line>, i64), Error> {
        let sql = self.store.read();
        let tail = store::lines_after_position(sql, run.id, after, limit as i64).await?;
        let mut complete = match tail.last() {
            Some(last) if tail.len() == limit => last.position,
            _ => i64::MAX,
        };
        let segments =
            store::segments_after_position(sql, run.id, after, SEGMENTS_AT_A_TIME).await?;
        let mut lines: BTreeMap<i64, Line> =
            tail.into_iter().map(|line| (line.position, line)).collect();
        for segment in &segments {
            // Enough is enough, but what overlaps the beginning must be read to get on.
            if lines.len() >= limit && segment.first_position > after + 1 {
                complete = complete.min(segment.first_position - 1);
                break;
            }
            let begin = segment.first_sequence.saturating_sub(1);
            for line in self.segment_lines(run, segment, begin).await? {
                if line.position > after {
                    lines.insert(line.position, line);
                }
            }
        }
        if segments.len() as i64 == SEGMENTS_AT_A_TIME {
            let last = segments
                .last()
                .map_or(i64::MAX, |segment| segment.first_position);
            complete = complete.min(last.max(after + 1));
        }
        Ok((lines.into_values().collect(), complete))
    }

    async fn segment_lines(
        &self,
        run: &Run,
        segment: &Segment,
        after_sequence: i64,
    ) -> Result<Vec<Line>, Error> {
        let broken = |problem: String| {
            let column = "segment".to_owned();
            Error::Store(kit::store::Error::Column { column, problem })
        };
        let digest = blake3::Hash::from_hex(&segment.digest);
        let digest = digest.map_err(|error| broken(error.to_string()))?;
        let key = kit::blobs::BlobKey::new(crate::NAME, run.workspace_id, digest);
        let end = segment.size_bytes.unsigned_abs();
        let start = segment.offset_of(after_sequence)?.min(end);
        let bytes = self.blobs.get_range(&key, start..end).await?;
        let lines = store::decode_lines(&bytes).map_err(broken)?;
        Ok(lines
            .into_iter()
            .filter(|line| line.sequence > after_sequence)
            .collect())
    }
}

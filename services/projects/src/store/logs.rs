//! Logs: the open tail in rows, what was before it in blobs.

use kit::id::{self, Id};
use kit::params;
use kit::store::{Error, FromRow, Row, Sql, Tx};

use super::packed::broken;
use super::segment::offset_of;
use crate::domain::Line;

impl FromRow for Line {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            sequence: row.get("sequence")?,
            position: row.get("position")?,
            at: row.get("at")?,
            level: row.get("level")?,
            message: row.get("message")?,
        })
    }
}

/// A stretch of a log that is a blob.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Its first line.
    pub first_sequence: i64,
    /// Its last line.
    pub last_sequence: i64,
    /// The lowest position of its lines.
    pub first_position: i64,
    /// The highest position of its lines.
    pub last_position: i64,
    /// The blob.
    pub digest: String,
    /// Its length.
    pub size_bytes: i64,
    /// The index.
    pub offsets: Vec<u8>,
}

impl Segment {
    /// Returns where to begin to read for lines after this one.
    pub fn offset_of(&self, after_sequence: i64) -> Result<u64, Error> {
        offset_of(&self.offsets, after_sequence).map_err(|problem| broken("offsets", problem))
    }
}

impl FromRow for Segment {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            first_sequence: row.get("first_sequence")?,
            last_sequence: row.get("last_sequence")?,
            first_position: row.get("first_position")?,
            last_position: row.get("last_position")?,
            digest: row.get("digest")?,
            size_bytes: row.get("size_bytes")?,
            offsets: row.get("offsets")?,
        })
    }
}

/// How much is in the rows of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tail {
    /// Lines.
    pub line_count: i64,
    /// Characters of their messages.
    pub length: i64,
}

impl FromRow for Tail {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            line_count: row.get("line_count")?,
            length: row.get("length")?,
        })
    }
}

/// Appends lines to a locked run. A sequence that is there already stays as it is.
///
/// A line may come late, after lines with higher sequences became a segment: segments of one log
/// may overlap, and readers merge.
pub async fn append_lines(tx: &Tx, run: Id<id::Run>, lines: &[Line]) -> Result<(), Error> {
    for line in lines {
        tx.execute(
            "insert into log_lines (run_id, sequence, position, at, level, message)
             values ($1, $2, $3, $4, $5, $6) on conflict (run_id, sequence) do nothing",
            params![
                run,
                line.sequence,
                line.position,
                line.at,
                line.level.as_str(),
                line.message.as_str(),
            ],
        )
        .await?;
    }
    Ok(())
}

/// Returns how much is in the rows of a log.
pub async fn tail(sql: &Sql, run: Id<id::Run>) -> Result<Tail, Error> {
    sql.query_one(
        "select count(*) as line_count, cast(coalesce(sum(length(message)), 0) as bigint) as length
         from log_lines where run_id = $1",
        params![run],
    )
    .await
}

/// Returns the sequence that the next line will have.
pub async fn next_sequence(sql: &Sql, run: Id<id::Run>) -> Result<i64, Error> {
    let text = "select max(last) from (
        select coalesce(max(sequence), 0) as last from log_lines where run_id = $1
        union all
        select coalesce(max(last_sequence), 0) from log_segments where run_id = $1) as ends";
    let last: i64 = sql.query_one(text, params![run]).await?;
    Ok(last + 1)
}

/// Returns lines of the tail above a sequence, in its order.
pub async fn lines_after_sequence(
    sql: &Sql,
    run: Id<id::Run>,
    after: i64,
    limit: i64,
) -> Result<Vec<Line>, Error> {
    let text = "select sequence, position, at, level, message from log_lines
                where run_id = $1 and sequence > $2 order by sequence limit $3";
    sql.query_all(text, params![run, after, limit]).await
}

/// Returns lines of the tail above a position, in its order.
pub async fn lines_after_position(
    sql: &Sql,
    run: Id<id::Run>,
    after: i64,
    limit: i64,
) -> Result<Vec<Line>, Error> {
    let text = "select sequence, position, at, level, message from log_lines
                where run_id = $1 and position > $2 order by position limit $3";
    sql.query_all(text, params![run, after, limit]).await
}

/// Returns the segments with lines above a sequence, by their first one.
pub async fn segments_after_sequence(
    sql: &Sql,
    run: Id<id::Run>,
    after: i64,
    limit: i64,
) -> Result<Vec<Segment>, Error> {
    let text = "select * from log_segments where run_id = $1 and last_sequence > $2
                order by first_sequence limit $3";
    sql.query_all(text, params![run, after, limit]).await
}

/// Returns the segments with lines above a position, by their first one.
pub async fn segments_after_position(
    sql: &Sql,
    run: Id<id::Run>,
    after: i64,
    limit: i64,
) -> Result<Vec<Segment>, Error> {
    let text = "select * from log_segments where run_id = $1 and last_position > $2
                order by first_position limit $3";
    sql.query_all(text, params![run, after, limit]).await
}

/// Puts a segment in the place of its lines, unless they are not all there any more: then it
/// returns false and the transaction must not commit.
pub async fn replace_by_segment(
    tx: &Tx,
    run: Id<id::Run>,
    segment: &Segment,
    line_count: usize,
) -> Result<bool, Error> {
    let removed = tx
        .execute(
            "delete from log_lines where run_id = $1 and sequence >= $2 and sequence <= $3",
            params![run, segment.first_sequence, segment.last_sequence],
        )
        .await?;
    if removed != line_count as u64 {
        return Ok(false);
    }
    tx.execute(
        "insert into log_segments (run_id, first_sequence, last_sequence, first_position,
            last_position, digest, size_bytes, offsets)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        params![
            run,
            segment.first_sequence,
            segment.last_sequence,
            segment.first_position,
            segment.last_position,
            segment.digest.as_str(),
            segment.size_bytes,
            segment.offsets.clone(),
        ],
    )
    .await?;
    Ok(true)
}

//! Chunks of readings, and which telemetry was stored before.

use kit::bus::Sample;
use kit::id::{self, Id};
use kit::params;
use kit::store::{Error, FromRow, Row, Sql, Tx, Value};
use kit::time::Timestamp;

use super::chunk;
use super::packed::broken;
use crate::domain::Reading;

/// The number of values at which a chunk is sealed and a new one begun.
const CHUNK_POINTS: i64 = 1_000;
/// Chunks that are read at a time.
const CHUNKS_AT_A_TIME: i64 = 64;

struct Chunk {
    first_position: i64,
    last_position: i64,
    readings: Vec<Reading>,
}

impl FromRow for Chunk {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let bytes = row.get::<Vec<u8>>("bytes")?;
        Ok(Self {
            first_position: row.get("first_position")?,
            last_position: row.get("last_position")?,
            readings: chunk::decode(&bytes).map_err(|problem| broken("bytes", problem))?,
        })
    }
}

/// Appends readings, which have rising positions, to a locked run.
pub async fn append_readings(
    tx: &Tx,
    run: Id<id::Run>,
    noun: &str,
    readings: &[Reading],
) -> Result<(), Error> {
    let open = tx
        .query_optional::<Chunk>(
            "select first_position, last_position, bytes from chunks
             where run_id = $1 and noun = $2 and not is_sealed",
            params![run, noun],
        )
        .await?;
    let mut grown = open.map_or_else(Vec::new, |open| open.readings);
    for reading in readings {
        grown.push(reading.clone());
        if point_count(&grown) >= CHUNK_POINTS {
            save_chunk(tx, run, noun, &grown, true).await?;
            grown.clear();
        }
    }
    if !grown.is_empty() {
        save_chunk(tx, run, noun, &grown, false).await?;
    }
    Ok(())
}

fn point_count(readings: &[Reading]) -> i64 {
    readings
        .iter()
        .map(|reading| reading.values.len() as i64)
        .sum()
}

async fn save_chunk(
    tx: &Tx,
    run: Id<id::Run>,
    noun: &str,
    readings: &[Reading],
    is_sealed: bool,
) -> Result<(), Error> {
    let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
        return Ok(());
    };
    tx.execute(
        "insert into chunks (run_id, noun, first_position, last_position, point_count, is_sealed,
            bytes)
         values ($1, $2, $3, $4, $5, $6, $7)
         on conflict (run_id, noun, first_position) do update set
            last_position = excluded.last_position, point_count = excluded.point_count,
            is_sealed = excluded.is_sealed, bytes = excluded.bytes",
        params![
            run,
            noun,
            first.position,
            last.position,
            point_count(readings),
            is_sealed,
            chunk::encode(readings),
        ],
    )
    .await?;
    Ok(())
}

/// Returns readings after a position, in their order, and the position up to which that is all
/// there is: `i64::MAX` when nothing was left out.
pub async fn readings_after(
    sql: &Sql,
    run: Id<id::Run>,
    noun: &str,
    after: i64,
    chunk_limit: i64,
) -> Result<(Vec<Reading>, i64), Error> {
    let chunks: Vec<Chunk> = sql
        .query_all(
            "select first_position, last_position, bytes from chunks
             where run_id = $1 and noun = $2 and last_position > $3
             order by first_position limit $4",
            params![run, noun, after, chunk_limit],
        )
        .await?;
    let complete = match chunks.last() {
        Some(last) if chunks.len() as i64 == chunk_limit => last.last_position,
        _ => i64::MAX,
    };
    let readings = chunks.into_iter().flat_map(|chunk| chunk.readings);
    Ok((
        readings
            .filter(|reading| reading.position > after)
            .collect(),
        complete,
    ))
}

/// Hands all readings of a run to `take`, a few chunks at a time.
pub async fn readings(
    sql: &Sql,
    run: Id<id::Run>,
    noun: &str,
    mut take: impl FnMut(Reading),
) -> Result<(), Error> {
    let mut after = i64::MIN;
    loop {
        let chunks: Vec<Chunk> = sql
            .query_all(
                "select first_position, last_position, bytes from chunks
                 where run_id = $1 and noun = $2 and first_position > $3
                 order by first_position limit $4",
                params![run, noun, after, CHUNKS_AT_A_TIME],
            )
            .await?;
        let Some(last) = chunks.last() else {
            return Ok(());
        };
        after = last.first_position;
        chunks
            .into_iter()
            .flat_map(|chunk| chunk.readings)
            .for_each(&mut take);
    }
}

/// Returns which of the samples were not stored before, and notes that all of them are now.
pub async fn first_seen(tx: &Tx, samples: &[Sample]) -> Result<Vec<u64>, Error> {
    if samples.is_empty() {
        return Ok(Vec::new());
    }
    let mut values: Vec<Value> = params![tx.now()];
    let mut rows = Vec::with_capacity(samples.len());
    for sample in samples {
        let sequence = i64::try_from(sample.sequence).unwrap_or(i64::MAX);
        rows.push(format!(
            "(${}, ${}, $1)",
            values.len() + 1,
            values.len() + 2
        ));
        values.extend(params![sequence, sample.stored_at]);
    }
    let text = format!(
        "insert into telemetry_seen (sequence, stored_at, seen_at) values {}
         on conflict (sequence, stored_at) do nothing returning sequence",
        rows.join(", ")
    );
    let new: Vec<i64> = tx.query_all(&text, values).await?;
    Ok(new.into_iter().map(i64::unsigned_abs).collect())
}

/// Forgets what was stored so long ago that the stream can't deliver it again.
pub async fn forget_seen(tx: &Tx, before: Timestamp) -> Result<u64, Error> {
    tx.execute(
        "delete from telemetry_seen where seen_at < $1",
        params![before],
    )
    .await
}

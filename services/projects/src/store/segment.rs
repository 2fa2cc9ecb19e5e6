//! A stretch of a log as a blob, and the index that finds a line in it.
//!
//! A segment is its lines one after the other, each a protobuf message behind its length. The
//! index, which stays in the database, has the sequence and the byte offset of every 64th line:
//! a page of a long log is one range request.

use kit::time::Timestamp;
use prost::Message;

use super::chunk::{differences, sums};
use crate::domain::Line;

/// How many lines share one entry of the index.
const INDEX_EVERY: usize = 64;

#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(int64, tag = "1")]
    sequence: i64,
    #[prost(int64, tag = "2")]
    position: i64,
    #[prost(int64, tag = "3")]
    at_micros: i64,
    #[prost(string, tag = "4")]
    level: String,
    #[prost(string, tag = "5")]
    message: String,
}

/// Where lines begin.
#[derive(Clone, PartialEq, Message)]
struct Index {
    #[prost(sint64, repeated, tag = "1")]
    sequences: Vec<i64>,
    #[prost(sint64, repeated, tag = "2")]
    offsets: Vec<i64>,
}

/// Packs lines in the order of their sequences; returns the bytes and their index.
pub fn encode_lines(lines: &[Line]) -> (Vec<u8>, Vec<u8>) {
    let mut bytes = Vec::new();
    let (mut sequences, mut offsets) = (Vec::new(), Vec::new());
    for (place, line) in lines.iter().enumerate() {
        if place % INDEX_EVERY == 0 {
            sequences.push(line.sequence);
            offsets.push(bytes.len() as i64);
        }
        let record = Record {
            sequence: line.sequence,
            position: line.position,
            at_micros: line.at.micros(),
            level: line.level.clone(),
            message: line.message.clone(),
        };
        bytes.extend(record.encode_length_delimited_to_vec());
    }
    let index = Index {
        sequences: differences(sequences),
        offsets: differences(offsets),
    };
    (bytes, index.encode_to_vec())
}

/// Unpacks lines from bytes that begin with one.
pub fn decode_lines(mut bytes: &[u8]) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    while !bytes.is_empty() {
        let record =
            Record::decode_length_delimited(&mut bytes).map_err(|error| error.to_string())?;
        lines.push(Line {
            sequence: record.sequence,
            position: record.position,
            at: Timestamp::from_micros(record.at_micros),
            level: record.level,
            message: record.message,
        });
    }
    Ok(lines)
}

/// Returns the offset of a line that is not after the first one above `after`.
pub fn offset_of(index: &[u8], after: i64) -> Result<u64, String> {
    let Index { sequences, offsets } = Index::decode(index).map_err(|error| error.to_string())?;
    let (sequences, offsets) = (sums(sequences), sums(offsets));
    let before = sequences
        .iter()
        .zip(offsets)
        .take_while(|(sequence, _)| **sequence <= after);
    let offset = before.last().map_or(0, |(_, offset)| offset);
    u64::try_from(offset).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: i64) -> Vec<Line> {
        let line = |place: i64| Line {
            sequence: place * 2 + 1,
            position: place + 10,
            at: Timestamp::from_micros(place),
            level: "info".into(),
            message: format!("line {place} ä"),
        };
        (0..count).map(line).collect()
    }

    #[test]
    fn lines_survive_their_bytes() {
        let all = lines(200);
        let (bytes, _) = encode_lines(&all);
        assert_eq!(decode_lines(&bytes).unwrap(), all);
        assert_eq!(decode_lines(&[]).unwrap(), []);
        assert!(decode_lines(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn the_index_leads_to_a_line_at_or_before_the_wanted_one() {
        let all = lines(200);
        let (bytes, index) = encode_lines(&all);
        for after in [0, 1, 127, 128, 129, 130, 398, 399, 1_000] {
            let offset = offset_of(&index, after).unwrap() as usize;
            let tail = decode_lines(&bytes[offset..]).unwrap();
            let wanted: Vec<_> = all.iter().filter(|line| line.sequence > after).collect();
            let found: Vec<_> = tail.iter().filter(|line| line.sequence > after).collect();
            assert_eq!(found, wanted, "{after}");
            assert!(tail.len() <= wanted.len() + INDEX_EVERY, "{after}");
        }
    }
}

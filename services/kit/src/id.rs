//! Identities of things: UUIDv7 in 16 bytes, shown as a TypeID such as `run_01k…`.
//!
//! The table of prefixes at the end of the first block is append-only: a prefix, once shown to
//! anybody, keeps its meaning.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fault::{Fault, Kind};
use crate::time::Timestamp;

/// A kind of thing that has an identity.
pub trait Entity: 'static {
    /// What stands before the underscore.
    const PREFIX: &'static str;
    /// What people call it.
    const NAME: &'static str;
}

macro_rules! entities {
    ($($marker:ident $prefix:literal $name:literal,)*) => {
        $(
            #[doc = concat!("Marks the id of a ", $name, ": `", $prefix, "_…`.")]
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum $marker {}

            impl Entity for $marker {
                const PREFIX: &'static str = $prefix;
                const NAME: &'static str = $name;
            }
        )*

        /// Every prefix with what it stands for, in the order they were given out.
        pub const PREFIXES: &[(&str, &str)] = &[$(($prefix, $name)),*];
    };
}

entities! {
    Workspace "ws" "workspace",
    User "usr" "user",
    Key "key" "API key",
    Dataset "ds" "dataset",
    Version "dsv" "dataset version",
    Image "img" "image",
    Annotation "ann" "annotation",
    Upload "up" "upload",
    Project "prj" "project",
    Run "run" "run",
    Attempt "att" "attempt",
    Checkpoint "ckp" "checkpoint",
    Model "mdl" "model",
    Account "acct" "account",
    Transfer "trf" "transfer",
    Hold "hld" "hold",
    Job "job" "job",
    Lease "lea" "lease",
    Worker "wrk" "worker",
    Endpoint "end" "endpoint",
    Revision "rev" "revision",
    Event "evt" "event",
    Quote "qte" "quote",
    Import "imp" "import",
}

/// Identifies one thing of kind `E`.
pub struct Id<E> {
    bytes: [u8; 16],
    entity: PhantomData<fn() -> E>,
}

impl<E: Entity> Id<E> {
    /// Returns a new id, ordered by `now` to about a microsecond and random below that.
    ///
    /// The layout is UUIDv7 with the fraction of the millisecond in the twelve bits after the
    /// version (RFC 9562, 6.2, method 3).
    pub fn new(now: Timestamp) -> Self {
        let micros = now.micros().max(0).unsigned_abs();
        let (millis, rest) = (micros / 1000, micros % 1000);
        let fraction = (rest * 4096 / 1000) as u16;
        let mut bytes: [u8; 16] = rand::random();
        bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
        bytes[6..8].copy_from_slice(&(0x7000 | fraction).to_be_bytes());
        bytes[8] = 0x80 | (bytes[8] & 0x3f);
        Self::from_bytes(bytes)
    }

    /// Returns the id with these sixteen bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self {
            bytes,
            entity: PhantomData,
        }
    }

    /// Returns the sixteen bytes, as they are stored.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.bytes
    }

    /// Returns the instant the id was made at, to the millisecond.
    pub fn made_at(&self) -> Timestamp {
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&self.bytes[..6]);
        Timestamp::from_millis(i64::from_be_bytes(millis))
    }

    /// Parses the id in a request's `field`; the refusal names both.
    pub fn parse_field(field: &str, text: &str) -> Result<Self, Fault> {
        text.parse::<Self>().map_err(|error| {
            Fault::new(
                Kind::Invalid,
                "ID_INVALID",
                "kit",
                format!("{field}: {error}"),
            )
            .violation(field, error.to_string())
        })
    }

    /// Parses the id in a request's `field`, where an empty text means none.
    pub fn parse_optional(field: &str, text: &str) -> Result<Option<Self>, Fault> {
        if text.is_empty() {
            Ok(None)
        } else {
            Self::parse_field(field, text).map(Some)
        }
    }
}

/// Why a text is not the id that was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not the id of a {name}: expected '{prefix}_' and 26 base32 characters")]
pub struct ParseError {
    /// What was given, cut to a length that fits a message.
    pub text: String,
    /// The prefix that was expected.
    pub prefix: &'static str,
    /// What the prefix stands for.
    pub name: &'static str,
}

impl From<ParseError> for Fault {
    fn from(error: ParseError) -> Self {
        Fault::new(Kind::Invalid, "ID_INVALID", "kit", error.to_string())
    }
}

impl<E: Entity> FromStr for Id<E> {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        text.strip_prefix(E::PREFIX)
            .and_then(|rest| rest.strip_prefix('_'))
            .and_then(decode)
            .map(Self::from_bytes)
            .ok_or_else(|| ParseError {
                text: text.chars().take(40).collect(),
                prefix: E::PREFIX,
                name: E::NAME,
            })
    }
}

impl<E: Entity> fmt::Display for Id<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = encode(&self.bytes);
        let digits = std::str::from_utf8(&digits).map_err(|_| fmt::Error)?;
        write!(out, "{}_{digits}", E::PREFIX)
    }
}

impl<E: Entity> fmt::Debug for Id<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

// Derives would ask the marker for traits that it doesn't need.
impl<E> Clone for Id<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Id<E> {}

impl<E> PartialEq for Id<E> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<E> Eq for Id<E> {}

impl<E> PartialOrd for Id<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Id<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl<E> Hash for Id<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl<E: Entity> Serialize for Id<E> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, E: Entity> Deserialize<'de> for Id<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const DIGITS: usize = 26;

fn encode(bytes: &[u8; 16]) -> [u8; DIGITS] {
    let number = u128::from_be_bytes(*bytes);
    let mut digits = [0; DIGITS];
    for (place, digit) in digits.iter_mut().rev().enumerate() {
        *digit = ALPHABET[(number >> (5 * place)) as usize & 31];
    }
    digits
}

/// Returns `None` for a wrong length, a foreign character, or a first digit that needs more than
/// the three bits that are left of 128.
fn decode(digits: &str) -> Option<[u8; 16]> {
    if digits.len() != DIGITS {
        return None;
    }
    let mut number = 0_u128;
    for (place, digit) in digits.bytes().enumerate() {
        let value = ALPHABET.iter().position(|known| *known == digit)?;
        if place == 0 && value > 7 {
            return None;
        }
        number = number << 5 | value as u128;
    }
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let id = Id::<Run>::new(Timestamp::from_micros(1_796_054_400_123_456));
        let text = id.to_string();
        assert!(text.starts_with("run_01"), "{text}");
        assert_eq!(text.parse::<Id<Run>>(), Ok(id));
        assert_eq!(id.made_at().micros(), 1_796_054_400_123_000);
        assert_eq!(serde_json::to_string(&id).unwrap(), format!("\"{text}\""));
        assert_eq!(
            serde_json::from_str::<Id<Run>>(&format!("\"{text}\"")).unwrap(),
            id
        );
    }

    #[test]
    fn a_text_is_the_published_typeid_of_its_uuid() {
        // The valid vectors "nil", "max" and "valid-uuidv7" of the TypeID specification.
        let nil = Id::<Run>::from_bytes([0; 16]);
        assert_eq!(nil.to_string(), "run_00000000000000000000000000");
        let max = Id::<Run>::from_bytes([0xff; 16]);
        assert_eq!(max.to_string(), "run_7zzzzzzzzzzzzzzzzzzzzzzzzz");
        let known = 0x01890a5d_ac96_774b_bcce_b302099a8057_u128;
        let known = Id::<Run>::from_bytes(known.to_be_bytes());
        assert_eq!(known.to_string(), "run_01h455vb4pex5vsknk084sn02q");
        assert_eq!(known.to_string().parse(), Ok(known));
    }

    #[test]
    fn ids_order_by_the_microsecond_they_were_made_at() {
        let mut previous = Id::<Job>::new(Timestamp::from_micros(1_000_000));
        for micros in 1_000_001..1_003_000 {
            let next = Id::<Job>::new(Timestamp::from_micros(micros));
            assert!(previous < next, "{previous} {next}");
            assert!(previous.to_string() < next.to_string());
            assert_eq!(next.as_bytes()[6] >> 4, 7);
            assert_eq!(next.as_bytes()[8] >> 6, 2);
            previous = next;
        }
    }

    #[test]
    fn a_refusal_names_the_prefix_it_expected() {
        let model = Id::<Model>::new(Timestamp::from_micros(1)).to_string();
        for text in [
            "",
            "run",
            "run_",
            "run_abc",
            &model,
            "run_80000000000000000000000000",
        ] {
            let error = text.parse::<Id<Run>>().unwrap_err();
            assert!(error.to_string().contains("expected 'run_'"), "{error}");
        }
        let fault = Id::<Run>::parse_field("run_id", "x").unwrap_err();
        assert_eq!(fault.violations[0].field, "run_id");
    }

    #[test]
    fn prefixes_are_unique() {
        let unique: BTreeSet<_> = PREFIXES.iter().map(|(prefix, _)| prefix).collect();
        assert_eq!(unique.len(), PREFIXES.len());
    }
}

//! How values are written: durations as `15m`, sizes as `64MiB`, secrets not at all.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A value that must not be shown: prints and serialises as `***`.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// Returns the value, to the one place that needs it.
    pub const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

impl<T> fmt::Display for Secret<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("***")
    }
}

impl<T> Serialize for Secret<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}

const DURATION_UNITS: [(&str, u64); 6] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
    ("min", 60_000),
];

const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1000),
    ("B", 1),
];

/// Reads `1h30m`, `15m`, `30s` or `250ms`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let refuse = || format!("'{text}' is not a duration: expected such as 250ms, 30s, 15m, 1h30m");
    let mut rest = text.trim();
    let mut millis = 0_u64;
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(refuse());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .ok_or_else(refuse)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let (_, factor) = DURATION_UNITS
            .iter()
            .find(|(u, _)| *u == unit)
            .ok_or_else(refuse)?;
        let part = number.checked_mul(*factor).ok_or_else(refuse)?;
        millis = millis.checked_add(part).ok_or_else(refuse)?;
        rest = tail;
    }
    Ok(Duration::from_millis(millis))
}

/// Writes a duration as `parse_duration` reads it; drops what is below a millisecond.
pub fn format_duration(span: Duration) -> String {
    let mut millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (unit, factor) in &DURATION_UNITS[..5] {
        if millis >= *factor {
            text.push_str(&format!("{}{unit}", millis / factor));
            millis %= factor;
        }
    }
    text
}

/// Reads `64MiB`, `2GB`, `512B` or a bare number of bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let refuse = || format!("'{text}' is not a size: expected such as 512B, 64MiB, 2GB");
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let unit = unit.trim_start();
    if unit.is_empty() {
        return Ok(number);
    }
    let (_, factor) = SIZE_UNITS
        .iter()
        .find(|(u, _)| *u == unit)
        .ok_or_else(refuse)?;
    number.checked_mul(*factor).ok_or_else(refuse)
}

/// Writes a size in the largest binary unit that loses nothing.
pub fn format_size(bytes: u64) -> String {
    let binary = &SIZE_UNITS[..4];
    match binary
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
    {
        Some((unit, factor)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

/// For `#[serde(with = "kit::config::duration")]` on a `Duration`.
pub mod duration {
    use super::*;

    /// Writes `15m`.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_duration(*span))
    }

    /// Reads `15m`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map_err(serde::de::Error::custom)
    }
}

/// For `#[serde(with = "kit::config::size")]` on a `u64` of bytes.
pub mod size {
    use super::*;

    /// Writes `64MiB`.
    pub fn serialize<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format_size(*bytes))
    }

    /// Reads `64MiB`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(bytes),
            Written::Text(text) => parse_size(&text).map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_survives_its_text() {
        for text in ["250ms", "30s", "15m", "1h30m", "30d", "1d2h3m4s5ms", "0s"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        for text in [
            "",
            "15",
            "m",
            "15 minutes",
            "-1s",
            "1.5h",
            "99999999999999999d",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_survives_its_text() {
        for text in ["512B", "64MiB", "3GiB", "0B"] {
            assert_eq!(format_size(parse_size(text).unwrap()), text);
        }
        assert_eq!(parse_size("2GB"), Ok(2_000_000_000));
        for text in ["", "MiB", "1.5MiB", "64mib", "-1", "99999999999TiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_secret_never_prints() {
        let secret = Secret::new("hunter2".to_owned());
        let shown = format!(
            "{secret} {secret:?} {}",
            serde_json::to_string(&secret).unwrap()
        );
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(secret.expose(), "hunter2");
    }
}

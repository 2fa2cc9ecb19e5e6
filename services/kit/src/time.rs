//! Instants, deadlines and the clock: the only place that reads the system's time.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::watch;

/// An instant: microseconds since 1970 in UTC, between the years 1 and 9999.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);
    /// 0001-01-01T00:00:00Z, the earliest that RFC 3339 and protobuf can both write.
    pub const MIN: Self = Self(-62_135_596_800_000_000);
    /// 9999-12-31T23:59:59.999999Z.
    pub const MAX: Self = Self(253_402_300_799_999_999);

    /// Returns the instant this many microseconds after 1970, kept between `MIN` and `MAX`.
    pub const fn from_micros(micros: i64) -> Self {
        if micros < Self::MIN.0 {
            Self::MIN
        } else if micros > Self::MAX.0 {
            Self::MAX
        } else {
            Self(micros)
        }
    }

    /// Returns the instant this many milliseconds after 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self::from_micros(millis.saturating_mul(1000))
    }

    /// Returns the instant this many seconds after 1970.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self::from_micros(seconds.saturating_mul(1_000_000))
    }

    /// Returns the microseconds since 1970.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns the time that passed since `earlier`, or zero where that lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }

    /// Returns the time that is left until `later`, or zero where that has passed.
    pub fn until(self, later: Self) -> Duration {
        later.since(self)
    }

    fn calendar(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).expect("invariant: between the years 1 and 9999")
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Stops at `MAX`.
    fn add(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_add(micros))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// Stops at `MIN`.
    fn sub(self, span: Duration) -> Self {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Self::from_micros(self.0.saturating_sub(micros))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.calendar().to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Why a text or message is not an instant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an instant: expected RFC 3339 such as 2026-11-30T16:00:00Z, year 1 to 9999")]
pub struct ParseError(String);

impl FromStr for Timestamp {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError(text.chars().take(40).collect());
        let micros = DateTime::parse_from_rfc3339(text)
            .map_err(|_| refuse())?
            .timestamp_micros();
        let instant = Self::from_micros(micros);
        if instant.0 == micros {
            Ok(instant)
        } else {
            Err(refuse())
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl From<Timestamp> for prost_types::Timestamp {
    fn from(instant: Timestamp) -> Self {
        Self {
            seconds: instant.0.div_euclid(1_000_000),
            nanos: (instant.0.rem_euclid(1_000_000) * 1000) as i32,
        }
    }
}

impl TryFrom<prost_types::Timestamp> for Timestamp {
    type Error = ParseError;

    /// Drops what is below the microsecond.
    fn try_from(message: prost_types::Timestamp) -> Result<Self, ParseError> {
        let refuse = || ParseError(format!("{}s {}ns", message.seconds, message.nanos));
        if !(0..1_000_000_000).contains(&message.nanos) {
            return Err(refuse());
        }
        let micros = i128::from(message.seconds) * 1_000_000 + i128::from(message.nanos / 1000);
        let micros = i64::try_from(micros).map_err(|_| refuse())?;
        let instant = Self::from_micros(micros);
        if instant.0 == micros {
            Ok(instant)
        } else {
            Err(refuse())
        }
    }
}

/// Tells the time. Clones share one source.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Manual(Arc<watch::Sender<Timestamp>>),
}

impl Clock {
    /// Returns the clock of this machine.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Returns a clock that stands at `start` until it is told to move; for tests.
    pub fn manual(start: Timestamp) -> Self {
        Self(Source::Manual(Arc::new(watch::Sender::new(start))))
    }

    /// Returns what the clock shows.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::from_micros(Utc::now().timestamp_micros()),
            Source::Manual(hand) => *hand.borrow(),
        }
    }

    /// Moves a manual clock forward and wakes who sleeps on it.
    ///
    /// # Panics
    /// On the system's clock: only tests may move time.
    pub fn advance(&self, span: Duration) {
        match &self.0 {
            Source::System => panic!("invariant: only a manual clock can be moved"),
            Source::Manual(hand) => hand.send_modify(|now| *now = *now + span),
        }
    }

    /// Sleeps until the clock shows `instant`; a manual clock must be moved there.
    pub async fn sleep_until(&self, instant: Timestamp) {
        match &self.0 {
            Source::System => tokio::time::sleep(self.now().until(instant)).await,
            Source::Manual(hand) => {
                // Fails only when the clock is gone, and `self` holds it.
                let _ = hand.subscribe().wait_for(|now| *now >= instant).await;
            }
        }
    }

    /// Sleeps for `span` of this clock's time.
    pub async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }

    /// Returns the deadline that lies `span` ahead.
    pub fn deadline(&self, span: Duration) -> Deadline {
        Deadline {
            at: self.now() + span,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

/// The instant by which something must be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Deadline {
    at: Timestamp,
}

impl Deadline {
    /// Returns the deadline at this instant.
    pub const fn at(instant: Timestamp) -> Self {
        Self { at: instant }
    }

    /// Returns the instant.
    pub const fn instant(self) -> Timestamp {
        self.at
    }

    /// Returns the time that is left, zero when it has passed.
    pub fn remaining(self, now: Timestamp) -> Duration {
        now.until(self.at)
    }

    /// Tells whether the deadline has come.
    pub fn is_past(self, now: Timestamp) -> bool {
        now >= self.at
    }
}

/// Measures how long something takes, unmoved by changes of the system's clock.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Starts measuring.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module is where time is read"
    )]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_survives_its_text_and_its_message() {
        for micros in [
            0,
            -1,
            1_796_054_400_123_456,
            Timestamp::MIN.0,
            Timestamp::MAX.0,
        ] {
            let instant = Timestamp::from_micros(micros);
            assert_eq!(instant.to_string().parse(), Ok(instant));
            assert_eq!(
                prost_types::Timestamp::from(instant).try_into(),
                Ok(instant)
            );
        }
        assert_eq!(Timestamp::EPOCH.to_string(), "1970-01-01T00:00:00.000000Z");
        assert_eq!("1970-01-01T01:00:00+01:00".parse(), Ok(Timestamp::EPOCH));
    }

    #[test]
    fn what_is_no_instant_is_refused() {
        assert!("yesterday".parse::<Timestamp>().is_err());
        let odd = prost_types::Timestamp {
            seconds: 0,
            nanos: -1,
        };
        assert!(Timestamp::try_from(odd).is_err());
        let far = prost_types::Timestamp {
            seconds: i64::MAX,
            nanos: 0,
        };
        assert!(Timestamp::try_from(far).is_err());
    }

    #[test]
    fn sums_stop_at_the_ends_of_time() {
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::MIN - Duration::MAX, Timestamp::MIN);
        assert_eq!(Timestamp::EPOCH.since(Timestamp::MAX), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_sleepers_when_moved() {
        let clock = Clock::manual(Timestamp::EPOCH);
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(Timestamp::from_seconds(10)).await }
        });
        clock.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
        assert!(Deadline::at(Timestamp::from_seconds(10)).is_past(clock.now()));
    }
}

//! Money in whole micro-credits. There is no floating point here, and one rounding, in a function
//! whose name says which way.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Micro-credits in one credit.
pub const MICROS_PER_CREDIT: i64 = 1_000_000;

/// An amount of credits; may be negative, as one side of a transfer is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount(i64);

/// Why an amount can't be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The result lies beyond 64 bits of micro-credits.
    #[error("the amount does not fit 64 bits of micro-credits")]
    Overflow,
    /// A price below zero.
    #[error("a price may not be negative")]
    NegativePrice,
    /// A text that is no amount.
    #[error("'{0}' is not an amount: expected credits with at most six decimals, such as 12.50")]
    Unreadable(String),
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// Returns this many micro-credits.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the micro-credits.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Tells whether the amount is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// Tells whether the amount is nothing.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Returns the sum.
    pub fn checked_add(self, other: Self) -> Result<Self, Error> {
        self.0.checked_add(other.0).map(Self).ok_or(Error::Overflow)
    }

    /// Returns the difference.
    pub fn checked_sub(self, other: Self) -> Result<Self, Error> {
        self.0.checked_sub(other.0).map(Self).ok_or(Error::Overflow)
    }

    /// Returns the opposite.
    pub fn checked_neg(self) -> Result<Self, Error> {
        self.0.checked_neg().map(Self).ok_or(Error::Overflow)
    }

    /// Returns the sum of them all.
    pub fn checked_sum(amounts: impl IntoIterator<Item = Self>) -> Result<Self, Error> {
        amounts.into_iter().try_fold(Self::ZERO, Self::checked_add)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = MICROS_PER_CREDIT.unsigned_abs();
        let size = self.0.unsigned_abs();
        let sign = if self.0 < 0 { "-" } else { "" };
        out.pad(&format!("{sign}{}.{:06}", size / unit, size % unit))
    }
}

impl fmt::Debug for Amount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for Amount {
    type Err = Error;

    /// Reads `12`, `12.5` or `-0.000001`: digits on both sides of a point, no signs but a minus.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = || Error::Unreadable(text.chars().take(40).collect());
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        let (is_negative, size) = match text.strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, text),
        };
        let (whole, decimals) = size.split_once('.').unwrap_or((size, "0"));
        if !digits(whole) || !digits(decimals) || decimals.len() > 6 {
            return Err(refuse());
        }
        let micros = whole.parse::<i128>().map_err(|_| Error::Overflow)?;
        let micros = micros
            .checked_mul(i128::from(MICROS_PER_CREDIT))
            .ok_or(Error::Overflow)?
            + format!("{decimals:0<6}")
                .parse::<i128>()
                .map_err(|_| refuse())?;
        let micros = if is_negative { -micros } else { micros };
        i64::try_from(micros).map(Self).map_err(|_| Error::Overflow)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The price of one hour, never negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PricePerHour(i64);

impl PricePerHour {
    /// Free of charge.
    pub const ZERO: Self = Self(0);

    /// Returns the price of this many micro-credits an hour.
    pub const fn from_micros(micros: i64) -> Result<Self, Error> {
        if micros < 0 {
            Err(Error::NegativePrice)
        } else {
            Ok(Self(micros))
        }
    }

    /// Returns the micro-credits an hour costs.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// Returns what one hour costs.
    pub const fn amount(self) -> Amount {
        Amount(self.0)
    }
}

impl fmt::Display for PricePerHour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.amount().fmt(out)
    }
}

impl fmt::Debug for PricePerHour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl FromStr for PricePerHour {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::from_micros(text.parse::<Amount>()?.micros())
    }
}

impl Serialize for PricePerHour {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PricePerHour {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Returns `price × time` to the nearest micro-credit, a half counting up.
///
/// The product is exact (`i128`, nanoseconds) and rounded once, so that charging a total and
/// subtracting what was charged before never drifts.
pub fn cost_rounded_half_up(price: PricePerHour, time: Duration) -> Result<Amount, Error> {
    const NANOS_PER_HOUR: i128 = 3_600_000_000_000;
    let nanos = i128::try_from(time.as_nanos()).map_err(|_| Error::Overflow)?;
    let product = i128::from(price.0)
        .checked_mul(nanos)
        .ok_or(Error::Overflow)?;
    let rounded = product
        .checked_add(NANOS_PER_HOUR / 2)
        .ok_or(Error::Overflow)?
        / NANOS_PER_HOUR;
    i64::try_from(rounded)
        .map(Amount)
        .map_err(|_| Error::Overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_survives_its_text() {
        for micros in [0, 1, -1, 1_234_567, -1_500_000, i64::MAX, i64::MIN] {
            let amount = Amount::from_micros(micros);
            assert_eq!(amount.to_string().parse(), Ok(amount));
        }
        assert_eq!(Amount::from_micros(1_234_567).to_string(), "1.234567");
        assert_eq!(Amount::from_micros(-1).to_string(), "-0.000001");
        assert_eq!("12.5".parse(), Ok(Amount::from_micros(12_500_000)));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in [
            "",
            "-",
            ".",
            "1.",
            ".5",
            "1e3",
            "+1",
            "1.2345678",
            "1,5",
            "--1",
            "1.-5",
        ] {
            assert!(
                matches!(text.parse::<Amount>(), Err(Error::Unreadable(_))),
                "{text}"
            );
        }
        assert_eq!(
            "9223372036854.775808".parse::<Amount>(),
            Err(Error::Overflow)
        );
        assert!("-1".parse::<PricePerHour>().is_err());
    }

    #[test]
    fn sums_never_wrap() {
        let most = Amount::from_micros(i64::MAX);
        assert_eq!(
            most.checked_add(Amount::from_micros(1)),
            Err(Error::Overflow)
        );
        assert_eq!(
            Amount::from_micros(i64::MIN).checked_neg(),
            Err(Error::Overflow)
        );
        assert_eq!(Amount::checked_sum([most, most]), Err(Error::Overflow));
    }

    #[test]
    fn a_half_micro_credit_counts_up_once() {
        let price = PricePerHour::from_micros(3_600).unwrap();
        let cost = |micros| cost_rounded_half_up(price, Duration::from_micros(micros)).unwrap();
        assert_eq!(cost(1_000_000).micros(), 1);
        assert_eq!(cost(499_999).micros(), 0);
        assert_eq!(cost(500_000).micros(), 1);
        assert_eq!(cost(1_499_999).micros(), 1);
        let dear = PricePerHour::from_micros(i64::MAX).unwrap();
        let hour = Duration::from_secs(3600);
        assert_eq!(cost_rounded_half_up(dear, hour).unwrap().micros(), i64::MAX);
        assert_eq!(cost_rounded_half_up(dear, hour * 2), Err(Error::Overflow));
        assert_eq!(
            cost_rounded_half_up(dear, Duration::MAX),
            Err(Error::Overflow)
        );
    }
}

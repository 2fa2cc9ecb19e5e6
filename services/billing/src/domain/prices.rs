//! What an hour of each device type costs, since when, and from which plan on.

use std::time::Duration;

use kit::money::PricePerHour;
use kit::time::Timestamp;
use serde::Deserialize;

use super::Plan;
use crate::error::Error;

/// The longest name of a device type, in characters.
pub const GPU_TYPE_CHARACTERS_MAX: usize = 40;
/// The dearest hour that may be set: ten thousand credits.
pub const PER_HOUR_MICROS_MAX: i64 = 10_000_000_000;

/// What one device type costs, from an instant until the next price of that type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Such as `cpu` or `rtx-4090`.
    pub gpu_type: String,
    pub per_hour: PricePerHour,
    /// The least plan that may use it.
    pub plan: Plan,
    pub valid_from: Timestamp,
}

/// A new price for a device type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetPrice {
    pub gpu_type: String,
    pub per_hour: PricePerHour,
    /// None keeps what it was; `free` for a type that is new.
    pub plan: Option<Plan>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Seed {
    gpu_type: String,
    per_hour: PricePerHour,
    plan: String,
}

/// Returns the prices a new installation starts with.
pub fn seeds(now: Timestamp) -> Vec<Price> {
    let seeds: Vec<Seed> = serde_json::from_str(include_str!("../prices.json"))
        .expect("invariant: prices.json is checked by a test");
    let price = |seed: Seed| Price {
        gpu_type: seed.gpu_type,
        per_hour: seed.per_hour,
        plan: Plan::from_name(&seed.plan)
            .expect("invariant: the plans of prices.json are checked by a test"),
        valid_from: now,
    };
    seeds.into_iter().map(price).collect()
}

/// Returns the price that holds at `now` among those of one device type.
pub fn current(history: &[Price], now: Timestamp) -> Option<&Price> {
    let begun = history.iter().filter(|price| price.valid_from <= now);
    begun.max_by_key(|price| price.valid_from)
}

/// Returns the price of a device type for a workspace on `plan`.
pub fn quote(
    history: &[Price],
    gpu_type: &str,
    plan: Plan,
    now: Timestamp,
) -> Result<Price, Error> {
    let price = current(history, now).ok_or_else(|| Error::GpuTypeUnknown(gpu_type.to_owned()))?;
    if plan < price.plan {
        return Err(Error::GpuNotInPlan {
            gpu_type: gpu_type.to_owned(),
            needed: price.plan,
            plan,
        });
    }
    Ok(price.clone())
}

/// Checks that a device type cost `per_hour` at some instant since `since`: a price that was
/// quoted a moment ago stays good when the list changes in between.
pub fn check_quoted(
    history: &[Price],
    gpu_type: &str,
    per_hour: PricePerHour,
    now: Timestamp,
    quote_ttl: Duration,
) -> Result<(), Error> {
    let since = now - quote_ttl;
    let at_since = current(history, since).map_or(Timestamp::MIN, |price| price.valid_from);
    let mut recent = history
        .iter()
        .filter(|price| price.valid_from >= at_since && price.valid_from <= now);
    if recent.any(|price| price.per_hour == per_hour) {
        Ok(())
    } else {
        Err(Error::PriceNotQuoted {
            gpu_type: gpu_type.to_owned(),
            per_hour,
        })
    }
}

/// Returns the row that makes a new price hold, or none where it holds already.
pub fn set_price(
    history: &[Price],
    command: SetPrice,
    now: Timestamp,
) -> Result<Option<Price>, Error> {
    check_gpu_type(&command.gpu_type)?;
    if command.per_hour.micros() > PER_HOUR_MICROS_MAX {
        return Err(Error::PriceInvalid {
            rule: format!("must be at most {PER_HOUR_MICROS_MAX}"),
        });
    }
    let newest = history.iter().max_by_key(|price| price.valid_from);
    let kept = newest.map_or(Plan::default(), |price| price.plan);
    let plan = command.plan.unwrap_or(kept);
    if newest.is_some_and(|price| price.per_hour == command.per_hour && price.plan == plan) {
        return Ok(None);
    }
    // Two changes within a microsecond, or a clock set back, must not hide the later one.
    let after_newest = newest.map_or(now, |price| price.valid_from + Duration::from_micros(1));
    Ok(Some(Price {
        gpu_type: command.gpu_type,
        per_hour: command.per_hour,
        plan,
        valid_from: now.max(after_newest),
    }))
}

/// Checks the form of a device type's name.
pub fn check_gpu_type(name: &str) -> Result<(), Error> {
    let is_allowed =
        |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    if name.is_empty()
        || name.len() > GPU_TYPE_CHARACTERS_MAX
        || !name.bytes().all(is_allowed)
        || name.starts_with('-')
        || name.ends_with('-')
    {
        return Err(Error::GpuTypeInvalid(name.chars().take(60).collect()));
    }
    Ok(())
}

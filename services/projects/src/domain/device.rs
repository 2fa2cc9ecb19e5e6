//! Which device type a run gets, from what the scheduler estimates for each.

use kit::money::PricePerHour;

use super::run::Estimate;
use crate::error::Error;

/// What a run would take on one device type.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// The type.
    pub gpu_type: String,
    /// Whether a provider here has one.
    pub is_offered: bool,
    /// Whether the workspace's plan includes it.
    pub is_allowed: bool,
    /// Whether the batch fits in its memory.
    pub fits: bool,
    /// What the plan needs.
    pub needed_bytes: i64,
    /// What it has.
    pub memory_bytes: i64,
    /// The largest batch that fits.
    pub largest_batch: i32,
    /// Time and cost.
    pub estimate: Estimate,
    /// What an hour costs.
    pub price: PricePerHour,
    /// Why it can't be chosen, for people.
    pub remark: String,
}

impl Device {
    fn check(&self, batch: i32) -> Result<(), Error> {
        if !self.is_offered {
            return Err(Error::GpuNotOffered(self.gpu_type.clone()));
        }
        if !self.is_allowed {
            return Err(Error::GpuNotInPlan(self.gpu_type.clone()));
        }
        if !self.fits {
            return Err(Error::BatchDoesNotFit {
                gpu_type: self.gpu_type.clone(),
                batch,
                needed_bytes: self.needed_bytes,
                memory_bytes: self.memory_bytes,
                largest_batch: self.largest_batch,
            });
        }
        Ok(())
    }
}

const REMARKS_MAX: usize = 5;

/// Returns the device type that was asked for, or the cheapest usable one, if it may be used.
pub fn choose_device(devices: &[Device], gpu_type: &str, batch: i32) -> Result<Device, Error> {
    if !gpu_type.is_empty() {
        let device = devices
            .iter()
            .find(|device| device.gpu_type == gpu_type)
            .ok_or_else(|| Error::GpuNotOffered(gpu_type.to_owned()))?;
        device.check(batch)?;
        return Ok(device.clone());
    }
    let usable = devices.iter().filter(|device| device.check(batch).is_ok());
    if let Some(cheapest) = usable.min_by_key(|device| device.estimate.cost_likely_micros) {
        return Ok(cheapest.clone());
    }
    // Those that are here say more than those that nobody has.
    let offered: Vec<_> = devices.iter().filter(|device| device.is_offered).collect();
    if let [only] = offered[..] {
        only.check(batch)?;
    }
    let refusals = offered
        .iter()
        .filter_map(|device| device.check(batch).err());
    let reasons: Vec<_> = refusals
        .map(|error| error.to_string())
        .take(REMARKS_MAX)
        .collect();
    let reasons = if reasons.is_empty() {
        "none is offered".into()
    } else {
        reasons.join("; ")
    };
    Err(Error::NoDeviceFits(reasons))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(gpu_type: &str, cost: i64) -> Device {
        Device {
            gpu_type: gpu_type.into(),
            is_offered: true,
            is_allowed: true,
            fits: true,
            needed_bytes: 2_000,
            memory_bytes: 1_000,
            largest_batch: 8,
            estimate: Estimate {
                cost_likely_micros: cost,
                ..Estimate::default()
            },
            price: PricePerHour::ZERO,
            remark: String::new(),
        }
    }

    #[test]
    fn the_cheapest_usable_type_is_chosen_when_none_is_named() {
        let mut small = device("small", 1);
        small.fits = false;
        let devices = [small, device("dear", 9), device("fair", 5)];
        assert_eq!(choose_device(&devices, "", 16).unwrap().gpu_type, "fair");
        assert_eq!(
            choose_device(&devices, "dear", 16).unwrap().gpu_type,
            "dear"
        );
    }

    #[test]
    fn a_named_type_is_refused_for_the_first_rule_it_breaks() {
        let mut broken = device("h200", 1);
        (broken.is_offered, broken.is_allowed, broken.fits) = (false, false, false);
        let refusal =
            |device: &Device| choose_device(std::slice::from_ref(device), "h200", 16).unwrap_err();
        assert!(matches!(refusal(&broken), Error::GpuNotOffered(_)));
        broken.is_offered = true;
        assert!(matches!(refusal(&broken), Error::GpuNotInPlan(_)));
        broken.is_allowed = true;
        let text = refusal(&broken).to_string();
        for number in ["batch 16", "2000 bytes", "1000", "is 8"] {
            assert!(text.contains(number), "{text}");
        }
        assert!(matches!(
            choose_device(&[], "b300", 1),
            Err(Error::GpuNotOffered(_))
        ));
    }

    #[test]
    fn when_nothing_can_be_used_the_refusal_says_why() {
        let mut only = device("cpu", 1);
        only.fits = false;
        let nowhere = Device {
            is_offered: false,
            ..device("b200", 1)
        };
        let found = choose_device(&[only.clone(), nowhere.clone()], "", 16);
        assert!(matches!(found, Err(Error::BatchDoesNotFit { .. })));
        let dear = Device {
            is_allowed: false,
            ..device("h200", 1)
        };
        let found = choose_device(&[only, dear], "", 16).unwrap_err();
        assert!(
            matches!(&found, Error::NoDeviceFits(text) if text.contains("h200")),
            "{found}"
        );
        assert!(matches!(
            choose_device(&[nowhere], "", 1),
            Err(Error::NoDeviceFits(_))
        ));
    }
}

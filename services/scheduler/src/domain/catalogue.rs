//! The device types of the catalogue: data sheets of GPUs, and the CPU of this installation's workers.

use std::sync::LazyLock;

use engine::plan::Target;
use serde::Deserialize;

/// The device type of a machine that trains on its processor.
pub const CPU: &str = "cpu";

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;

/// What a device can do, by its data sheet or by measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub gpu_type: String,
    pub display_name: String,
    pub architecture: String,
    pub memory_bytes: u64,
    pub bandwidth_bytes_per_second: f64,
    /// The rate that training runs at: dense bf16 for GPUs, f32 for a CPU.
    pub flops_per_second: f64,
}

#[derive(Deserialize)]
struct Sheet {
    id: String,
    name: String,
    architecture: String,
    memory_gb: f64,
    bandwidth_gb_s: f64,
    bf16_tflops: f64,
}

static GPUS: LazyLock<Vec<Device>> = LazyLock::new(|| {
    let sheets: Vec<Sheet> = serde_json::from_str(include_str!("../gpus.json"))
        .expect("invariant: the catalogue was checked by a test");
    sheets.into_iter().map(Device::from).collect()
});

impl From<Sheet> for Device {
    fn from(sheet: Sheet) -> Self {
        Self {
            gpu_type: sheet.id,
            display_name: sheet.name,
            architecture: sheet.architecture,
            memory_bytes: (sheet.memory_gb * GIGA) as u64,
            bandwidth_bytes_per_second: sheet.bandwidth_gb_s * GIGA,
            flops_per_second: sheet.bf16_tflops * TERA,
        }
    }
}

/// Returns the GPUs of the catalogue, in its order.
pub fn gpus() -> &'static [Device] {
    &GPUS
}

/// Returns the catalogue's entry for a GPU.
pub fn find(gpu_type: &str) -> Option<&'static Device> {
    GPUS.iter().find(|device| device.gpu_type == gpu_type)
}

/// Returns what a plan for a device type is made for.
pub fn target(gpu_type: &str) -> Target {
    if gpu_type == CPU {
        Target::Cpu
    } else {
        Target::gpu()
    }
}

/// Returns what a CPU is taken for as long as no worker has measured one: two slow cores.
pub fn unmeasured_cpu() -> Device {
    Device {
        gpu_type: CPU.to_owned(),
        display_name: "CPU".to_owned(),
        architecture: "CPU".to_owned(),
        memory_bytes: 8 << 30,
        bandwidth_bytes_per_second: 10.0 * GIGA,
        flops_per_second: 0.05 * TERA,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_catalogue_holds_26_gpus_with_plausible_sheets() {
        let ids: BTreeSet<_> = gpus().iter().map(|device| &device.gpu_type).collect();
        assert_eq!((ids.len(), gpus().len()), (26, 26));
        for device in gpus() {
            assert!(device.memory_bytes >= 8 << 30, "{device:?}");
            assert!(device.flops_per_second > 1e13, "{device:?}");
            assert!(device.bandwidth_bytes_per_second > 1e11, "{device:?}");
        }
        assert!(find("rtx-4090").is_some());
        assert!(find("cpu").is_none());
    }
}

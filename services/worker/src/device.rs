//! What this machine is: measured once, told to the scheduler.

use std::path::Path;

use engine::device::{self, DeviceReport};
use engine::parallel::Threads;
use kit::fault::Fault;
use kit::id::{Id, Worker};
use proto::fovea::fleet::v1 as fleet;

use crate::config::Config;

/// The share of the machine's memory that trainings may use by default.
const MEMORY_SHARE: (u64, u64) = (4, 5);
const ID_FILE: &str = "worker.id";

/// Who the worker is and what it has.
#[derive(Debug, Clone)]
pub struct Device {
    pub description: fleet::Worker,
    /// Equal kinds train alike, to the bit.
    pub kind: String,
    pub threads: usize,
}

impl Device {
    /// Measures the machine, which takes about two seconds.
    pub async fn measure(config: &Config) -> Result<Self, Fault> {
        let thread_count = config.threads;
        let measuring = tokio::task::spawn_blocking(move || -> engine::Result<DeviceReport> {
            let threads = match thread_count {
                0 => Threads::available()?,
                count => Threads::new(count)?,
            };
            Ok(device::probe(&threads))
        });
        let report = measuring
            .await
            .map_err(Fault::internal)?
            .map_err(Fault::internal)?;
        let memory_bytes = match config.memory_bytes {
            0 => report.memory_bytes.unwrap_or(0) / MEMORY_SHARE.1 * MEMORY_SHARE.0,
            bytes => bytes,
        };
        let number = |value: f64| value as i64;
        let description = fleet::Worker {
            gpu_type: "cpu".to_owned(),
            device: format!(
                "{}, {} threads, {}",
                report.cpu_model, report.threads, report.level
            ),
            host: host(),
            flops_per_second: number(report.speed.flops_per_second),
            bandwidth_bytes_per_second: number(report.speed.bytes_per_second),
            memory_bytes: i64::try_from(memory_bytes).unwrap_or(i64::MAX),
            thread_count: i32::try_from(report.threads).unwrap_or(i32::MAX),
            build: concat!("fovea ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Default::default()
        };
        let kind = format!("{} cpu {}", description.build, report.level);
        Ok(Self {
            description,
            kind,
            threads: report.threads,
        })
    }
}

/// Returns the worker's id, kept in its folder: a process that takes another's place ends that one's leases.
pub fn own_id(folder: &Path, now: kit::Timestamp) -> Result<Id<Worker>, Fault> {
    let path = folder.join(ID_FILE);
    if let Ok(text) = std::fs::read_to_string(&path)
        && let Ok(id) = text.trim().parse()
    {
        return Ok(id);
    }
    let id = Id::new(now);
    std::fs::create_dir_all(folder).map_err(Fault::internal)?;
    std::fs::write(&path, format!("{id}\n")).map_err(Fault::internal)?;
    Ok(id)
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

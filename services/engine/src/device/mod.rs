//! The devices of this machine: what they are and what they can do.

pub mod cuda;
mod measure;
mod memory;

pub use cuda::{CudaReport, Gpu, cuda};
pub use measure::{Speed, measure};
pub use memory::{available_memory_bytes, total_memory_bytes};

use std::fmt;

use crate::ops::simd::Level;
use crate::parallel::Threads;

/// What the engine found out about this machine.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct DeviceReport {
    /// The processor's own name.
    pub cpu_model: String,
    /// The instruction set the kernels use.
    pub level: &'static str,
    pub threads: usize,
    /// Memory of the machine, where the system tells.
    pub memory_bytes: Option<u64>,
    pub available_memory_bytes: u64,
    pub speed: Speed,
    pub cuda: CudaReport,
}

/// Looks at this machine and measures it; takes about two seconds.
pub fn probe(threads: &Threads) -> DeviceReport {
    DeviceReport {
        cpu_model: cpu_model(),
        level: Level::best().name(),
        threads: threads.count(),
        memory_bytes: total_memory_bytes(),
        available_memory_bytes: available_memory_bytes(),
        speed: measure(threads),
        cuda: cuda(),
    }
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| key.trim() == "model name")
        .map(|(_, value)| value.trim().to_owned());
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let giga = |value: f64| value / 1e9;
        writeln!(
            f,
            "processor: {}, {} threads, {}",
            self.cpu_model, self.threads, self.level
        )?;
        if let Some(bytes) = self.memory_bytes {
            writeln!(
                f,
                "memory: {:.1} GB, {:.1} GB free",
                giga(bytes as f64),
                giga(self.available_memory_bytes as f64)
            )?;
        }
        writeln!(
            f,
            "speed: {:.0} GFLOP/s in a convolution, {:.1} GB/s of memory",
            giga(self.speed.flops_per_second),
            giga(self.speed.bytes_per_second)
        )?;
        write!(f, "CUDA: {}", self.cuda)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_with_or_without_a_gpu() {
        let report = probe(&Threads::new(2).unwrap());
        assert!(report.speed.flops_per_second > 1e8);
        assert!(report.speed.bytes_per_second > 1e8);
        assert!(!report.cpu_model.is_empty());
        let text = report.to_string();
        assert_eq!(text.matches("CUDA: ").count(), 1, "{text}");
        println!("{text}");
    }
}

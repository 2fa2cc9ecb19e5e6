//! How the machine is doing, read from `/proc` (see proc(5)).

use std::fs;
use std::time::Duration;

use proto::fovea::telemetry::v1::HostSample;

const SECTOR_BYTES: u64 = 512;
const KIB: i64 = 1024;

/// Counters at one instant; a sample is the difference of two.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    cpu_busy: u64,
    cpu_total: u64,
    disk_read_bytes: u64,
    disk_write_bytes: u64,
    network_receive_bytes: u64,
    network_transmit_bytes: u64,
}

impl Counters {
    /// Reads them now; what can't be read counts as zero.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpu_busy, cpu_total) = cpu(&text("/proc/stat"));
        let (disk_read_bytes, disk_write_bytes) = disk(&text("/proc/diskstats"));
        let (network_receive_bytes, network_transmit_bytes) = network(&text("/proc/net/dev"));
        Self {
            cpu_busy,
            cpu_total,
            disk_read_bytes,
            disk_write_bytes,
            network_receive_bytes,
            network_transmit_bytes,
        }
    }

    /// Returns what happened since `earlier`, which was `span` ago.
    pub fn since(&self, earlier: &Self, span: Duration) -> HostSample {
        let seconds = span.as_secs_f64().max(1e-3);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let busy = self.cpu_busy.saturating_sub(earlier.cpu_busy) as f64;
        let total = self.cpu_total.saturating_sub(earlier.cpu_total).max(1) as f64;
        let (memory_used_bytes, memory_total_bytes) =
            memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        HostSample {
            cpu_utilization: busy / total,
            memory_used_bytes,
            memory_total_bytes,
            disk_read_bytes_per_second: rate(self.disk_read_bytes, earlier.disk_read_bytes),
            disk_write_bytes_per_second: rate(self.disk_write_bytes, earlier.disk_write_bytes),
            network_receive_bytes_per_second: rate(
                self.network_receive_bytes,
                earlier.network_receive_bytes,
            ),
            network_transmit_bytes_per_second: rate(
                self.network_transmit_bytes,
                earlier.network_transmit_bytes,
            ),
            process_memory_bytes: process_memory(
                &fs::read_to_string("/proc/self/status").unwrap_or_default(),
            ),
            ..Default::default()
        }
    }
}

fn cpu(stat: &str) -> (u64, u64) {
    let Some(line) = stat.lines().find(|line| line.starts_with("cpu ")) else {
        return (0, 0);
    };
    // user nice system idle iowait irq softirq steal; guest times are part of user and nice.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|tick| tick.parse().ok())
        .collect();
    let total = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (total - idle, total)
}

fn disk(diskstats: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    for line in diskstats.lines() {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = |column: usize| {
            columns
                .get(column)
                .and_then(|text| text.parse::<u64>().ok())
        };
        let Some((read, written)) = number(5).zip(number(9)) else {
            continue;
        };
        // Whole devices only: partitions would be counted twice.
        let is_whole = columns.get(2).is_some_and(|name| {
            fs::metadata(format!("/sys/block/{name}")).is_ok() && !name.starts_with("loop")
        });
        if is_whole {
            sums = (
                sums.0 + read * SECTOR_BYTES,
                sums.1 + written * SECTOR_BYTES,
            );
        }
    }
    sums
}

fn network(dev: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    for line in dev.lines() {
        let Some((name, numbers)) = line.split_once(':') else {
            continue;
        };
        if name.trim() == "lo" {
            continue;
        }
        let numbers: Vec<u64> = numbers
            .split_whitespace()
            .filter_map(|text| text.parse().ok())
            .collect();
        if let (Some(received), Some(sent)) = (numbers.first(), numbers.get(8)) {
            sums = (sums.0 + received, sums.1 + sent);
        }
    }
    sums
}

fn memory(meminfo: &str) -> (i64, i64) {
    let total = kib(meminfo, "MemTotal:");
    (total - kib(meminfo, "MemAvailable:"), total)
}

fn process_memory(status: &str) -> i64 {
    kib(status, "VmRSS:")
}

fn kib(text: &str, name: &str) -> i64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<i64>().ok())
        .map_or(0, |number| number * KIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_read_as_documented() {
        assert_eq!(cpu("cpu  10 0 5 80 5 0 0 0 3 0\ncpu0 …"), (15, 100));
        assert_eq!(
            network("Inter-|\n face |\n lo: 9 0 0 0 0 0 0 0 9 0\n eth0: 7 1 0 0 0 0 0 0 5 1\n"),
            (7, 5)
        );
        assert_eq!(
            memory("MemTotal: 100 kB\nMemAvailable: 40 kB\n"),
            (60 * 1024, 100 * 1024)
        );
        assert_eq!(process_memory("VmPeak: 9 kB\nVmRSS:\t 12 kB\n"), 12 * 1024);
    }

    #[test]
    fn a_sample_has_shares_and_rates() {
        let before = Counters {
            cpu_busy: 10,
            cpu_total: 100,
            ..Default::default()
        };
        let after = Counters {
            cpu_busy: 60,
            cpu_total: 200,
            disk_read_bytes: 4000,
            ..Default::default()
        };
        let sample = after.since(&before, Duration::from_secs(2));
        assert_eq!(
            (sample.cpu_utilization, sample.disk_read_bytes_per_second),
            (0.5, 2000.0)
        );
    }
}

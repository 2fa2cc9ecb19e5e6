//! How much memory this process may still take.

use std::fs;

/// Returns the bytes of memory that are free for this process: what the system has, or what its control group
/// leaves if that is less. Where neither can be told, there is no limit.
pub fn available_memory_bytes() -> u64 {
    let system = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_bytes(&text, "MemAvailable"));
    [system, group_bytes()]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(u64::MAX)
}

/// Returns the bytes of memory of this machine, if the system tells.
pub fn total_memory_bytes() -> Option<u64> {
    meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// Returns what the process's control group leaves (version 2 as mounted in a container).
fn group_bytes() -> Option<u64> {
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let limit = number("/sys/fs/cgroup/memory.max")?;
    let used = number("/sys/fs/cgroup/memory.current")?;
    // Cached files are given back when memory is asked for.
    let cached = fs::read_to_string("/sys/fs/cgroup/memory.stat")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find(|line| line.starts_with("inactive_file"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_by_key() {
        let text = "MemTotal:       24000 kB\nMemAvailable:   1000 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable"), Some(1_024_000));
        assert_eq!(meminfo_bytes(text, "Other"), None);
    }
}

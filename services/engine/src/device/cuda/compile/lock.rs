//! The lock file: what every kernel needs on every architecture, as it was last agreed to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::cubin::Resources;
use super::{CompileError, io};

/// Resources by kernel and architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Lock(BTreeMap<String, BTreeMap<String, Resources>>);

impl Lock {
    pub(super) fn insert(&mut self, kernel: &str, architecture: &str, resources: Resources) {
        let kernel = self.0.entry(kernel.to_owned()).or_default();
        kernel.insert(architecture.to_owned(), resources);
    }

    /// Returns the part about these architectures.
    pub(super) fn only(&self, architectures: &[&str]) -> Self {
        let mut part = self.clone();
        for kernel in part.0.values_mut() {
            kernel.retain(|name, _| architectures.contains(&name.as_str()));
        }
        part.0.retain(|_, kernel| !kernel.is_empty());
        part
    }

    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, CompileError> {
        let text = fs::read_to_string(path).map_err(io(path))?;
        serde_json::from_str(&text).map_err(|error| CompileError::Image {
            place: path.display().to_string(),
            rule: error.to_string(),
        })
    }

    /// Writes the file, a line for each kernel and architecture, so that a change reads well.
    pub fn write(&self, path: &Path) -> Result<(), CompileError> {
        let mut text = String::from("{\n");
        for (index, (kernel, architectures)) in self.0.iter().enumerate() {
            let _ = writeln!(text, "  \"{kernel}\": {{");
            let count = architectures.len();
            for (index, (architecture, resources)) in architectures.iter().enumerate() {
                let line = serde_json::to_string(resources).unwrap_or_default();
                let comma = if index + 1 < count { "," } else { "" };
                let _ = writeln!(text, "    \"{architecture}\": {line}{comma}");
            }
            let comma = if index + 1 < self.0.len() { "," } else { "" };
            let _ = writeln!(text, "  }}{comma}");
        }
        text += "}\n";
        fs::write(path, text).map_err(io(path))
    }

    /// Writes a table for people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<24} {:<9} {:>9} {:>5} {:>6} {:>5} {:>6} {:>5} {:>5}\n",
            "kernel", "", "registers", "stack", "shared", "mma", "copies", "loads", "local"
        );
        for (kernel, architectures) in &self.0 {
            for (name, r) in architectures {
                let _ = writeln!(
                    text,
                    "{kernel:<24} {name:<9} {:>9} {:>5} {:>6} {:>5} {:>6} {:>5} {:>5}",
                    r.registers, r.stack, r.shared, r.mma, r.copies, r.matrix_loads, r.local
                );
            }
        }
        text
    }
}

/// Returns a line for every difference.
pub fn difference(known: &Lock, now: &Lock) -> Vec<String> {
    let flat = |lock: &Lock| -> BTreeMap<(String, String), Resources> {
        let entries = lock.0.iter().flat_map(|(kernel, architectures)| {
            let one = move |(name, resources): (&String, &Resources)| {
                ((kernel.clone(), name.clone()), *resources)
            };
            architectures.iter().map(one)
        });
        entries.collect()
    };
    let (known, now) = (flat(known), flat(now));
    let mut lines = Vec::new();
    for ((kernel, name), resources) in &now {
        match known.get(&(kernel.clone(), name.clone())) {
            None => lines.push(format!("{kernel} {name} is new: {resources:?}")),
            Some(locked) if locked != resources => {
                lines.push(format!("{kernel} {name}: {locked:?} became {resources:?}"));
            }
            Some(_) => {}
        }
    }
    for (kernel, name) in known.keys().filter(|key| !now.contains_key(*key)) {
        lines.push(format!("{kernel} {name} is gone"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_read_as_written_and_differences_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernels.lock.json");
        let mut lock = Lock::default();
        let resources = |registers| Resources {
            registers,
            ..Resources::default()
        };
        lock.insert("conv", "sm_80", resources(96));
        lock.insert("conv", "sm_90a", resources(98));
        lock.insert("norm", "sm_80", resources(20));
        lock.write(&path).unwrap();
        let read = Lock::read(&path).unwrap();
        assert_eq!(read, lock);
        assert!(difference(&read, &lock).is_empty());
        let mut now = lock.only(&["sm_80"]);
        now.insert("conv", "sm_80", resources(128));
        let lines = difference(&read, &now);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("conv sm_80") && lines[0].contains("registers: 128"));
        assert!(lines[1].contains("conv sm_90a is gone"));
    }
}

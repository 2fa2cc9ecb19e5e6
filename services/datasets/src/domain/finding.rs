//! What an import has to say about its input, each with its place.

use serde::{Deserialize, Serialize};

/// Findings that are kept word by word; the rest are only counted.
pub const FINDINGS_KEPT_MAX: usize = 1000;

/// One thing that was refused or changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub reason: String,
    /// The file inside the archive; empty for the archive itself.
    pub file: String,
    /// From 1; 0 for the whole file.
    pub line: u32,
    pub message: String,
    pub is_error: bool,
}

/// Findings in the order they were made.
#[derive(Debug, Default, Clone)]
pub struct Findings {
    kept: Vec<Finding>,
    count: usize,
    errors: usize,
    first_error: Option<Finding>,
}

impl Findings {
    /// Adds an error: something that can't be imported.
    pub fn error(&mut self, reason: &str, file: &str, line: u32, message: impl Into<String>) {
        self.add(reason, file, line, message.into(), true);
    }

    /// Adds a note: something that was imported in another way than it was given.
    pub fn note(&mut self, reason: &str, file: &str, line: u32, message: impl Into<String>) {
        self.add(reason, file, line, message.into(), false);
    }

    fn add(&mut self, reason: &str, file: &str, line: u32, message: String, is_error: bool) {
        let finding = Finding {
            reason: reason.to_owned(),
            file: file.to_owned(),
            line,
            message,
            is_error,
        };
        self.count += 1;
        if is_error {
            self.errors += 1;
            self.first_error.get_or_insert_with(|| finding.clone());
        }
        if self.kept.len() < FINDINGS_KEPT_MAX {
            self.kept.push(finding);
        }
    }

    /// Returns the first error, even where it isn't among those kept.
    pub fn first_error(&self) -> Option<&Finding> {
        self.first_error.as_ref()
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns those that were kept: errors first, so that a refusal shows its cause on top.
    pub fn kept(&self) -> Vec<Finding> {
        let mut sorted = self.kept.clone();
        sorted.sort_by_key(|finding| !finding.is_error);
        if let Some(first) = &self.first_error
            && !sorted.contains(first)
        {
            sorted.insert(0, first.clone());
            sorted.truncate(FINDINGS_KEPT_MAX);
        }
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept_however_many_notes_came_before() {
        let mut findings = Findings::default();
        for line in 0..2000 {
            findings.note("NOTE", "a.txt", line, "…");
        }
        findings.error("BAD", "b.txt", 7, "no");
        assert_eq!(findings.count(), 2001);
        let kept = findings.kept();
        assert_eq!(kept.len(), FINDINGS_KEPT_MAX);
        assert_eq!((kept[0].reason.as_str(), kept[0].line), ("BAD", 7));
    }
}

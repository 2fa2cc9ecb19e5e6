//! Names of facts and the subjects that follow from them.
//!
//! `fovea.runs.v1.RunQueued` of a workspace travels on `fovea.v1.<workspace>.runs.run.queued`:
//! the last word is the fact, the others are the entity.

use prost::{Message, Name};

use super::{Error, FACTS_ROOT, TELEMETRY_ROOT};
use crate::id::{Id, Workspace};

/// What stands for the workspace of a fact that belongs to none.
const SYSTEM: &str = "system";

/// A protobuf message with a name: all a fact needs to be.
pub trait Fact: Message + Name + Default + 'static {}

impl<M: Message + Name + Default + 'static> Fact for M {}

/// The parts that a fact's name has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parts {
    domain: String,
    entity: String,
    fact: String,
}

impl Parts {
    /// Reads `fovea.<domain>.v<n>.<Entity><Fact>`.
    pub(super) fn of(full_name: &str) -> Result<Self, Error> {
        let refuse = || Error::BadName(full_name.to_owned());
        let mut steps = full_name.split('.');
        let (Some("fovea"), Some(domain), Some(version), Some(name), None) = (
            steps.next(),
            steps.next(),
            steps.next(),
            steps.next(),
            steps.next(),
        ) else {
            return Err(refuse());
        };
        let words = words(name).ok_or_else(refuse)?;
        let is_version = version
            .strip_prefix('v')
            .is_some_and(|n| n.parse::<u16>().is_ok());
        match words.split_last() {
            Some((fact, entity)) if !entity.is_empty() && is_version && !domain.is_empty() => {
                Ok(Self {
                    domain: domain.to_owned(),
                    entity: entity.join("_"),
                    fact: fact.clone(),
                })
            }
            _ => Err(refuse()),
        }
    }

    /// Returns `runs.run.queued`.
    pub(super) fn template(&self) -> String {
        format!("{}.{}.{}", self.domain, self.entity, self.fact)
    }
}

/// Splits `DatasetVersionPublished` into its words, lower case; digits belong to the word before.
fn words(name: &str) -> Option<Vec<String>> {
    let mut words: Vec<String> = Vec::new();
    for letter in name.chars() {
        match letter {
            'A'..='Z' => words.push(letter.to_ascii_lowercase().to_string()),
            'a'..='z' | '0'..='9' => words.last_mut()?.push(letter),
            _ => return None,
        }
    }
    Some(words)
}

/// Returns the subject a fact of this name travels on.
pub fn subject(full_name: &str, workspace: Option<Id<Workspace>>) -> Result<String, Error> {
    let place = workspace.map_or_else(|| SYSTEM.to_owned(), |workspace| workspace.to_string());
    Ok(format!(
        "{FACTS_ROOT}.{place}.{}",
        Parts::of(full_name)?.template()
    ))
}

/// Returns what a fact is called in spans: `runs.run.queued`.
pub(crate) fn template(full_name: &str) -> String {
    Parts::of(full_name).map_or_else(|_| full_name.to_owned(), |parts| parts.template())
}

/// Returns the subjects of a fact in all workspaces, for [`Bus::consume`](super::Bus::consume).
///
/// # Panics
/// If the message's name is no fact's: our own bug, found by the first start.
pub fn filter<M: Fact>() -> String {
    let parts = Parts::of(&M::full_name()).expect("invariant: a fact has a fact's name");
    format!("{FACTS_ROOT}.*.{}", parts.template())
}

/// Returns the subject of one thing's telemetry: `fovea.telemetry.v1.ws_….progress.run_…`.
pub fn telemetry_subject(
    workspace: Id<Workspace>,
    noun: &str,
    id: &dyn std::fmt::Display,
) -> String {
    format!("{TELEMETRY_ROOT}.{workspace}.{noun}.{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_name_is_the_fact() {
        let workspace = Id::<Workspace>::from_bytes([0; 16]);
        assert_eq!(
            subject("fovea.runs.v1.RunQueued", Some(workspace)).unwrap(),
            "fovea.v1.ws_00000000000000000000000000.runs.run.queued"
        );
        assert_eq!(
            subject("fovea.datasets.v1.DatasetVersionPublished", None).unwrap(),
            "fovea.v1.system.datasets.dataset_version.published"
        );
    }

    #[test]
    fn a_name_of_another_shape_is_refused() {
        for name in [
            "RunQueued",
            "fovea.runs.v1.Queued",
            "fovea.runs.RunQueued",
            "other.runs.v1.RunQueued",
            "fovea.runs.v1.run_queued",
            "fovea.runs.v1.Outer.RunQueued",
        ] {
            assert!(
                matches!(subject(name, None), Err(Error::BadName(_))),
                "{name}"
            );
        }
    }
}

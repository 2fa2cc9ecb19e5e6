//! Projects and the rules of names.

use kit::id::{self, Id};
use kit::time::Timestamp;

use crate::error::Error;

/// The project that runs go to when none is named.
pub const DEFAULT_PROJECT: &str = "default";

const NAME_MAX: usize = 100;
const DESCRIPTION_MAX: usize = 2_000;

/// A named place for runs and models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Project {
    /// Its id.
    pub id: Id<id::Project>,
    /// Whose it is.
    pub workspace_id: Id<id::Workspace>,
    /// Unique in the workspace.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// How many runs it has.
    pub run_count: i64,
}

/// Returns a name without the space around it, if it is one.
pub fn check_name(field: &str, name: &str) -> Result<String, Error> {
    let name = name.trim();
    let length = name.chars().count();
    if length == 0 || length > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Error::field(
            field,
            format!("has 1 to {NAME_MAX} printable characters"),
        ));
    }
    Ok(name.to_owned())
}

/// Refuses a description that is too long.
pub fn check_text(field: &str, text: &str) -> Result<(), Error> {
    if text.chars().count() > DESCRIPTION_MAX {
        return Err(Error::field(
            field,
            format!("has at most {DESCRIPTION_MAX} characters"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_of_1_to_100_characters() {
        assert_eq!(check_name("name", "  cells ").unwrap(), "cells");
        assert_eq!(
            check_name("name", &"ä".repeat(100))
                .unwrap()
                .chars()
                .count(),
            100
        );
        for name in ["", "  ", "a\nb", &"x".repeat(101)] {
            assert!(check_name("name", name).is_err(), "{name:?}");
        }
    }
}

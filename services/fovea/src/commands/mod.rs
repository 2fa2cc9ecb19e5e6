//! One file for each group of commands that talk to a fleet.

pub mod billing;
pub mod datasets;
pub mod endpoints;
pub mod events;
pub mod models;
pub mod runs;
pub mod training;

use anyhow::Result;
use prost::{Message, Name};

use crate::client::Fleet;
use crate::output;

/// How many things a command looks through for one that was given by name.
pub const NAME_SEARCH_PAGE: i32 = 1000;

/// What every command needs.
pub struct Session {
    pub fleet: Fleet,
    pub is_json: bool,
}

impl Session {
    /// Prints the message as JSON where that is asked for, else calls `print`.
    pub fn show<M: Message + Name>(&self, message: &M, print: impl FnOnce(&M)) -> Result<()> {
        if self.is_json {
            return output::json(message);
        }
        print(message);
        Ok(())
    }
}

/// Returns whether a text is an id with this prefix rather than a name.
pub fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix('_'))
        .is_some_and(|digits| digits.len() == 26)
}

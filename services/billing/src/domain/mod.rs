//! What billing decides: pure functions from a state, a command and an instant to what changes.
//!
//! `ledger` knows accounts and the moves between them, `holds` what is set aside for a run and
//! charged from it, `prices` what an hour of a device costs and who may have it.

pub mod holds;
pub mod ledger;
pub mod prices;
#[cfg(test)]
mod tests;

use std::time::Duration;

use kit::id::{Id, Run};
use kit::money::Amount;

/// What a workspace pays for; each plan includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Plan {
    /// Every device type that isn't gated.
    #[default]
    Free,
    /// Also the largest cards.
    Pro,
    /// Everything.
    Enterprise,
}

impl Plan {
    const ALL: [Self; 3] = [Self::Free, Self::Pro, Self::Enterprise];

    /// Returns the word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::Enterprise => "enterprise",
        }
    }

    /// Returns the plan of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plan| plan.as_str() == name)
    }
}

/// What became true and others must hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// Credits came in.
    CreditAdded { amount: Amount, available: Amount },
    /// Committed compute of a run was charged.
    RunCharged {
        run: Id<Run>,
        amount: Amount,
        total: Amount,
        committed: Duration,
    },
    /// Nothing is left for a run that goes on.
    HoldExhausted { run: Id<Run>, cause: Shortage },
    /// A run's last charge is posted and the rest given back.
    RunSettled {
        run: Id<Run>,
        charged: Amount,
        released: Amount,
    },
}

/// What a run has run out of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shortage {
    /// The workspace has no more credits.
    Balance,
    /// The most the run may cost is spent.
    Cap,
}

impl Shortage {
    /// Returns the word that is stored and told.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::Cap => "cap",
        }
    }

    /// Returns the shortage of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Balance, Self::Cap]
            .into_iter()
            .find(|cause| cause.as_str() == name)
    }
}

//! The double-entry ledger: accounts with floors, and moves that take from one what they give to
//! another.
//!
//! Every move has a key that is unique for ever, so that no crash and no repetition posts it twice.

use kit::id::{Id, Run};
use kit::money::Amount;

use crate::error::Error;

/// The most one top-up may bring: a million credits.
pub const TOP_UP_MAX: Amount = Amount::from_micros(1_000_000_000_000);
/// The longest note on a transfer, in characters.
pub const NOTE_CHARACTERS_MAX: usize = 500;

/// Which account of the ledger: two belong to each workspace, two to the installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// What a workspace may spend.
    Balance,
    /// What a workspace has set aside for runs.
    Held,
    /// The world outside, where credits come from: as far below zero as was ever paid in.
    Cash,
    /// What runs were charged.
    Revenue,
}

impl Place {
    const ALL: [Self; 4] = [Self::Balance, Self::Held, Self::Cash, Self::Revenue];

    /// The accounts of the installation.
    pub const SYSTEM: [Self; 2] = [Self::Cash, Self::Revenue];
    /// The accounts of a workspace.
    pub const OF_WORKSPACE: [Self; 2] = [Self::Balance, Self::Held];

    /// Returns the word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::Held => "held",
            Self::Cash => "cash",
            Self::Revenue => "revenue",
        }
    }

    /// Returns the place of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|place| place.as_str() == name)
    }

    /// Returns what the account may not go below; `None` where there is no floor.
    pub const fn floor(self) -> Option<Amount> {
        match self {
            Self::Cash => None,
            Self::Balance | Self::Held | Self::Revenue => Some(Amount::ZERO),
        }
    }
}

/// Why money moves; the reason alone says from where to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveKind {
    TopUp,
    Hold,
    Release,
    Charge,
}

impl MoveKind {
    const ALL: [Self; 4] = [Self::TopUp, Self::Hold, Self::Release, Self::Charge];

    /// Returns the word that is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopUp => "top_up",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Charge => "charge",
        }
    }

    /// Returns the kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Returns where the money comes from and where it goes.
    pub const fn route(self) -> (Place, Place) {
        match self {
            Self::TopUp => (Place::Cash, Place::Balance),
            Self::Hold => (Place::Balance, Place::Held),
            Self::Release => (Place::Held, Place::Balance),
            Self::Charge => (Place::Held, Place::Revenue),
        }
    }
}

/// One transfer to be posted: `amount`, above zero, along the route of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// Unique for ever.
    pub key: String,
    pub kind: MoveKind,
    pub amount: Amount,
    /// The run it is about; none for a top-up.
    pub run: Option<Id<Run>>,
    pub note: String,
}

/// What a workspace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wallet {
    /// Free to be spent.
    pub balance: Amount,
    /// Set aside for runs.
    pub held: Amount,
}

impl Wallet {
    /// Returns the wallet after a move, or the refusal where it would fall below a floor.
    pub fn after(self, change: &Move) -> Result<Self, Error> {
        let (source, target) = change.kind.route();
        self.plus(source, change.amount.checked_neg()?)?
            .plus(target, change.amount)
    }

    /// Returns everything that was paid in and not spent.
    pub fn total(self) -> Result<Amount, Error> {
        Ok(self.balance.checked_add(self.held)?)
    }

    fn plus(mut self, place: Place, amount: Amount) -> Result<Self, Error> {
        let account = match place {
            Place::Balance => &mut self.balance,
            Place::Held => &mut self.held,
            Place::Cash | Place::Revenue => return Ok(self),
        };
        let after = account.checked_add(amount)?;
        if place.floor().is_some_and(|floor| after < floor) {
            return Err(Error::BalanceTooLow {
                available: *account,
                needed: amount.checked_neg()?,
            });
        }
        *account = after;
        Ok(self)
    }
}

/// Checks what a top-up brings.
pub fn check_top_up(amount: Amount, note: &str) -> Result<(), Error> {
    if amount <= Amount::ZERO || amount > TOP_UP_MAX {
        return Err(Error::AmountInvalid {
            field: "amount_micros",
            rule: format!("must be above zero and at most {}", TOP_UP_MAX.micros()),
        });
    }
    if note.chars().count() > NOTE_CHARACTERS_MAX {
        return Err(Error::NoteTooLong);
    }
    Ok(())
}

//! What is set aside for a run, and what committed compute takes from it.
//!
//! A hold is keyed by its run and moves like this:
//!
//! ```text
//!            Hold          RunQueued        a final fact
//!   (none) ───────→ pending ───────→ open ───────────────→ settled
//!                  ↑   │ too late     │ RunPaused, ReleaseHold
//!             Hold │   ↓              ↓
//!                  └ expired        released ┐
//!                  └─────────────────────────┘
//! ```
//!
//! An expired hold opens again when its run turns out to be queued after all; a released or expired one opens when
//! committed time grows, because then its run trains. Facts may come late, twice or out of order: committed time only
//! grows, and what is charged is a function of the price and the longest committed time, up to the cap:
//! `charged = min(round(price × committed), cap)`. Where the balance has less, the rest is owed and taken from the
//! next credits that come in; nothing ever falls below zero.

use std::time::Duration;

use kit::id::{self, Id, Run, Workspace};
use kit::money::{self, Amount, PricePerHour};
use kit::time::Timestamp;

use super::ledger::{Move, MoveKind, TOP_UP_MAX, Wallet, check_top_up};
use super::{Fact, Shortage};
use crate::error::Error;

/// The most one run may hold: as much as one top-up brings.
pub const HOLD_MAX: Amount = TOP_UP_MAX;

/// Where a hold stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Set aside; its run must be queued before `expires_at`.
    Pending { expires_at: Timestamp },
    /// Its run waits or trains.
    Open,
    /// Its run is paused or never started; nothing is set aside.
    Released,
    /// Its run wasn't heard of in time; nothing is set aside.
    Expired,
    /// Its run has ended for good.
    Settled,
}

/// The money side of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    pub id: Id<id::Hold>,
    pub run: Id<Run>,
    pub workspace: Id<Workspace>,
    pub gpu_type: String,
    /// Stays what it was quoted at, whatever the list says later.
    pub price: PricePerHour,
    /// What was last asked to be set aside.
    pub amount: Amount,
    /// The most the run may cost in all.
    pub cap: Amount,
    /// Set aside now.
    pub held: Amount,
    /// Charged so far.
    pub charged: Amount,
    /// The longest committed time that was heard of.
    pub committed: Duration,
    /// The newest charge: what the next one is expected to be.
    pub last_charge: Amount,
    pub state: State,
    /// Told to have run out, and of what; none while it has enough.
    pub exhausted: Option<Shortage>,
    /// When it was last asked for; a pause older than that says nothing about it.
    pub asked_at: Timestamp,
    /// Counts the moves: the next one's key.
    pub revision: i64,
}

/// Asks for money to be set aside for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The id of the hold, where this makes one.
    pub id: Id<id::Hold>,
    pub run: Id<Run>,
    pub workspace: Id<Workspace>,
    pub gpu_type: String,
    pub price: PricePerHour,
    pub amount: Amount,
    /// None: `amount` for a new hold, and what it was for one that exists.
    pub cap: Option<Amount>,
    pub expires_at: Timestamp,
}

/// What a decision changes: all of it or nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub wallet: Wallet,
    pub holds: Vec<Hold>,
    pub moves: Vec<Move>,
    pub facts: Vec<Fact>,
}

impl Hold {
    /// Returns what committed time costs, never more than the cap.
    fn due(&self) -> Amount {
        self.cost().min(self.cap)
    }

    /// Returns what was committed and not charged yet, for want of money.
    pub fn owed(&self) -> Amount {
        let due = self.due();
        due.checked_sub(self.charged)
            .expect("invariant: no more is charged than was due")
    }

    /// Returns `round(price × committed)`. What doesn't fit 64 bits lies beyond every cap, so it counts as the most.
    fn cost(&self) -> Amount {
        money::cost_rounded_half_up(self.price, self.committed)
            .unwrap_or(Amount::from_micros(i64::MAX))
    }

    fn is_capped(&self) -> bool {
        self.price > PricePerHour::ZERO && self.cost() >= self.cap
    }

    fn is_live(&self) -> bool {
        matches!(self.state, State::Pending { .. } | State::Open)
    }

    /// Returns what may still be set aside: what the cap leaves.
    fn room(&self) -> Result<Amount, Error> {
        let used = self.charged.checked_add(self.held)?;
        Ok(self.cap.checked_sub(used)?.max(Amount::ZERO))
    }
}

/// Sets money aside for a run, or again for one that was paused.
///
/// Repeating it changes nothing while something is set aside. Price and cap of a hold stay; only a higher cap that is
/// asked for by name replaces the lower one.
pub fn open(
    existing: Option<Hold>,
    wallet: Wallet,
    ask: Ask,
    now: Timestamp,
) -> Result<Change, Error> {
    let mut posting = match existing {
        None => Posting::new(wallet, first(&ask, now)?),
        Some(hold) => Posting::new(wallet, again(hold, &ask, now)?),
    };
    let hold = &posting.hold;
    let owed = hold.owed();
    let rest = hold.cap.checked_sub(hold.charged)?;
    if rest <= owed && hold.price > PricePerHour::ZERO {
        return Err(Error::CapReached {
            run: hold.run,
            cap: hold.cap,
        });
    }
    if !hold.is_live() || hold.held.is_zero() {
        let wanted = ask.amount.checked_add(owed)?.min(rest);
        if wanted > wallet.balance {
            return Err(Error::BalanceTooLow {
                available: wallet.balance,
                needed: wanted,
            });
        }
        posting.set_aside(wanted)?;
        posting.collect()?;
        posting.hold.exhausted = None;
    }
    if posting.hold.state != State::Open {
        posting.hold.state = State::Pending {
            expires_at: ask.expires_at,
        };
    }
    Ok(posting.done())
}

fn first(ask: &Ask, now: Timestamp) -> Result<Hold, Error> {
    let cap = ask.cap.unwrap_or(ask.amount);
    check_amount("amount_micros", ask.amount, ask.price)?;
    check_amount("cap_micros", cap, ask.price)?;
    if cap < ask.amount {
        return Err(Error::AmountInvalid {
            field: "cap_micros",
            rule: format!("must be at least amount_micros, {}", ask.amount.micros()),
        });
    }
    Ok(Hold {
        id: ask.id,
        run: ask.run,
        workspace: ask.workspace,
        gpu_type: ask.gpu_type.clone(),
        price: ask.price,
        amount: ask.amount,
        cap,
        held: Amount::ZERO,
        charged: Amount::ZERO,
        committed: Duration::ZERO,
        last_charge: Amount::ZERO,
        state: State::Released,
        exhausted: None,
        asked_at: now,
        revision: 0,
    })
}

fn again(hold: Hold, ask: &Ask, now: Timestamp) -> Result<Hold, Error> {
    let conflict = |what| Error::HoldConflict {
        run: hold.run,
        what,
    };
    if hold.workspace != ask.workspace {
        return Err(conflict("workspace"));
    }
    if hold.gpu_type != ask.gpu_type {
        return Err(conflict("device type"));
    }
    if hold.state == State::Settled {
        return Err(Error::RunSettled(hold.run));
    }
    check_amount("amount_micros", ask.amount, hold.price)?;
    let cap = ask.cap.unwrap_or(hold.cap).max(hold.cap);
    check_amount("cap_micros", cap, hold.price)?;
    Ok(Hold {
        cap,
        amount: ask.amount,
        asked_at: now.max(hold.asked_at),
        ..hold
    })
}

/// A free device type needs nothing set aside; every other needs something.
fn check_amount(field: &'static str, amount: Amount, price: PricePerHour) -> Result<(), Error> {
    let least = Amount::from_micros(i64::from(price > PricePerHour::ZERO));
    if amount < least || amount > HOLD_MAX {
        let (least, most) = (least.micros(), HOLD_MAX.micros());
        return Err(Error::AmountInvalid {
            field,
            rule: format!("must lie between {least} and {most}"),
        });
    }
    Ok(())
}

/// The run of a hold is queued: the hold no longer expires, and opens again where it has.
pub fn confirm(hold: Hold, wallet: Wallet) -> Result<Change, Error> {
    let mut posting = Posting::new(wallet, hold);
    match posting.hold.state {
        State::Pending { .. } => posting.hold.state = State::Open,
        State::Expired => {
            posting.hold.state = State::Open;
            posting.extend(posting.hold.amount)?;
            posting.tell_shortage();
        }
        State::Open | State::Released | State::Settled => {}
    }
    Ok(posting.done())
}

/// A checkpoint of a running run: charges it, and sees to it that the next stretch is covered.
pub fn advance(hold: Hold, wallet: Wallet, committed: Duration) -> Result<Change, Error> {
    let mut posting = Posting::new(wallet, hold);
    if !posting.commit(committed) {
        return Ok(posting.done());
    }
    posting.collect()?;
    if posting.hold.state != State::Settled {
        posting.hold.state = State::Open;
        let hold = &posting.hold;
        let missing = hold.last_charge.checked_sub(hold.held)?;
        posting.extend(missing.max(Amount::ZERO))?;
        posting.tell_shortage();
    }
    Ok(posting.done())
}

/// A run paused: charges it and gives back the rest.
///
/// The fact may come after the run was resumed, because a hold is asked for by a call and a pause is told by a fact.
/// Such a hold waits for its run to be queued once more, and expires where that doesn't happen.
pub fn pause(
    hold: Hold,
    wallet: Wallet,
    committed: Duration,
    paused_at: Timestamp,
    expires_at: Timestamp,
) -> Result<Change, Error> {
    let mut posting = Posting::new(wallet, hold);
    posting.commit(committed);
    posting.collect()?;
    if posting.hold.is_live() {
        if paused_at < posting.hold.asked_at {
            posting.hold.state = State::Pending { expires_at };
        } else {
            posting.give_back()?;
            posting.hold.state = State::Released;
            posting.hold.exhausted = None;
        }
    }
    Ok(posting.done())
}

/// A run ended for good: charges it, gives back the rest and closes the hold.
pub fn settle(hold: Hold, wallet: Wallet, committed: Duration) -> Result<Change, Error> {
    let mut posting = Posting::new(wallet, hold);
    posting.commit(committed);
    posting.collect()?;
    if posting.hold.state != State::Settled {
        let released = posting.give_back()?;
        posting.hold.state = State::Settled;
        posting.facts.push(Fact::RunSettled {
            run: posting.hold.run,
            charged: posting.hold.charged,
            released,
        });
    }
    Ok(posting.done())
}

/// Gives back what is set aside for a run that never started.
pub fn release(hold: Hold, wallet: Wallet) -> Result<Change, Error> {
    end(hold, wallet, State::Released)
}

/// Gives back what is set aside for a run that wasn't queued in time.
pub fn expire(hold: Hold, wallet: Wallet, now: Timestamp) -> Result<Change, Error> {
    match hold.state {
        State::Pending { expires_at } if expires_at <= now => end(hold, wallet, State::Expired),
        _ => Ok(Posting::new(wallet, hold).done()),
    }
}

fn end(hold: Hold, wallet: Wallet, state: State) -> Result<Change, Error> {
    let mut posting = Posting::new(wallet, hold);
    if posting.hold.is_live() {
        posting.give_back()?;
        posting.hold.state = state;
        posting.hold.exhausted = None;
    }
    Ok(posting.done())
}

/// Credits come in: first they pay what runs owe, oldest first, then they cover runs that wait for them.
pub fn top_up(
    wallet: Wallet,
    amount: Amount,
    note: String,
    key: String,
    owing: Vec<Hold>,
) -> Result<Change, Error> {
    check_top_up(amount, &note)?;
    let credit = Move {
        key,
        kind: MoveKind::TopUp,
        amount,
        run: None,
        note,
    };
    let mut all = Change {
        wallet: wallet.after(&credit)?,
        holds: Vec::new(),
        moves: vec![credit],
        facts: Vec::new(),
    };
    for hold in owing {
        let before = hold.clone();
        let mut posting = Posting::new(all.wallet, hold);
        posting.collect()?;
        if posting.hold.state == State::Open {
            posting.extend(posting.hold.last_charge)?;
        }
        if posting.hold != before {
            let change = posting.done();
            all.wallet = change.wallet;
            all.holds.extend(change.holds);
            all.moves.extend(change.moves);
            all.facts.extend(change.facts);
        }
    }
    let available = all.wallet.balance;
    all.facts.push(Fact::CreditAdded { amount, available });
    Ok(all)
}

/// A change in the making: keeps hold, wallet and moves in step.
struct Posting {
    hold: Hold,
    wallet: Wallet,
    moves: Vec<Move>,
    facts: Vec<Fact>,
}

impl Posting {
    const fn new(wallet: Wallet, hold: Hold) -> Self {
        Self {
            hold,
            wallet,
            moves: Vec::new(),
            facts: Vec::new(),
        }
    }

    fn done(self) -> Change {
        Change {
            wallet: self.wallet,
            holds: vec![self.hold],
            moves: self.moves,
            facts: self.facts,
        }
    }

    /// Takes note of committed time; tells whether it is news.
    fn commit(&mut self, committed: Duration) -> bool {
        let is_news = committed > self.hold.committed;
        self.hold.committed = self.hold.committed.max(committed);
        is_news
    }

    /// Charges what is due and not charged, from the hold first and then from the balance.
    fn collect(&mut self) -> Result<(), Error> {
        let owed = self.hold.owed();
        let missing = owed.checked_sub(self.hold.held)?;
        self.set_aside(missing.min(self.wallet.balance))?;
        let paid = owed.min(self.hold.held);
        if paid <= Amount::ZERO {
            return Ok(());
        }
        self.post(MoveKind::Charge, paid)?;
        self.hold.held = self.hold.held.checked_sub(paid)?;
        self.hold.charged = self.hold.charged.checked_add(paid)?;
        self.hold.last_charge = paid;
        self.facts.push(Fact::RunCharged {
            run: self.hold.run,
            amount: paid,
            total: self.hold.charged,
            committed: self.hold.committed,
        });
        Ok(())
    }

    /// Sets more aside, as far as cap and balance allow.
    fn extend(&mut self, wanted: Amount) -> Result<(), Error> {
        let allowed = wanted.min(self.hold.room()?).min(self.wallet.balance);
        self.set_aside(allowed)?;
        if self.hold.exhausted == Some(Shortage::Balance) && self.hold.held > Amount::ZERO {
            self.hold.exhausted = None;
        }
        Ok(())
    }

    /// Says once that nothing is left for a run that goes on.
    fn tell_shortage(&mut self) {
        let shortage = if self.hold.is_capped() {
            Some(Shortage::Cap)
        } else if self.hold.price > PricePerHour::ZERO && self.hold.held.is_zero() {
            Some(Shortage::Balance)
        } else {
            None
        };
        if let Some(cause) = shortage
            && self.hold.exhausted != shortage
        {
            let run = self.hold.run;
            self.facts.push(Fact::HoldExhausted { run, cause });
        }
        self.hold.exhausted = shortage;
    }

    /// Moves `amount` from the balance to what is held; nothing where it isn't above zero.
    fn set_aside(&mut self, amount: Amount) -> Result<(), Error> {
        if amount > Amount::ZERO {
            self.post(MoveKind::Hold, amount)?;
            self.hold.held = self.hold.held.checked_add(amount)?;
        }
        Ok(())
    }

    /// Moves all that is held back to the balance and returns it.
    fn give_back(&mut self) -> Result<Amount, Error> {
        let rest = self.hold.held;
        if rest > Amount::ZERO {
            self.post(MoveKind::Release, rest)?;
            self.hold.held = Amount::ZERO;
        }
        Ok(rest)
    }

    fn post(&mut self, kind: MoveKind, amount: Amount) -> Result<(), Error> {
        self.hold.revision += 1;
        let change = Move {
            key: format!("{}:{}", self.hold.run, self.hold.revision),
            kind,
            amount,
            run: Some(self.hold.run),
            note: String::new(),
        };
        self.wallet = self.wallet.after(&change)?;
        self.moves.push(change);
        Ok(())
    }
}

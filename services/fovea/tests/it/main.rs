//! Stories: what users do with a whole fleet, through its public door only; and the house rules.

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "a test that can't go on fails, and its size doesn't matter"
)]

mod compose;
mod fleet;
mod isolation;
mod kills;
mod life;
mod metrics;
mod tidy;
mod traces;

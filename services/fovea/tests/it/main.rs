//! Stories: what users do with a whole fleet, through its public door only; and the house rules.

mod compose;
mod fleet;
mod isolation;
mod kills;
mod life;
mod metrics;
mod tidy;
mod traces;

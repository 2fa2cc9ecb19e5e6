//! Child processes: they die with us, tell their lines to our log, and start again when they end.
//!
//! The only unsafe code of the kit is here: asking the kernel to signal a child when its parent
//! dies has no safe wrapper.

mod child;
mod nats;

pub use child::{Child, Supervised, supervise};
pub use nats::{Nats, find_nats_server};

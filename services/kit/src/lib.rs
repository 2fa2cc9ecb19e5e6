//! What every Fovea service needs, and nothing that knows a domain: ids, time, money, faults,
//! configuration, telemetry, store, bus, blobs, cache, identity, and the frame a service runs in.
//!
//! Start with the README beside this crate: one snippet for each module.

pub mod auth;
pub mod blobs;
pub mod bus;
pub mod cache;
pub mod config;
pub mod fault;
pub mod id;
pub mod money;
pub mod process;
pub mod service;
pub mod store;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;

pub use fault::{Fault, Kind};
pub use id::Id;
pub use money::Amount;
pub use time::{Clock, Timestamp};

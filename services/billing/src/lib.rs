//! Billing: credits of workspaces, prices of devices, and the double-entry ledger behind them.

#![deny(clippy::float_arithmetic)]

mod commands;
pub mod domain;
pub mod error;

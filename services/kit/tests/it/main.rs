//! The kit against real servers: NATS, SQLite, PostgreSQL, Redis.

#![expect(clippy::unwrap_used, reason = "a test's unwrap is an assertion")]

mod blobs;
mod bus;
mod cache;
mod config;
mod facts;
mod process;
mod service;
mod store;
mod telemetry;

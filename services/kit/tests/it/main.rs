//! The kit against real servers: NATS, SQLite, PostgreSQL, Redis.

mod blobs;
mod bus;
mod cache;
mod config;
mod facts;
mod process;
mod service;
mod store;
mod telemetry;

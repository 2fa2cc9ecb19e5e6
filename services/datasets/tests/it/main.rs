//! Datasets as others meet it: gRPC against the running service, on a real NATS server, SQLite and PostgreSQL.

#![allow(
    clippy::unwrap_used,
    clippy::large_futures,
    reason = "a test that can't go on fails, and its size doesn't matter"
)]

mod archives;
mod imports;
mod isolation;
mod setting;
mod uploads;

//! Accounts as others meet it: gRPC against the running service, on a real NATS server, SQLite and PostgreSQL.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod isolation;
mod keys;
mod members;
mod setting;
mod sign_in;
mod start;
mod workspaces;

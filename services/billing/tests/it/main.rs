//! Billing as others meet it: gRPC and facts against the running service, on a real NATS server, SQLite and PostgreSQL.
//!
//! Its neighbours stand only at their proto: `accounts` as a small server, `projects` as a teller of facts.

#![expect(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod facts;
mod holds;
mod kill;
mod neighbours;
mod prices;
mod refusals;
mod restart;
mod setting;
mod statements;

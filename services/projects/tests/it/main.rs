//! The service against a real `nats-server`, SQLite and PostgreSQL; its neighbours are played at
//! their proto.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers of a test fail as loudly as the test"
)]

mod attempts;
mod follow;
mod isolation;
mod life;
mod neighbours;
mod restart;
mod starts;
mod telemetry;
mod world;

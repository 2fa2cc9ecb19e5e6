//! The service against a real `nats-server`, SQLite and PostgreSQL; its neighbours are played at
//! their proto.

mod attempts;
mod follow;
mod isolation;
mod life;
mod neighbours;
mod restart;
mod starts;
mod telemetry;
mod world;

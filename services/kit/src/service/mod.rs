//! The frame of a service: what it is given, how it serves, how it calls others, how it stops.

mod channel;
mod context;
mod server;
mod tasks;

pub use channel::{CALL_TIMEOUT, Channel};
pub use context::Context;
pub(crate) use server::port_fault;
pub use server::{MESSAGE_BYTES_MAX, STOP_TIMEOUT, serve_grpc};
pub use tasks::{Tasks, shutdown_on_signal};

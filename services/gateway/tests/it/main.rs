//! The gateway against real NATS and real blobs. Services behind it are faked at their proto: a
//! tonic server that verifies identities as every service does.

#![expect(
    clippy::unwrap_used,
    reason = "a test's helper that fails is a test that fails"
)]

mod access;
mod blobs;
mod grpc;
mod live;
mod openapi;
mod page;
mod rest;
mod session;
mod support;
mod uploads;

//! The gateway crate.

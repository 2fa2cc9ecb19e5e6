//! The kit crate.

//! The inference crate.

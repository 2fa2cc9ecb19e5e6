//! The projects crate.

//! The scheduler crate.

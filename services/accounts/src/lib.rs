//! The accounts crate.

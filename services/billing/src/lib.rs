//! The billing crate.

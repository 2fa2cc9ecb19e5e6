//! The datasets crate.

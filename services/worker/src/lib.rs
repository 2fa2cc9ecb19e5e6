//! The worker crate.

//! What the scheduler knows and decides, without clock, network or store.

pub mod catalogue;
pub mod estimate;
pub mod job;
pub mod placement;

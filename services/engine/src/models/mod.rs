//! The model catalogue: which models exist, how they are named, and the parameters they have.

mod spec;

pub use spec::{Family, ModelSpec, Scale, Task};

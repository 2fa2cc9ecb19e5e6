//! What a dataset is and what an import accepts, without I/O.

pub mod archive;
pub mod finding;
pub mod labels;
pub mod picture;
pub mod version;
pub mod yolo;

pub use finding::{Finding, Findings};

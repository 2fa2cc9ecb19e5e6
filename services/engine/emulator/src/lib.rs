//! A GPU without one: kernels compiled for the host with fibers as threads, behind a `libcuda.so` of our own. For
//! tests only; nothing that ships depends on it. The engine's host code and the binding run unmodified on it.
//!
//! `build` compiles what has changed and is quick otherwise. `Fake` steers the driver: schedules, faults, leaks.

mod build;
mod fake;

pub use build::{Flavour, build};
pub use fake::{Fake, Schedule};

use engine::device::cuda::{ARCHITECTURES, Pack, sources};

/// Returns a pack whose images name the kernels; the fake driver finds the code by name.
pub fn pack() -> Pack {
    let mut pack = Pack::default();
    for source in sources() {
        let mut text = String::from(".version 8.8\n");
        for kernel in source.kernels {
            text += &format!(".visible .entry {}\n", kernel.name);
        }
        for architecture in ARCHITECTURES {
            pack.insert(source.name, architecture.name, text.clone().into_bytes());
        }
    }
    pack
}

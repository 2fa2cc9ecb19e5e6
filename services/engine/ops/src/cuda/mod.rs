//! The table of kernels: for each its name, parameters, block and declared instructions. The launcher, the
//! compiler of the kernel pack, its lock file and the emulator all read this one place; nothing here needs CUDA.
//! `ops/cuda/README.md` says how to add a kernel.

mod params;

pub use params::{FastDiv, Field, FieldType, Layout, Parameters, View};

use std::fmt::Write as _;

/// Arithmetic and reductions on top of it.
pub const NUMBERS: &str = include_str!("../../cuda/numbers.h");

/// The surface that kernels are written in.
pub const SURFACE: &str = include_str!("../../cuda/ks.h");

/// A `.cu` file: it is compiled on its own and becomes one module.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    pub name: &'static str,
    pub text: &'static str,
    pub kernels: &'static [Kernel],
}

/// One kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub name: &'static str,
    pub parameters: &'static Layout,
    /// Threads of a block, and how many blocks a multiprocessor should hold.
    pub block: u32,
    pub min_blocks: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    pub uses: Uses,
}

impl Kernel {
    /// Describes a kernel without dynamic shared memory or special instructions.
    pub const fn plain(
        name: &'static str,
        parameters: &'static Layout,
        block: u32,
        min_blocks: u32,
    ) -> Self {
        Self {
            name,
            parameters,
            block,
            min_blocks,
            shared_bytes: 0,
            uses: Uses::NONE,
        }
    }
}

/// Instructions that must be in the machine code, or the kernel isn't what it claims to be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uses {
    pub tensor_cores: bool,
    pub async_copies: bool,
    pub matrix_loads: bool,
}

impl Uses {
    /// None of them.
    pub const NONE: Self = Self {
        tensor_cores: false,
        async_copies: false,
        matrix_loads: false,
    };
    /// All of them.
    pub const MATRIX: Self = Self {
        tensor_cores: true,
        async_copies: true,
        matrix_loads: true,
    };
}

/// Every file of this crate.
pub const SOURCES: &[Source] = &[
    crate::norm::cuda::SOURCE,
    crate::conv2d::cuda::SOURCE,
    crate::conv2d::cuda::STEM,
    crate::conv2d::cuda::WGRAD,
    crate::elementwise::cuda::SOURCE,
    crate::max_pool::cuda::SOURCE,
    crate::attention::cuda::SOURCE,
    crate::depthwise::cuda::SOURCE,
];

/// Writes `params.h`: each struct in C, with its size and offsets asserted, so that neither compiler can disagree
/// with Rust.
pub fn header(sources: &[Source]) -> String {
    let mut layouts: Vec<&Layout> = vec![View::LAYOUT, FastDiv::LAYOUT];
    for kernel in sources.iter().flat_map(|source| source.kernels) {
        for &layout in kernel.parameters.needs {
            add(&mut layouts, layout);
        }
        add(&mut layouts, kernel.parameters);
    }
    let mut text = String::from("// Written from the table of kernels.\n#pragma once\n");
    for layout in layouts {
        layout.write_c(&mut text);
    }
    text
}

fn add(layouts: &mut Vec<&'static Layout>, layout: &'static Layout) {
    if layouts.iter().all(|known| known.name != layout.name) {
        layouts.push(layout);
    }
}

impl Layout {
    fn write_c(&self, text: &mut String) {
        let _ = writeln!(text, "struct {} {{", self.name);
        for field in self.fields {
            let _ = match field.count {
                1 => writeln!(text, "    {} {};", field.c_type, field.name),
                count => writeln!(text, "    {} {}[{count}];", field.c_type, field.name),
            };
        }
        let _ = writeln!(text, "}};");
        let name = self.name;
        let _ = writeln!(
            text,
            "static_assert(sizeof({name}) == {}, \"{name}\");",
            self.size
        );
        // NVRTC has no offsetof. Without padding the size says as much.
        let _ = writeln!(text, "#ifndef __CUDACC_RTC__");
        for field in self.fields {
            let _ = writeln!(
                text,
                "static_assert(__builtin_offsetof({name}, {0}) == {1}, \"{name}.{0}\");",
                field.name, field.offset
            );
        }
        let _ = writeln!(text, "#endif");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_have_names_of_their_own_and_whole_warps() {
        let kernels: Vec<_> = SOURCES.iter().flat_map(|source| source.kernels).collect();
        for (index, kernel) in kernels.iter().enumerate() {
            assert!(kernel.block.is_multiple_of(32) && kernel.block <= 1024);
            let is_new = kernels[..index]
                .iter()
                .all(|other| other.name != kernel.name);
            assert!(is_new, "{}", kernel.name);
        }
    }

    #[test]
    fn the_header_holds_each_struct_once() {
        let text = header(SOURCES);
        assert_eq!(text.matches("struct View {").count(), 1);
        assert!(text.contains("static_assert(sizeof(View) == 16"), "{text}");
    }
}

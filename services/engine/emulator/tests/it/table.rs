//! The table in Rust and the kernels in C++ are the same list.

use engine::device::cuda::sources;

use crate::bench::fake;

#[test]
fn the_table_lists_what_is_compiled() {
    let mut expected: Vec<String> = sources()
        .iter()
        .flat_map(|source| source.kernels)
        .map(|kernel| {
            format!(
                "{} {} {} {}",
                kernel.name, kernel.parameters.size, kernel.block, kernel.min_blocks
            )
        })
        .collect();
    let mut compiled: Vec<String> = fake().kernels().lines().map(str::to_owned).collect();
    expected.sort();
    compiled.sort();
    assert_eq!(compiled, expected);
}

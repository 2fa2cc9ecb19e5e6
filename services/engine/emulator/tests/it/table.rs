//! The table in Rust and the kernels in C++ are the same list.

use engine::device::cuda::sources;
use engine::loss::cuda::CLAIMS_MAX;
use engine::metrics::cuda::{ApMatch, LABELS_MAX, SORT_MAX};

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

#[test]
fn limits_are_the_same_in_both_languages() {
    let limits = [
        ("detect", "CLAIMS_MAX", CLAIMS_MAX),
        ("nms", "SORT_MAX", SORT_MAX),
        ("nms", "LABELS_MAX", LABELS_MAX),
    ];
    for (file, name, value) in limits {
        let all = sources();
        let source = all.iter().find(|source| source.name == file).unwrap();
        assert!(
            source.text.contains(&format!("#define {name} {value}\n")),
            "{name} is {value} in {file}.cu"
        );
    }
}

#[test]
#[should_panic(expected = "an image has at most 1024 labels, not 1025")]
fn labels_that_a_kernel_would_leave_out_are_refused() {
    ApMatch::grid(&[0, 7, 7 + 1025]);
}

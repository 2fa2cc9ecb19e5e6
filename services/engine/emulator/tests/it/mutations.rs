//! Planted bugs: each is a macro around a barrier, a bound or a reset, and the test named beside it must fail with it.
//! What no test catches would show here. It compiles the kernels once for each, so it runs when asked.

use std::process::Command;

const MUTATIONS: [(&str, &str); 25] = [
    (
        "MUT_LAST_COUNTER_KEPT",
        "norm::statistics_are_those_of_two_passes",
    ),
    (
        "MUT_NO_BARRIER_STATS",
        "norm::statistics_are_those_of_two_passes",
    ),
    (
        "MUT_NO_BARRIER_REDUCE",
        "norm::the_gradient_of_a_norm_is_that_of_its_definition",
    ),
    (
        "MUT_NO_MEAN_TERM",
        "norm::the_gradient_of_a_norm_is_that_of_its_definition",
    ),
    (
        "MUT_SWIZZLE_ONE_SIDE",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_NO_PADDING_TEST",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_B_ROWS_SWAPPED",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_WAIT_TOO_WEAK",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_NO_BARRIER_MAIN",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_NO_BARRIER_MOMENTS",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_NO_BARRIER_TILES",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_NO_BARRIER_WGRAD",
        "conv::the_gradient_of_the_weights_is_the_sum_of_its_ranges",
    ),
    ("MUT_STEM_WRAPS", "conv::the_first_convolution_reads_bytes"),
    (
        "MUT_DEPTHWISE_WRAPS",
        "depthwise::both_gradients_of_a_depthwise_convolution_come_from_one_pass",
    ),
    (
        "MUT_NO_BARRIER_DEPTHWISE",
        "depthwise::both_gradients_of_a_depthwise_convolution_come_from_one_pass",
    ),
    (
        "MUT_NONE",
        "conv::a_convolution_makes_the_statistics_of_what_it_wrote",
    ),
    (
        "MUT_NONE",
        "norm::the_gradient_of_a_norm_is_that_of_its_definition",
    ),
    (
        "MUT_NO_BARRIER_SUM",
        "loss::whole_images_are_compared_as_on_the_cpu",
    ),
    (
        "MUT_LAST_COUNTER_KEPT",
        "loss::whole_images_are_compared_as_on_the_cpu",
    ),
    (
        "MUT_CLAIMS_KEPT",
        "loss::assignment_loss_and_gradients_are_those_of_the_cpu",
    ),
    (
        "MUT_NO_BARRIER_SPPF",
        "maps::chained_pools_are_those_of_the_cpu",
    ),
    (
        "MUT_NO_BARRIER_ATTENTION",
        "attention::attention_and_its_gradient_are_those_of_the_cpu",
    ),
    (
        "MUT_NO_BARRIER_TURN",
        "optim::weights_are_turned_for_the_way_back",
    ),
    (
        "MUT_NO_BARRIER_MUON",
        "muon::matrices_move_along_orthogonal_ones_as_on_the_cpu",
    ),
    (
        "MUT_NO_BARRIER_SORT",
        "detections::detections_are_those_of_the_cpu",
    ),
];

#[test]
#[ignore = "compiles the kernels once for each planted bug: scripts/mutate-kernels.sh"]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    for (mutation, test) in MUTATIONS {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact"])
            .env("FOVEA_MUTATION", mutation)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains("running 1 test"),
            "{test} is not a test: {text}"
        );
        // Without a bug the same test passes, or failing would say nothing.
        let is_right = output.status.success() == (mutation == "MUT_NONE");
        if !is_right {
            missed.push((mutation, test));
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

//! The catalogue against the published counts, and what every model must keep.

use super::*;
use crate::network::{InputShape, Role};
use crate::plan::{Branches, Kernel, Mode, Options, Plan};

fn spec(name: &str, class_count: usize) -> ModelSpec {
    ModelSpec::parse(name, class_count).unwrap()
}

/// Parameters, and billions of operations of all branches at the task's image side.
type Counts = (&'static str, [usize; 5], [f64; 5]);

/// The published counts of n, s, m, l and x. Operations are without what only the loss reads: classes per pixel and
/// deviations of keypoints.
const PUBLISHED: [Counts; 15] = [
    (
        "yolo11",
        [2_624_080, 9_458_752, 20_114_688, 25_372_160, 56_966_176],
        [6.481, 21.467, 67.982, 86.910, 194.904],
    ),
    (
        "yolo26",
        [2_572_280, 10_009_784, 21_896_248, 26_299_704, 58_993_368],
        [5.958, 22.530, 74.766, 93.013, 208.356],
    ),
    (
        "yolo11-seg",
        [2_876_848, 10_113_248, 22_420_896, 27_678_368, 62_142_656],
        [9.740, 32.950, 113.226, 132.155, 296.363],
    ),
    (
        "yolo26-seg",
        [3_126_280, 11_505_800, 27_112_072, 31_515_528, 70_693_800],
        [10.313, 37.056, 131.805, 150.052, 336.328],
    ),
    (
        "yolo11-pose",
        [2_908_507, 9_948_811, 20_973_273, 26_230_745, 58_889_881],
        [7.576, 23.22, 71.72, 90.65, 203.3],
    ),
    (
        "yolo26-pose",
        [3_747_554, 11_870_498, 24_344_482, 28_747_938, 62_914_350],
        [10.482, 29.25, 85.24, 103.5, 225.1],
    ),
    (
        "yolo11-obb",
        [2_695_747, 9_744_931, 20_963_523, 26_220_995, 58_875_331],
        [6.726, 22.45, 71.67, 90.60, 203.2],
    ),
    (
        "yolo26-obb",
        [2_715_614, 10_582_142, 23_593_918, 27_997_374, 62_811_678],
        [6.449, 24.49, 82.14, 100.4, 224.9],
    ),
    (
        "yolo11-cls",
        [2_812_104, 6_724_008, 11_634_216, 14_115_624, 29_637_064],
        [0.391, 1.470, 4.812, 6.045, 13.517],
    ),
    (
        "yolo26-cls",
        [2_812_104, 6_724_008, 11_634_216, 14_115_624, 29_637_064],
        [0.391, 1.470, 4.812, 6.045, 13.517],
    ),
    (
        "yolov8-cls",
        [2_719_288, 6_361_736, 17_053_336, 37_480_744, 57_422_840],
        [0.405, 1.527, 5.102, 12.095, 18.843],
    ),
    (
        "yolov8",
        [3_157_200, 11_166_560, 25_902_640, 43_691_520, 68_229_648],
        [8.744, 28.603, 78.937, 165.149, 257.804],
    ),
    (
        "yolov8-seg",
        [3_409_968, 11_821_056, 27_285_968, 45_997_728, 71_827_888],
        [12.003, 40.086, 104.538, 210.393, 328.357],
    ),
    (
        "yolov8-pose",
        [3_295_470, 11_626_046, 26_464_462, 44_489_196, 69_491_724],
        [9.178, 30.186, 81.022, 168.55, 263.208],
    ),
    (
        "yolov8-obb",
        [3_228_867, 11_452_739, 26_463_235, 44_540_355, 69_555_651],
        [8.989, 29.584, 81.077, 168.836, 263.566],
    ),
];

/// Operations of one branch, in billions.
const INFERENCE: [(&str, f64); 12] = [
    ("yolo26n", 5.357),
    ("yolo26s", 20.687),
    ("yolo26m", 68.180),
    ("yolo26l", 86.427),
    ("yolo26x", 193.865),
    ("yolo26n-seg", 9.127),
    ("yolo26s-seg", 34.216),
    ("yolo26m-seg", 121.498),
    ("yolo26l-seg", 139.745),
    ("yolo26x-seg", 313.491),
    ("yolo26n-pose", 7.619),
    ("yolo26n-obb", 5.603),
];

/// Parameters with norms folded and one branch kept.
const FOLDED: [(&str, usize); 14] = [
    ("yolo11n", 2_616_248),
    ("yolo11s", 9_443_760),
    ("yolo11m", 20_091_712),
    ("yolo11l", 25_340_992),
    ("yolo11x", 56_919_424),
    ("yolo26n", 2_408_932),
    ("yolo26s", 9_496_140),
    ("yolo26m", 20_411_132),
    ("yolo26l", 24_807_420),
    ("yolo26x", 55_725_948),
    ("yolo11n-seg", 2_868_664),
    ("yolo26n-seg", 2_722_980),
    ("yolo26n-pose", 2_960_395),
    ("yolo26n-obb", 2_480_503),
];

/// Returns the model with the classes it was counted with.
fn published(name: &str) -> ModelSpec {
    let class_count = match name {
        _ if name.ends_with("-cls") => 1000,
        _ if name.starts_with("yolov8") && name.ends_with("-pose") => 1,
        _ => 80,
    };
    spec(name, class_count)
}

fn planned(name: &str, branches: Branches) -> Plan {
    let spec = published(name);
    let shape = InputShape::square(1, spec.task.image_side());
    let options = Options {
        branches,
        ..Options::new(Mode::Infer, 1)
    };
    Plan::new(&spec, shape, options).unwrap()
}

fn billions(plan: &Plan) -> f64 {
    let convolutions = plan.forward.iter();
    let convolutions = convolutions.filter(|l| matches!(l.kernel, Kernel::Convolve { .. }));
    convolutions.map(|launch| launch.flops).sum::<u64>() as f64 / 1e9
}

/// Checks to the four digits that are published.
fn assert_published(name: &str, got: f64, expected: f64) {
    let limit = 6e-4 + 5e-4 * expected;
    assert!(
        (got - expected).abs() <= limit,
        "{name}: {got} instead of {expected}"
    );
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let mut seen = 0;
    for (name, counts, _) in PUBLISHED {
        let (family, suffix) = name.split_at(name.find('-').unwrap_or(name.len()));
        for (scale, count) in Scale::ALL.into_iter().zip(counts) {
            let name = format!("{family}{}{suffix}", scale.name());
            assert_eq!(tables(&published(&name)).parameter_count(), count, "{name}");
            seen += 1;
        }
    }
    assert_eq!(seen, ModelSpec::names().count());
}

#[test]
fn operations_are_the_published_ones() {
    for (name, _, counts) in PUBLISHED {
        let (family, suffix) = name.split_at(name.find('-').unwrap_or(name.len()));
        for (scale, expected) in Scale::ALL.into_iter().zip(counts) {
            let name = format!("{family}{}{suffix}", scale.name());
            assert_published(&name, billions(&planned(&name, Branches::Both)), expected);
        }
    }
    for (name, expected) in INFERENCE {
        assert_published(
            name,
            billions(&planned(name, Branches::OneToMany)),
            expected,
        );
    }
}

#[test]
fn folded_counts_are_the_published_ones() {
    for (name, expected) in FOLDED {
        let plan = planned(name, Branches::OneToMany);
        let convolutions = plan.convolutions.iter();
        let count: usize = convolutions
            .map(|planned| planned.weight_len() + planned.convolution.output_channels)
            .sum();
        let frozen = tables(&published(name)).parameters;
        let frozen = frozen.iter().filter(|t| t.role == Role::Frozen);
        let frozen: usize = frozen.map(TensorInfo::element_count).sum();
        assert_eq!(count + frozen, expected, "{name}");
    }
}

#[test]
fn names_are_unique_and_offsets_leave_no_gap() {
    for name in ModelSpec::names() {
        let tables = tables(&spec(&name, 3));
        for tensors in [&tables.parameters, &tables.buffers] {
            let mut names: Vec<_> = tensors.iter().map(|t| &t.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), tensors.len());
            let ends = std::iter::once(0).chain(tensors.iter().map(|t| t.range().end));
            assert!(tensors.iter().zip(ends).all(|(t, end)| t.offset == end));
        }
    }
}

#[test]
fn every_bias_and_norm_has_its_role() {
    let names = ModelSpec::names().filter(|name| name.contains('n'));
    for tensor in names.flat_map(|name| tables(&spec(&name, 80)).parameters) {
        let expected = match tensor.name.as_str() {
            name if name.contains("dfl") => Role::Frozen,
            name if name.ends_with("bias") => Role::Bias,
            name if name.contains(".bn.") => Role::NormWeight,
            _ => Role::Weight,
        };
        assert_eq!(tensor.role, expected, "{}", tensor.name);
    }
}

#[test]
fn fresh_weights_are_bounded_and_follow_the_seed() {
    let spec = spec("yolo11n", 80);
    let tables = tables(&spec);
    let [one, same, other] = [1, 1, 2].map(|seed| initialise(&spec, seed));
    assert_eq!(one, same);
    assert_ne!(one.parameters, other.parameters);
    let named = |name: &str| {
        let tensor = tables.parameters.iter().find(|t| t.name == name).unwrap();
        &one.parameters[tensor.range()]
    };
    let first = named("model.0.conv.weight");
    let bound = 1.0 / 27f32.sqrt();
    assert!(first.iter().all(|w| w.abs() <= bound));
    assert!(first.iter().any(|w| w.abs() > 0.9 * bound));
    let class_biases = [0, 1, 2].map(|i| named(&format!("model.23.cv3.{i}.2.bias"))[0]);
    for (bias, expected) in class_biases.into_iter().zip([-11.5366, -10.1503, -8.7640]) {
        assert!((bias - expected).abs() < 1e-4);
    }
    assert_eq!(named("model.23.cv2.0.2.bias"), [2.0; 64]);
    assert_eq!(named("model.23.dfl.conv.weight")[15], 15.0);
    assert_eq!(named("model.0.bn.weight"), [1.0; 16]);
    assert!(one.buffers.contains(&1.0));
}

#[test]
fn the_one_to_one_branch_begins_as_a_copy_and_the_flow_near_the_identity() {
    let spec = spec("yolo26n-pose", 80);
    let tables = tables(&spec);
    let state = initialise(&spec, 1);
    let named = |name: &str| {
        let tensor = tables.parameters.iter().find(|t| t.name == name).unwrap();
        &state.parameters[tensor.range()]
    };
    for leaf in [
        "cv2.1.0.conv.weight",
        "cv3.2.2.bias",
        "cv4.0.1.conv.weight",
        "cv4_kpts.2.bias",
    ] {
        let original = named(&format!("model.23.{leaf}"));
        assert_eq!(
            original,
            named(&format!("model.23.one2one_{leaf}")),
            "{leaf}"
        );
        assert!(original.iter().any(|&value| value != 0.0));
    }
    assert_eq!(named("model.23.cv2.0.2.bias"), [2.0; 4]);
    let bound = 0.01 * (6.0f32 / 66.0).sqrt();
    let weights = named("model.23.flow_model.s.5.0.weight");
    assert!(
        weights.iter().all(|w| w.abs() <= bound) && weights.iter().any(|w| w.abs() > bound / 2.0)
    );
    assert!(
        named("model.23.flow_model.t.0.4.bias")
            .iter()
            .any(|&b| b != 0.0)
    );
}

#[test]
fn transposed_weights_are_bounded_by_their_outputs() {
    let spec = spec("yolo11n-seg", 80);
    let tables = tables(&spec);
    let state = initialise(&spec, 1);
    let weight = "model.23.proto.upsample.weight";
    let tensor = tables.parameters.iter().find(|t| t.name == weight).unwrap();
    assert_eq!(tensor.shape, [64, 64, 2, 2]);
    let largest = state.parameters[tensor.range()]
        .iter()
        .fold(0.0f32, |a, w| a.max(w.abs()));
    assert!((0.9..=1.0).contains(&(largest * 16.0)), "{largest}");
}

//! The formulas that fill tensors, images and targets.

use engine::loss::{InstanceMaps, Targets};
use engine::models::{ModelSpec, Task};
use engine::network::{Role, TensorInfo};

use super::{BATCH, SIDE};

const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

fn seed(name: &str) -> u64 {
    name.bytes().fold(14_695_981_039_346_656_037, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    })
}

/// Returns a number in [0, 1).
fn unit(seed: u64, index: usize) -> f64 {
    let mut z = seed.wrapping_add((index as u64 + 1).wrapping_mul(GOLDEN_GAMMA));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 40) as f64 / f64::from(1 << 24)
}

/// Fills one tensor.
pub fn fill(tensor: &TensorInfo, head: &str, values: &mut [f32]) {
    let name = tensor.name.as_str();
    let (module, last) = name.rsplit_once('.').unwrap();
    let is_norm = module.ends_with(".bn");
    let is_last_of = |chain: &str| {
        let places = [
            format!("{head}.{chain}."),
            format!("{head}.one2one_{chain}."),
        ];
        places.iter().any(|place| name.starts_with(place))
    };
    let (offset, scale) = match (last, is_norm) {
        ("weight", true) => (1.0, 0.25),
        ("bias" | "running_mean", true) => (0.0, 0.25),
        ("running_var", true) => (1.0, 0.5),
        ("weight", false) => {
            let inputs = tensor.element_count() / tensor.shape[0];
            (0.0, gain(name) * (3.0 / inputs as f64).sqrt())
        }
        ("bias", false) if is_last_of("cv2") => (2.0, 0.5),
        ("bias", false) if is_last_of("cv3") => (-4.0, 0.5),
        ("bias", false) => (0.0, 0.1),
        _ => panic!("no rule for {name}"),
    };
    let seed = seed(name);
    for (index, value) in values.iter_mut().enumerate() {
        *value = match tensor.role {
            Role::Frozen if !is_norm => index as f32,
            _ => (offset + scale * (2.0 * unit(seed, index) - 1.0)) as f32,
        };
    }
}

fn gain(name: &str) -> f64 {
    match name {
        _ if name.contains(".flow_model.") => 0.03,
        _ if name.contains("cv4_kpts.") => 0.15,
        _ => 1.45,
    }
}

/// Returns the images, NHWC.
pub fn images() -> Vec<f32> {
    let seed = seed("input");
    let mut values = vec![0.0; BATCH * SIDE * SIDE * 3];
    for (index, value) in values.iter_mut().enumerate() {
        let (channel, x) = (index % 3, index / 3 % SIDE);
        let (y, image) = (index / 3 / SIDE % SIDE, index / 3 / SIDE / SIDE);
        let flat = ((image * 3 + channel) * SIDE + y) * SIDE + x;
        let wave = (x * (channel + 1) + y * (image + 2)) % 32;
        *value = (0.5 * unit(seed, flat) + wave as f64 / 64.0) as f32;
    }
    values
}

/// Image, class, centre and size, angle.
const OBJECTS: [(u32, u32, [f32; 4], f32); 5] = [
    (0, 3, [0.30, 0.35, 0.40, 0.50], 0.30),
    (0, 17, [0.70, 0.60, 0.30, 0.35], -0.50),
    (0, 3, [0.52, 0.48, 0.10, 0.12], 1.10),
    (1, 0, [0.50, 0.50, 0.80, 0.70], 0.00),
    (1, 42, [0.20, 0.75, 0.22, 0.30], 0.75),
];
const LABELS: [u32; BATCH] = [3, 17];
const KEYPOINTS: usize = 17;

/// Returns what the images are said to show.
pub fn targets(spec: &ModelSpec) -> Targets {
    if spec.task == Task::Classify {
        return Targets::labelled(LABELS.to_vec());
    }
    let mut targets = Targets::empty(BATCH);
    for (index, &(image, class, bounds, angle)) in OBJECTS.iter().enumerate() {
        let class = class % spec.class_count as u32;
        match spec.task {
            Task::Obb => targets.push_turned(image, class, bounds, angle),
            Task::Pose => targets.push_posed(image, class, bounds, keypoints(index)),
            _ => targets.push(image, class, bounds),
        }
    }
    targets.masks = (spec.task == Task::Segment).then(masks);
    targets
}

fn keypoints(object: usize) -> Vec<[f32; 3]> {
    // The formula is evaluated on the decimal numbers, before they are rounded.
    let [x, y, width, height] = OBJECTS[object].2.map(decimal);
    let seed = seed("keypoints");
    let at = |k: usize, axis: usize| 2.0 * unit(seed, (object * KEYPOINTS + k) * 2 + axis) - 1.0;
    let point = |k: usize| {
        let visibility = if k % 5 == 4 { 0.0 } else { 2.0 };
        [
            (x + 0.15 * width * at(k, 0)) as f32,
            (y + 0.15 * height * at(k, 1)) as f32,
            visibility,
        ]
    };
    (0..KEYPOINTS).map(point).collect()
}

/// Returns the number of two decimals that a float stands for.
fn decimal(value: f32) -> f64 {
    (f64::from(value) * 100.0).round() / 100.0
}

/// Returns ellipses inside the boxes, later ones over earlier ones.
fn masks() -> InstanceMaps {
    let side = SIDE / 4;
    let mut values = vec![0; BATCH * side * side];
    let mut counts = [0; BATCH];
    for (image, _, bounds, _) in OBJECTS {
        let image = image as usize;
        counts[image] += 1;
        let [x, y, width, height] = bounds.map(decimal);
        for row in 0..side {
            for column in 0..side {
                let [across, down] = [column, row].map(|i| (i as f64 + 0.5) / side as f64);
                let distance =
                    ((across - x) / (width / 2.0)).powi(2) + ((down - y) / (height / 2.0)).powi(2);
                if distance <= 1.0 {
                    values[(image * side + row) * side + column] = counts[image];
                }
            }
        }
    }
    InstanceMaps {
        height: side,
        width: side,
        values,
    }
}

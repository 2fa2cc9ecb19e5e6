//! The flow against its definition in double precision, and its gradients against differences.

use super::super::lanes::tests::noise;
use super::*;
use crate::network::Role;

/// The flow's tensors after something else, with made-up values.
pub fn made_up() -> (Vec<TensorInfo>, Vec<f32>) {
    let mut tensors: Vec<TensorInfo> = Vec::new();
    let mut push = |name: String, shape: Vec<usize>| {
        let offset = tensors.last().map_or(0, |last| last.range().end);
        tensors.push(TensorInfo {
            name,
            shape,
            offset,
            role: Role::Weight,
        });
    };
    push("model.0.conv.weight".into(), vec![7]);
    for network in ["s", "t"] {
        for coupling in 0..COUPLINGS {
            for (layer, outputs, inputs) in [(0, HIDDEN, 2), (2, HIDDEN, HIDDEN), (4, 2, HIDDEN)] {
                let name = format!("model.23.flow_model.{network}.{coupling}.{layer}");
                push(format!("{name}.weight"), vec![outputs, inputs]);
                push(format!("{name}.bias"), vec![outputs]);
            }
        }
    }
    let count = tensors.last().unwrap().range().end;
    let values = (0..count).map(|i| 0.25 * noise(1, i)).collect();
    (tensors, values)
}

fn log_density(tensors: &[TensorInfo], values: &[f64], at: [f64; 2]) -> f64 {
    let layer = |name: &str, x: &[f64]| -> Vec<f64> {
        let find = |kind: &str| {
            let name = format!("model.23.flow_model.{name}.{kind}");
            let tensor = tensors.iter().find(|t| t.name == name).unwrap();
            &values[tensor.range()]
        };
        let (weight, bias) = (find("weight"), find("bias"));
        let rows = weight.chunks(x.len()).zip(bias);
        rows.map(|(row, bias)| row.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + bias)
            .collect()
    };
    let network = |kind: &str, coupling: usize, x: &[f64]| {
        let silu =
            |x: Vec<f64>| -> Vec<f64> { x.into_iter().map(|x| x / (1.0 + (-x).exp())).collect() };
        let first = silu(layer(&format!("{kind}.{coupling}.0"), x));
        let middle = silu(layer(&format!("{kind}.{coupling}.2"), &first));
        layer(&format!("{kind}.{coupling}.4"), &middle)
    };
    let (mut z, mut log_determinant) = (at, 0.0);
    for coupling in (0..COUPLINGS).rev() {
        let mask = [[0.0, 1.0], [1.0, 0.0]][coupling % 2];
        let input = [mask[0] * z[0], mask[1] * z[1]];
        let scale = network("s", coupling, &input);
        let shift = network("t", coupling, &input);
        for axis in 0..2 {
            let scale = scale[axis].tanh() * (1.0 - mask[axis]);
            let shift = shift[axis] * (1.0 - mask[axis]);
            z[axis] = (1.0 - mask[axis]) * (z[axis] - shift) * (-scale).exp() + input[axis];
            log_determinant -= scale;
        }
    }
    let length = z[0] * z[0] + z[1] * z[1];
    -0.5 * length - (2.0 * std::f64::consts::PI).ln() + log_determinant
}

fn points(count: usize) -> Vec<Point> {
    let point = |i| Point {
        at: [3.0 * noise(2, i), 3.0 * noise(3, i)],
        weight: 0.5 + noise(4, i),
        ..Point::default()
    };
    (0..count).map(point).collect()
}

#[test]
fn densities_and_gradients_agree_with_their_definition() {
    let (tensors, parameters) = made_up();
    let mut flow = Flow::find(&tensors).unwrap();
    let mut points = points(19);
    flow.evaluate(&parameters, &mut points, &Threads::new(2).unwrap());
    let mut gradient = vec![0.0; parameters.len()];
    flow.add_gradient(2.0, &mut gradient);

    let mut values: Vec<f64> = parameters.iter().map(|&v| f64::from(v)).collect();
    let step = 1e-5;
    for point in &points {
        let at = point.at.map(f64::from);
        let expected = log_density(&tensors, &values, at);
        assert!((f64::from(point.log_density) - expected).abs() < 1e-5 * (1.0 + expected.abs()));
        for axis in 0..2 {
            let moved = |by: f64| {
                let mut at = at;
                at[axis] += by;
                log_density(&tensors, &values, at)
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step);
            let expected = difference * f64::from(point.weight);
            let error = (f64::from(point.slope[axis]) - expected).abs();
            assert!(error < 2e-5 * (1.0 + expected.abs()), "{error}");
        }
    }
    // Every tensor in a few places, the inputs and outputs that masks hide among them.
    for tensor in &tensors[1..] {
        let range = tensor.range();
        for index in range.clone().step_by(range.len().div_ceil(7)) {
            let base = values[index];
            let mut total = |by: f64| -> f64 {
                values[index] = base + by;
                let each = points.iter().map(|point| {
                    let density = log_density(&tensors, &values, point.at.map(f64::from));
                    2.0 * f64::from(point.weight) * density
                });
                let sum = each.sum();
                values[index] = base;
                sum
            };
            let difference = (total(step) - total(-step)) / (2.0 * step);
            let error = (f64::from(gradient[index]) - difference).abs();
            assert!(
                error < 1e-4 * (1.0 + difference.abs()),
                "{}: {difference} and {}",
                tensor.name,
                gradient[index]
            );
        }
    }
    assert_eq!(gradient[..7], [0.0; 7]);
}

#[test]
fn the_result_is_the_same_bits_for_any_number_of_threads() {
    let (tensors, parameters) = made_up();
    let run = |threads: usize, count: usize| {
        let mut flow = Flow::find(&tensors).unwrap();
        let mut points = points(count);
        let threads = Threads::new(threads).unwrap();
        // What an earlier and longer step left behind must not show.
        flow.evaluate(&parameters, &mut self::points(700), &threads);
        flow.evaluate(&parameters, &mut points, &threads);
        let mut gradient = vec![0.0; parameters.len()];
        flow.add_gradient(1.0, &mut gradient);
        let found = points.iter().map(|point| (point.log_density, point.slope));
        (found.collect::<Vec<_>>(), gradient)
    };
    for count in [1, 16, 300] {
        let one = run(1, count);
        assert!(one == run(2, count) && one == run(5, count));
    }
    assert!(run(2, 0).1.iter().all(|&by| by == 0.0));
}

#[test]
fn a_model_without_a_flow_has_none() {
    let (tensors, _) = made_up();
    assert!(Flow::find(&tensors[..1]).is_none());
}

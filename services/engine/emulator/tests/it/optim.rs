//! The optimiser's step, folded norms, and what steers a step.

use engine::device::cuda::control::{Checksum, MetricsPush, Poison, StepAdvance};
use engine::network::{Role, TensorInfo};
use engine::optim::cuda::{BnFold, GradNorm, OptStep, Piece, PieceRole, TurnWeights, turn_tiles};
use engine::optim::{Optimizer, OptimizerKind, OptimizerSettings, Rates, clip_gradient_norm};
use engine::parallel::Threads;

use crate::bench::{Draw, Vector, agree, each_way, from_bf16, to_bf16};

const LAYOUT: [(Role, PieceRole, usize); 4] = [
    (Role::Weight, PieceRole::Weight, 5000),
    (Role::NormWeight, PieceRole::NormWeight, 7),
    (Role::Bias, PieceRole::Bias, 9),
    (Role::Frozen, PieceRole::AveragedOnly, 40),
];

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

#[test]
fn steps_are_those_of_the_cpu_and_one_without_numbers_moves_nothing() {
    let threads = Threads::new(1).unwrap();
    let (mut tensors, mut pieces, mut count) = (Vec::new(), Vec::new(), 0);
    for (role, piece_role, length) in LAYOUT {
        tensors.push(TensorInfo {
            name: format!("model.{count}"),
            shape: vec![length],
            offset: count,
            role,
        });
        for piece in Piece::cut(count as u32, length as u32, piece_role, 1.0) {
            pieces.extend(piece.words());
        }
        count += length;
    }
    let rates = Rates {
        weight: 0.01,
        norm: 0.02,
        bias: 0.03,
        momentum: 0.9,
    };
    each_way(|device, seed| {
        for kind in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
            let draw = &mut Draw::new(seed);
            let settings = OptimizerSettings {
                kind,
                momentum: 0.9,
                ..OptimizerSettings::sgd()
            };
            let decay = 0.0005;
            let mut optimizer = Optimizer::new(&settings, decay, &tensors);
            let mut parameters = draw.floats(count);
            let mut average = parameters.clone();
            let master = Vector::of(device, &parameters);
            let average_there = Vector::of(device, &parameters);
            let memory = [(); 2].map(|()| Vector::of(device, &vec![0.0f32; count]));
            let gradient_there = Vector::of(device, &vec![0.0f32; count]);
            let work = Vector::of(device, &vec![0xffffu16; count]);
            let pieces_there = Vector::of(device, &pieces);
            let partials = Vector::poisoned(device, 3);
            let [counter, skipped] = [(); 2].map(|()| Vector::of(device, &[0u32]));
            let (clip, share) = (Vector::poisoned(device, 2), 0.25f32);
            for step in 1..=4u32 {
                let mut gradient: Vec<f32> = (0..count).map(|_| draw.next()).collect();
                gradient[count - 40..].fill(0.0);
                // A third step of no numbers: whatever it did must not show in the fourth.
                let is_broken = step == 3;
                let mut sent = gradient.clone();
                if is_broken {
                    sent[4097] = f32::NAN;
                }
                gradient_there.arena.upload(0, &sent).unwrap();
                let done = optimizer.step_count() as i32 + 1;
                let mean_bias = (1.0 - 0.9f64.powi(done)) as f32;
                let square_bias = (1.0 - 0.999f64.powi(done)).sqrt() as f32;
                let control = [0.01f32, 0.02, 0.03, 0.9, share, mean_bias, square_bias, 0.0];
                let control = Vector::of(device, &control);
                let norm = GradNorm {
                    gradient: gradient_there.address(),
                    partials: partials.address(),
                    counter: counter.address(),
                    clip: clip.address(),
                    skipped: skipped.address(),
                    count: count as u32,
                    limit: 10.0,
                };
                device.launch("grad_norm", [3, 1, 1], &norm).unwrap();
                let parameters_there = OptStep {
                    master: master.address(),
                    gradient: gradient_there.address(),
                    first: memory[0].address(),
                    second: memory[1].address(),
                    average: average_there.address(),
                    work: work.address(),
                    pieces: pieces_there.address(),
                    control: control.address(),
                    clip: clip.address(),
                    weight_decay: decay as f32,
                    adaptive: u32::from(kind == OptimizerKind::AdamW),
                    mean_share: 0.1,
                    square_keep: 0.999,
                    square_share: 0.001,
                    unused: 0,
                };
                let grid = [pieces.len() as u32 / 4, 1, 1];
                device.launch("opt_step", grid, &parameters_there).unwrap();
                assert!(gradient_there.floats().iter().all(|&slope| slope == 0.0));
                assert_eq!(skipped.read::<u32>(), [u32::from(step >= 3)]);
                if !is_broken {
                    let found = clip_gradient_norm(&gradient, 10.0, &threads);
                    let expected = [found.norm, f64::from(found.factor)];
                    agree("clip", &clip.floats(), &expected, 1e-6);
                    let factor = found.factor;
                    optimizer.step(&mut parameters, &mut gradient, factor, &rates, &threads);
                    for (average, value) in average.iter_mut().zip(&parameters) {
                        *average += share * (value - *average);
                    }
                }
                agree("parameters", &master.floats(), &wide(&parameters), 1e-6);
                agree("average", &average_there.floats(), &wide(&average), 1e-6);
                let rounded = work.read::<u16>();
                let trained = count - 40;
                for (place, value) in master.read::<f32>()[..trained].iter().enumerate() {
                    assert_eq!(rounded[place], to_bf16(*value), "weight {place}");
                }
            }
        }
    });
}

#[test]
fn weights_are_turned_for_the_way_back() {
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let sizes = [[40u32, 9, 16], [8, 1, 72]];
        let count: u32 = sizes.iter().map(|size| size.iter().product::<u32>()).sum();
        let turned = Vector::of(device, &vec![0xffffu16; count as usize]);
        for _ in 0..2 {
            let values: Vec<u16> = (0..count).map(|_| to_bf16(draw.next())).collect();
            let weights = Vector::of(device, &values);
            let (mut matrices, mut tiles, mut at) = (Vec::new(), Vec::new(), 0);
            let mut expected = vec![0; count as usize];
            for (index, size) in sizes.into_iter().enumerate() {
                let [outputs, taps, inputs] = size;
                matrices.extend([at, at, outputs, inputs, taps, 0]);
                tiles.extend(turn_tiles(index as u32, size));
                for place in 0..outputs * taps * inputs {
                    let (output, rest) = (place / (taps * inputs), place % (taps * inputs));
                    let (tap, input) = (rest / inputs, rest % inputs);
                    let to = at + (input * taps + tap) * outputs + output;
                    expected[to as usize] = values[(at + place) as usize];
                }
                at += outputs * taps * inputs;
            }
            let [matrices, tiles_there] = [&matrices, &tiles].map(|v| Vector::of(device, v));
            let parameters = TurnWeights {
                weights: weights.address(),
                turned: turned.address(),
                matrices: matrices.address(),
                tiles: tiles_there.address(),
            };
            let grid = [tiles.len() as u32 / 4, 1, 1];
            device.launch("turn_weights", grid, &parameters).unwrap();
            assert_eq!(turned.read::<u16>(), expected);
        }
    });
}

#[test]
fn a_norm_is_folded_into_the_weights_before_it() {
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let (outputs, row) = (16, 9 * 24);
        let folded = Vector::of(device, &vec![0xffffu16; outputs * row]);
        let bias = Vector::poisoned(device, outputs);
        for _ in 0..2 {
            let weights = draw.floats(outputs * row);
            let [gamma, beta, mean] = [(); 3].map(|()| draw.floats(outputs));
            let variance: Vec<f32> = (0..outputs).map(|_| draw.next() + 1.5).collect();
            let there = [&weights, &gamma, &beta, &mean, &variance].map(|v| Vector::of(device, v));
            let parameters = BnFold {
                weights: there[0].address(),
                gamma: there[1].address(),
                beta: there[2].address(),
                mean: there[3].address(),
                variance: there[4].address(),
                folded: folded.address(),
                bias: bias.address(),
                row: row as u32,
                epsilon: 1e-3,
            };
            let grid = [outputs as u32, 1, 1];
            device.launch("bn_fold", grid, &parameters).unwrap();
            let scale = |output: usize| {
                f64::from(gamma[output]) / (f64::from(variance[output]) + 1e-3).sqrt()
            };
            let expected: Vec<f64> = (0..outputs * row)
                .map(|place| f64::from(weights[place]) * scale(place / row))
                .collect();
            let got: Vec<f64> = folded
                .read::<u16>()
                .iter()
                .map(|&b| from_bf16(b).into())
                .collect();
            agree("folded", &got, &expected, 4e-3);
            let expected: Vec<f64> = (0..outputs)
                .map(|output| f64::from(beta[output]) - f64::from(mean[output]) * scale(output))
                .collect();
            agree("bias", &bias.floats(), &expected, 1e-6);
        }
    });
}

#[test]
fn a_step_finds_its_rates_and_leaves_its_results_in_a_ring() {
    each_way(|device, _| {
        let table: Vec<f32> = (0..3 * 8).map(|place| place as f32).collect();
        let table = Vector::of(device, &table);
        let (control, step) = (Vector::poisoned(device, 8), Vector::of(device, &[10u32]));
        let advance = StepAdvance {
            table: table.address(),
            control: control.address(),
            step: step.address(),
            rows: 3,
            first: 10,
        };
        let ring = Vector::of(device, &[0u32; 4 * 6]);
        let (items, skipped) = (
            Vector::of(device, &[1.5f32, 2.5, 3.5]),
            Vector::of(device, &[7u32]),
        );
        let push = MetricsPush {
            step: step.address(),
            sources: [items.address(), skipped.address(), 0, 0],
            ring: ring.address(),
            counts: [3, 1, 0, 0],
            slots: 4,
            width: 6,
        };
        for done in 1..=5u32 {
            device.launch("step_advance", [1, 1, 1], &advance).unwrap();
            device.launch("metrics_push", [1, 1, 1], &push).unwrap();
            let row = f64::from((done - 1).min(2));
            let expected: Vec<f64> = (0..8).map(|place| 8.0 * row + f64::from(place)).collect();
            agree("rates", &control.floats(), &expected, 0.0);
            assert_eq!(step.read::<u32>(), [10 + done]);
            let slot = ((10 + done) % 4) as usize * 6;
            let expected = [
                10 + done,
                1.5f32.to_bits(),
                2.5f32.to_bits(),
                3.5f32.to_bits(),
                7,
            ];
            assert_eq!(ring.read::<u32>()[slot..slot + 5], expected);
        }
    });
}

#[test]
fn a_checksum_tells_buffers_apart_whatever_the_grid() {
    each_way(|device, seed| {
        let words = Vector::of(device, &vec![seed as u32; 1000]);
        let sum_of = |blocks: u32| {
            let sum = Vector::of(device, &[0u64]);
            let parameters = Checksum {
                words: words.address(),
                sum: sum.address(),
                count: 1000,
                unused: 0,
            };
            device
                .launch("checksum", [blocks, 1, 1], &parameters)
                .unwrap();
            sum.read::<u64>()[0]
        };
        let poison = |count, pattern| {
            let parameters = Poison {
                words: words.address(),
                count,
                pattern,
            };
            device.launch("poison", [2, 1, 1], &parameters).unwrap();
        };
        let before = sum_of(1);
        assert_eq!(before, sum_of(3));
        poison(999, u32::MAX);
        let mut expected = vec![u32::MAX; 1000];
        expected[999] = seed as u32;
        assert_eq!(words.read::<u32>(), expected);
        assert_ne!(before, sum_of(3));
        // Two words that change places are another buffer.
        let poisoned = sum_of(2);
        expected.swap(5, 999);
        words.arena.upload(0, &expected).unwrap();
        assert_ne!(poisoned, sum_of(2));
    });
}

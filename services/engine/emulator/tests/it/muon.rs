//! The orthogonalised half of MuSGD, against the CPU's, which computes in single precision throughout.

use engine::network::{Role, TensorInfo};
use engine::optim::cuda::{Muon, MuonTables, OptStep, Piece, PieceRole};
use engine::optim::{Optimizer, OptimizerKind, OptimizerSettings, Rates};
use engine::parallel::Threads;

use crate::bench::{Draw, Vector, agree, each_way};

/// A wide matrix, a tall one, one of several tiles, and a vector that is none.
const SHAPES: [&[usize]; 4] = [&[16, 8, 3, 3], &[72, 40], &[70, 10, 3, 3], &[24]];

#[test]
fn matrices_move_along_orthogonal_ones_as_on_the_cpu() {
    let threads = Threads::new(1).unwrap();
    let (mut tensors, mut tables, mut pieces, mut count) =
        (Vec::new(), MuonTables::default(), Vec::new(), 0);
    for shape in SHAPES {
        let length: usize = shape.iter().product();
        let (role, piece_role) = match shape.len() {
            1 => (Role::Bias, PieceRole::Bias),
            _ => (Role::Weight, PieceRole::Weight),
        };
        tensors.push(TensorInfo {
            name: format!("model.{count}"),
            shape: shape.to_vec(),
            offset: count,
            role,
        });
        if shape.len() > 1 {
            let rows = shape[0];
            let side = match shape {
                &[height, width] => (height as f32 / width as f32).max(1.0).sqrt(),
                _ => 1.0,
            };
            let size = [rows, length / rows].map(|size| size as u32);
            tables.push(count as u32, size, 0.2 * side);
        }
        for piece in Piece::cut(count as u32, length as u32, piece_role, 1.0) {
            pieces.extend(piece.words());
        }
        count += length;
    }
    let rates = Rates {
        weight: 1.0,
        norm: 1.0,
        bias: 1.0,
        momentum: 0.9,
    };
    each_way(|device, seed| {
        let draw = &mut Draw::new(seed);
        let settings = OptimizerSettings {
            kind: OptimizerKind::MuSgd,
            momentum: 0.9,
            ..OptimizerSettings::sgd()
        };
        let mut optimizer = Optimizer::new(&settings, 0.0, &tensors);
        let start = draw.floats(count);
        let mut parameters = start.clone();
        let [master, average] = [(); 2].map(|()| Vector::of(device, &start));
        let [memory, momentum] = [(); 2].map(|()| Vector::of(device, &vec![0.0f32; count]));
        let x_len = tables.x_len as usize;
        let spaces = [(); 2].map(|()| Vector::poisoned(device, x_len));
        let grams = [(); 2].map(|()| Vector::poisoned(device, tables.gram_len as usize));
        let partials = Vector::poisoned(device, tables.pieces.len() / 4);
        let control = Vector::of(device, &[1.0f32, 1.0, 1.0, 0.9, 1.0, 0.0, 0.0, 0.0]);
        let clip = Vector::of(device, &[1.0f32, 1.0]);
        let lists = [
            &tables.matrices,
            &tables.pieces,
            &tables.square_tiles,
            &tables.wide_tiles,
            &pieces,
        ];
        let lists = lists.map(|list| Vector::of(device, list));
        for _ in 0..2 {
            let mut gradient: Vec<f32> = (0..count).map(|_| 0.01 * draw.next()).collect();
            let gradient_there = Vector::of(device, &gradient);
            let mut muon = Muon {
                master: master.address(),
                gradient: gradient_there.address(),
                memory: memory.address(),
                x: spaces[0].address(),
                y: spaces[1].address(),
                gram: grams[0].address(),
                square: grams[1].address(),
                partials: partials.address(),
                matrices: lists[0].address(),
                pieces: lists[1].address(),
                tiles: lists[2].address(),
                control: control.address(),
                clip: clip.address(),
                stage: 0,
                unused: 0,
            };
            let blocks = |words: &[u32]| [words.len() as u32 / 4, 1, 1];
            let by_piece = blocks(&tables.pieces);
            device.launch("muon_momentum", by_piece, &muon).unwrap();
            device.launch("muon_normalise", by_piece, &muon).unwrap();
            for _ in 0..5 {
                for stage in 0..3 {
                    muon.stage = stage;
                    let (tiles, words) = match stage {
                        2 => (&lists[3], &tables.wide_tiles),
                        _ => (&lists[2], &tables.square_tiles),
                    };
                    muon.tiles = tiles.address();
                    device.launch("muon_product", blocks(words), &muon).unwrap();
                }
                std::mem::swap(&mut muon.x, &mut muon.y);
            }
            device.launch("muon_apply", by_piece, &muon).unwrap();
            let step = OptStep {
                master: master.address(),
                gradient: gradient_there.address(),
                first: momentum.address(),
                average: average.address(),
                pieces: lists[4].address(),
                control: control.address(),
                clip: clip.address(),
                ..OptStep::default()
            };
            device.launch("opt_step", blocks(&pieces), &step).unwrap();
            optimizer.step(&mut parameters, &mut gradient, 1.0, &rates, &threads);
            let moved = |values: Vec<f64>| -> Vec<f64> {
                let pairs = values.iter().zip(&start);
                pairs
                    .map(|(value, start)| value - f64::from(*start))
                    .collect()
            };
            let expected = moved(parameters.iter().map(|&v| f64::from(v)).collect());
            let found = moved(master.floats());
            for tensor in &tensors {
                let range = tensor.range();
                // The products are of bf16, five rounds of them: each element is off a little, all together less.
                let (found, expected) = (&found[range.clone()], &expected[range]);
                agree(&tensor.name, found, expected, 8e-2);
                let squares = |values: &mut dyn Iterator<Item = f64>| -> f64 {
                    values.map(|value| value * value).sum()
                };
                let off = squares(&mut found.iter().zip(expected).map(|(a, b)| a - b));
                let all = squares(&mut expected.iter().copied());
                assert!(off < 4e-4 * all, "{}: {off} of {all}", tensor.name);
            }
        }
    });
}

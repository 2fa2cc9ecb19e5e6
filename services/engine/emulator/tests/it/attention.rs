//! Attention, against the CPU's.

use std::cell::Cell;

use engine::ops::attention::cuda::{Attention, AttentionBackward, grid};
use engine::ops::attention::{self, AttentionShape, Backward, Forward};
use engine::ops::view::{View, as_cells};
use engine::parallel::Threads;

use crate::bench::{Draw, Tensor, Vector, agree, each_way};

const HEAD: usize = 128;
const VALUES: usize = 64;

fn floats(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

fn wide(cells: &[Cell<f32>]) -> Vec<f64> {
    cells.iter().map(|cell| f64::from(cell.get())).collect()
}

#[test]
fn attention_and_its_gradient_are_those_of_the_cpu() {
    let threads = Threads::new(1).unwrap();
    each_way(|device, seed| {
        for (images, heads, pixels) in [(2, 1, 37), (1, 2, 66)] {
            let draw = &mut Draw::new(seed);
            let shape = AttentionShape {
                batch: images,
                pixels,
                heads,
                key_channels: 32,
                value_channels: VALUES,
            };
            let (all, wide_channels, channels) = (images * pixels, heads * HEAD, heads * VALUES);
            let tensor = |channels: usize, offset: usize| {
                Tensor::new(device, all, [channels + 16, offset, channels])
            };
            let (qkv, qkv_gradient) = (tensor(wide_channels, 8), tensor(wide_channels, 16));
            let [attended, values] = [0, 8].map(|offset| tensor(channels, offset));
            let [attended_gradient, values_gradient] = [8, 16].map(|at| tensor(channels, at));
            let [normalisers, means] =
                [(); 2].map(|()| Vector::poisoned(device, images * heads * pixels));
            let grid = grid(images as u32, heads as u32, pixels as u32);
            for _ in 0..2 {
                let mut x = floats(&qkv.set(|_, _| 1.5 * draw.next()));
                let scale = 1.0 / 32.0f32.sqrt();
                let forward = Attention {
                    qkv: qkv.view(),
                    attended: attended.view(),
                    values: values.view(),
                    normalisers: normalisers.address(),
                    pixels: pixels as u32,
                    scale,
                };
                device.launch("attn_fwd", grid, &forward).unwrap();

                let mut outputs = [(); 2].map(|()| vec![0.0f32; all * channels]);
                let mut sums = vec![0.0f32; attention::normalisers_len(&shape)];
                let length = attention::scratch_len(&shape, 1)
                    .max(attention::backward_scratch_len(&shape, 1));
                let mut scratch = vec![0.0f32; length];
                let (sums, scratch) = (as_cells(&mut sums), as_cells(&mut scratch));
                let [one, two] = &mut outputs;
                let [own, image] = [one, two].map(|v| View::dense(as_cells(v), channels));
                let input = View::dense(as_cells(&mut x), wide_channels);
                let pass = Forward {
                    input,
                    attended: own,
                    values: image,
                    normalisers: Some(sums),
                    scratch,
                };
                attention::forward(&threads, &shape, pass);
                agree("attended", &attended.get(), &wide(own.cells), 5e-3);
                agree("values", &values.get(), &wide(image.cells), 0.0);

                let [mut slope, mut direct] = [&attended_gradient, &values_gradient]
                    .map(|tensor| floats(&tensor.set(|_, _| draw.next())));
                let backward = AttentionBackward {
                    qkv: qkv.view(),
                    attended: attended.view(),
                    attended_gradient: attended_gradient.view(),
                    values_gradient: values_gradient.view(),
                    qkv_gradient: qkv_gradient.view(),
                    normalisers: normalisers.address(),
                    means: means.address(),
                    pixels: pixels as u32,
                    scale,
                };
                device.launch("attn_bwd_query", grid, &backward).unwrap();
                device.launch("attn_bwd_key", grid, &backward).unwrap();
                let mut gradient = vec![0.0f32; all * wide_channels];
                let target = View::dense(as_cells(&mut gradient), wide_channels);
                let pass = Backward {
                    input,
                    attended: own,
                    normalisers: sums,
                    attended_gradient: View::dense(as_cells(&mut slope), channels),
                    values_gradient: View::dense(as_cells(&mut direct), channels),
                    input_gradient: target,
                    scratch,
                };
                attention::backward(&threads, &shape, pass);
                agree("gradient", &qkv_gradient.get(), &wide(target.cells), 6e-3);
            }
        }
    });
}

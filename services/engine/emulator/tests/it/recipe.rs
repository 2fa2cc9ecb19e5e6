//! What is drawn for a training batch is what the CPU draws.

use engine::data::augment::cuda::{AugRecipe, RECIPE_WORDS};
use engine::data::augment::{Augmentation, Warp, mosaic_centre};
use engine::random::{Permutation, Philox, Use};

use crate::bench::{Vector, agree, each_way};

#[test]
fn a_batch_is_drawn_as_on_the_cpu() {
    let options = Augmentation {
        degrees: 170.0,
        shear: 20.0,
        perspective: 0.001,
        flipud: 0.3,
        bgr: 0.2,
        mosaic: 0.6,
        ..Augmentation::default()
    };
    let (samples, batch, size) = (205u32, 70u32, 320u32);
    let sizes: Vec<u32> = (0..2 * samples).map(|i| 100 + i % 221).collect();
    each_way(|device, seed| {
        let seed = seed | seed << 35;
        let sizes_there = Vector::of(device, &sizes);
        let recipes = Vector::poisoned(device, batch as usize * RECIPE_WORDS);
        for (epoch, first) in [(0u32, 0u32), (3, 135)] {
            let cursor = Vector::of(device, &[epoch, first]);
            let parameters = AugRecipe {
                cursor: cursor.address(),
                sizes: sizes_there.address(),
                recipes: recipes.address(),
                ..AugRecipe::new(&options, seed, samples, batch, size)
            };
            device
                .launch("aug_recipe", parameters.grid(), &parameters)
                .unwrap();
            let order = Permutation::new(seed, epoch, samples);
            let words = recipes.read::<u32>();
            let mut mosaics = 0;
            for (output, recipe) in words.chunks(RECIPE_WORDS).enumerate() {
                let sample = order.at(first + output as u32);
                let stream = |purpose| Philox::new(seed, epoch, sample, purpose);
                let mut draw = stream(Use::Mosaic);
                let is_mosaic = draw.chance(options.mosaic);
                let mut expected = vec![sample, u32::from(is_mosaic), 0, 0, 0, 0, 0];
                let mut source = [0, 1].map(|axis| sizes[2 * sample as usize + axis] as usize);
                if is_mosaic {
                    let (x, y) = mosaic_centre(&mut draw, size as usize);
                    expected[2..4].copy_from_slice(&[x as u32, y as u32]);
                    expected[4..].fill_with(|| draw.below(samples));
                    source = [2 * size as usize; 2];
                    mosaics += 1;
                }
                assert_eq!(recipe[..7], expected, "picture {output}");

                let source = (source[0], source[1]);
                let warp = Warp::draw(&mut stream(Use::Affine), &options, source, size as usize);
                let floats = |range: std::ops::Range<usize>| -> Vec<f64> {
                    let words = recipe[range].iter();
                    words.map(|&word| f64::from(f32::from_bits(word))).collect()
                };
                agree("map", &floats(7..16), warp.matrix.0.as_flattened(), 1e-6);
                agree("scale", &floats(16..17), &[warp.scale], 1e-6);
                let mut draw = stream(Use::Colour);
                let strengths = [options.hsv_h, options.hsv_s, options.hsv_v];
                let changes = strengths.map(|strength| draw.between(-1.0, 1.0) * strength);
                agree("colours", &floats(17..20), &changes, 1e-6);
                let mut draw = stream(Use::Flip);
                let chances = [options.flipud, options.fliplr, options.bgr];
                let flags = chances.map(|chance| u32::from(draw.chance(chance)));
                assert_eq!(recipe[20], flags[0] | flags[1] << 1 | flags[2] << 2);
            }
            assert!((20..65).contains(&mosaics), "{mosaics}");
        }
    });
}

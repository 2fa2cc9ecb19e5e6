//! The mean over all pixels of an image, channel by channel.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, images and channels split over threads"
)]

use crate::conv2d::Write;
use crate::elementwise::{row, row_mut};
use crate::parallel::Threads;
use crate::view::{CHANNEL_BLOCK, Extent, View};

/// Writes one pixel per image; `extent` is the input's. Sums are made in double precision, pixel by pixel.
pub fn forward(threads: &Threads, extent: Extent, input: View<'_>, output: View<'_>) {
    let pixels = extent.height * extent.width;
    let blocks = extent.channels / CHANNEL_BLOCK;
    let input = input.raw(extent.pixels(), extent.channels);
    let output = output.raw(extent.batch, extent.channels);
    threads.run(extent.batch * blocks, |chunk| {
        let (image, channel) = (chunk / blocks, chunk % blocks * CHANNEL_BLOCK);
        let mut sums = [0.0f64; CHANNEL_BLOCK];
        for pixel in image * pixels..(image + 1) * pixels {
            // SAFETY: the extent is checked; nobody writes the input meanwhile.
            let values = unsafe { row(input, pixel, extent.channels) };
            for (sum, &value) in sums.iter_mut().zip(&values[channel..]) {
                *sum += f64::from(value);
            }
        }
        // SAFETY: the extent is checked; these channels of this image are this chunk's alone.
        let target = unsafe {
            let start = output.pixel(image).add(channel);
            std::slice::from_raw_parts_mut(start, CHANNEL_BLOCK)
        };
        for (target, sum) in target.iter_mut().zip(sums) {
            *target = (sum / pixels as f64) as f32;
        }
    });
}

/// Spreads the gradient of each mean over its pixels.
pub fn backward(
    threads: &Threads,
    extent: Extent,
    gradient: View<'_>,
    input_gradient: View<'_>,
    write: Write,
) {
    let channels = extent.channels;
    let pixels = extent.height * extent.width;
    let share = 1.0 / pixels as f32;
    let gradient = gradient.raw(extent.batch, channels);
    let input_gradient = input_gradient.raw(extent.pixels(), channels);
    threads.run(extent.batch * extent.height, |line| {
        for x in 0..extent.width {
            // SAFETY: the extents are checked; the row of the target is this line's alone.
            let (source, target) = unsafe {
                (
                    row(gradient, line / extent.height, channels),
                    row_mut(input_gradient, line * extent.width + x, channels),
                )
            };
            for (target, source) in target.iter_mut().zip(source) {
                match write {
                    Write::Overwrite => *target = source * share,
                    Write::Accumulate => *target += source * share,
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::as_cells;

    #[test]
    fn means_go_forward_and_equal_shares_back() {
        let extent = Extent {
            batch: 2,
            height: 3,
            width: 5,
            channels: 32,
        };
        let mut values: Vec<f32> = (0..extent.elements()).map(|i| (i % 97) as f32).collect();
        let mut expected = vec![0.0f32; 2 * 32];
        for (index, value) in values.iter().enumerate() {
            expected[index / (15 * 32) * 32 + index % 32] += value / 15.0;
        }
        let mut means = vec![f32::NAN; 2 * 32];
        let mut back = vec![1.0; extent.elements()];
        let threads = Threads::new(2).unwrap();
        forward(
            &threads,
            extent,
            View::dense(as_cells(&mut values), 32),
            View::dense(as_cells(&mut means), 32),
        );
        for (mean, expected) in means.iter().zip(&expected) {
            assert!((mean - expected).abs() < 1e-4, "{mean} and {expected}");
        }
        backward(
            &threads,
            extent,
            View::dense(as_cells(&mut means), 32),
            View::dense(as_cells(&mut back), 32),
            Write::Accumulate,
        );
        let spread = (0..back.len()).map(|i| 1.0 + means[i / (15 * 32) * 32 + i % 32] / 15.0);
        for (value, expected) in back.iter().zip(spread) {
            assert!((value - expected).abs() < 1e-5, "{value} and {expected}");
        }
    }
}

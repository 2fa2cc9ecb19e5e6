//! Max-pooling over a square window, stride 1, half the window as padding. The place of each maximum is not
//! kept: the backward pass finds it again, the first of equals in reading order.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, rows and channels split over threads"
)]

pub mod cuda;

use std::ops::Range;

use crate::parallel::Threads;
use crate::simd::pointer::{load, store};
use crate::simd::{BLOCK, Kernel, Level, Simd};
use crate::view::Extent;
use crate::view::{RawView, View};

/// The largest window.
const WINDOW_MAX: usize = 15;

fn window_range(centre: usize, window: usize, side: usize) -> Range<usize> {
    let half = window / 2;
    centre.saturating_sub(half)..(centre + half + 1).min(side)
}

struct Forward {
    extent: Extent,
    window: usize,
    input: RawView,
    output: RawView,
    /// Row of the batch.
    line: usize,
}

impl Kernel for Forward {
    type Output = ();

    /// First the maxima of columns, kept for one window, then of those.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Extent {
            height,
            width,
            channels,
            ..
        } = self.extent;
        let half = self.window / 2;
        let (image, y) = (self.line / height, self.line % height);
        let rows = window_range(y, self.window, height);
        for channel in (0..channels).step_by(BLOCK) {
            let column = |x: usize| {
                let mut best = simd.splat(f32::NEG_INFINITY);
                for row in rows.clone() {
                    let pixel = (image * height + row) * width + x;
                    // SAFETY: the caller has checked the extents.
                    let value = unsafe { load(simd, self.input.pixel(pixel).add(channel)) };
                    best = simd.max(value, best);
                }
                best
            };
            let mut columns = [simd.splat(f32::NEG_INFINITY); WINDOW_MAX];
            for x in 0..half.min(width) {
                columns[x % self.window] = column(x);
            }
            for x in 0..width {
                // The ring forgets the column that left the window for the one that enters.
                columns[(x + half) % self.window] = match x + half < width {
                    true => column(x + half),
                    false => simd.splat(f32::NEG_INFINITY),
                };
                let mut best = columns[0];
                for &value in &columns[1..self.window] {
                    best = simd.max(value, best);
                }
                // SAFETY: the extents are checked; the line is this call's alone.
                unsafe {
                    let pixel = self.line * width + x;
                    store(simd, best, self.output.pixel(pixel).add(channel));
                }
            }
        }
    }
}

/// Takes the maxima.
pub fn forward(
    threads: &Threads,
    extent: Extent,
    window: usize,
    input: View<'_>,
    output: View<'_>,
) {
    assert!(
        window % 2 == 1 && window <= WINDOW_MAX,
        "invariant: windows are odd and small"
    );
    let size = (extent.pixels(), extent.channels);
    assert!(
        input.is_disjoint(size, &output, size),
        "invariant: a pool does not overwrite its input"
    );
    let input = input.raw(size.0, size.1);
    let output = output.raw(size.0, size.1);
    let level = Level::best();
    threads.run(extent.batch * extent.height, |line| {
        level.dispatch(Forward {
            extent,
            window,
            input,
            output,
            line,
        });
    });
}

/// The operands of the backward pass.
#[derive(Debug, Clone, Copy)]
pub struct Backward<'a> {
    pub input: View<'a>,
    pub output: View<'a>,
    pub gradient: View<'a>,
    /// Added to.
    pub input_gradient: View<'a>,
}

/// Adds each output's gradient to where its maximum was.
pub fn backward(threads: &Threads, extent: Extent, window: usize, pass: Backward<'_>) {
    let size = (extent.pixels(), extent.channels);
    assert!(
        pass.gradient.is_disjoint(size, &pass.input_gradient, size),
        "invariant: a pool does not overwrite its output's gradient"
    );
    let [input, output, gradient, input_gradient] =
        [pass.input, pass.output, pass.gradient, pass.input_gradient]
            .map(|view| view.raw(size.0, size.1));
    let blocks = extent.channels / BLOCK;
    let level = Level::best();
    // Windows overlap, so an image's channel block is one piece of work.
    threads.run(extent.batch * blocks, |chunk| {
        level.dispatch(ImageBlock {
            extent,
            window,
            input,
            output,
            gradient,
            input_gradient,
            image: chunk / blocks,
            channel: chunk % blocks * BLOCK,
        });
    });
}

/// The backward pass of one image and sixteen channels.
struct ImageBlock {
    extent: Extent,
    window: usize,
    input: RawView,
    output: RawView,
    gradient: RawView,
    input_gradient: RawView,
    image: usize,
    channel: usize,
}

impl Kernel for ImageBlock {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (extent, channel) = (self.extent, self.channel);
        let first = self.image * extent.height;
        for y in 0..extent.height {
            for x in 0..extent.width {
                let pixel = (first + y) * extent.width + x;
                // SAFETY: the extents are checked; the image's block is this chunk's alone.
                unsafe {
                    let maximum = load(simd, self.output.pixel(pixel).add(channel));
                    // What is left to hand on: each gradient goes to the first of equal maxima.
                    let mut gradient = load(simd, self.gradient.pixel(pixel).add(channel));
                    for row in window_range(y, self.window, extent.height) {
                        for column in window_range(x, self.window, extent.width) {
                            let at = (first + row) * extent.width + column;
                            let value = load(simd, self.input.pixel(at).add(channel));
                            let target = self.input_gradient.pixel(at).add(channel);
                            let share = simd.where_equal(value, maximum, gradient);
                            gradient = simd.sub(gradient, share);
                            store(simd, simd.add(load(simd, target), share), target);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::as_cells;

    const EXTENT: Extent = Extent {
        batch: 2,
        height: 7,
        width: 4,
        channels: 32,
    };

    fn values(step: usize) -> Vec<f32> {
        // Few distinct values, so that there are ties.
        (0..EXTENT.elements())
            .map(|i| ((i * step) % 23) as f32 - 11.0)
            .collect()
    }

    fn plain(input: &[f32], pixel: usize, channel: usize, window: usize) -> (f32, usize) {
        let (line, x) = (pixel / EXTENT.width, pixel % EXTENT.width);
        let (image, y) = (line / EXTENT.height, line % EXTENT.height);
        let mut best = (f32::NEG_INFINITY, 0);
        for row in window_range(y, window, EXTENT.height) {
            for column in window_range(x, window, EXTENT.width) {
                let at = (image * EXTENT.height + row) * EXTENT.width + column;
                let value = input[at * EXTENT.channels + channel];
                if value > best.0 {
                    best = (value, at);
                }
            }
        }
        best
    }

    #[test]
    fn pools_and_their_gradients_agree_with_plain_loops() {
        for window in [3, 5] {
            let threads = Threads::new(2).unwrap();
            let [mut input, mut gradient] = [values(7919), values(104_729)];
            let mut output = vec![f32::NAN; EXTENT.elements()];
            let mut back = vec![0.5; EXTENT.elements()];
            let pass = Backward {
                input: View::dense(as_cells(&mut input), EXTENT.channels),
                output: View::dense(as_cells(&mut output), EXTENT.channels),
                gradient: View::dense(as_cells(&mut gradient), EXTENT.channels),
                input_gradient: View::dense(as_cells(&mut back), EXTENT.channels),
            };
            forward(&threads, EXTENT, window, pass.input, pass.output);
            backward(&threads, EXTENT, window, pass);

            let mut expected = vec![0.5; EXTENT.elements()];
            for pixel in 0..EXTENT.pixels() {
                for channel in 0..EXTENT.channels {
                    let index = pixel * EXTENT.channels + channel;
                    let (maximum, place) = plain(&input, pixel, channel, window);
                    assert_eq!(output[index], maximum);
                    expected[place * EXTENT.channels + channel] += gradient[index];
                }
            }
            assert_eq!(back, expected);
        }
    }
}

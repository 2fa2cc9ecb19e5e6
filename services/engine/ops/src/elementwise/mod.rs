//! Copies, sums and zeroes of views.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, pixels split over threads"
)]

pub mod cuda;

use crate::conv2d::Write;
use crate::parallel::Threads;
use crate::view::{RawView, View};

/// Floats a thread works on at a time.
const CHUNK_LEN: usize = 16 * 1024;

/// Calls `work` with the pixels of each chunk.
pub(super) fn for_pixels(
    threads: &Threads,
    pixels: usize,
    channels: usize,
    work: impl Fn(std::ops::Range<usize>) + Sync,
) {
    let length = (CHUNK_LEN / channels).max(1);
    threads.run(pixels.div_ceil(length), |chunk| {
        work(chunk * length..((chunk + 1) * length).min(pixels));
    });
}

/// Reads the channels of a pixel.
///
/// # Safety
/// The pixel lies in the view, and nobody writes these channels meanwhile.
pub(super) unsafe fn row<'a>(view: RawView, pixel: usize, channels: usize) -> &'a [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(view.pixel(pixel), channels) }
}

/// Writes the channels of a pixel.
///
/// # Safety
/// The pixel lies in the view, and nobody else uses these channels meanwhile.
pub(super) unsafe fn row_mut<'a>(view: RawView, pixel: usize, channels: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(view.pixel(pixel), channels) }
}

/// Copies a tensor or adds it.
pub fn copy(
    threads: &Threads,
    (pixels, channels): (usize, usize),
    input: View<'_>,
    output: View<'_>,
    write: Write,
) {
    check_disjoint((pixels, channels), &[input], output);
    let (input, output) = (input.raw(pixels, channels), output.raw(pixels, channels));
    for_pixels(threads, pixels, channels, |range| {
        for pixel in range {
            // SAFETY: the extents are checked, the views are disjoint, the pixel is this chunk's alone.
            let (source, target) = unsafe {
                (
                    row(input, pixel, channels),
                    row_mut(output, pixel, channels),
                )
            };
            match write {
                Write::Overwrite => target.copy_from_slice(source),
                Write::Accumulate => target.iter_mut().zip(source).for_each(|(t, s)| *t += s),
            }
        }
    });
}

/// Adds two tensors.
pub fn add(
    threads: &Threads,
    (pixels, channels): (usize, usize),
    [left, right]: [View<'_>; 2],
    output: View<'_>,
) {
    check_disjoint((pixels, channels), &[left, right], output);
    let [left, right, output] = [left, right, output].map(|view| view.raw(pixels, channels));
    for_pixels(threads, pixels, channels, |range| {
        for pixel in range {
            // SAFETY: the extents are checked, the views are disjoint, the pixel is this chunk's alone.
            let (a, b, target) = unsafe {
                (
                    row(left, pixel, channels),
                    row(right, pixel, channels),
                    row_mut(output, pixel, channels),
                )
            };
            for ((target, a), b) in target.iter_mut().zip(a).zip(b) {
                *target = a + b;
            }
        }
    });
}

/// Fills a tensor with zeroes.
pub fn zero(threads: &Threads, (pixels, channels): (usize, usize), output: View<'_>) {
    let output = output.raw(pixels, channels);
    for_pixels(threads, pixels, channels, |range| {
        for pixel in range {
            // SAFETY: the extent is checked and the pixel is this chunk's alone.
            unsafe { row_mut(output, pixel, channels) }.fill(0.0);
        }
    });
}

fn check_disjoint(extent: (usize, usize), inputs: &[View<'_>], output: View<'_>) {
    assert!(
        inputs
            .iter()
            .all(|input| input.is_disjoint(extent, &output, extent)),
        "invariant: an operation does not overwrite what it reads"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::as_cells;

    #[test]
    fn channel_ranges_of_one_buffer_are_copied_added_and_zeroed() {
        let threads = Threads::new(2).unwrap();
        let extent = (3000, 16);
        let mut values: Vec<f32> = (0..3000 * 48).map(|i| i as f32).collect();
        let buffer = View::dense(as_cells(&mut values), 48);
        let [first, second, third] = [0, 16, 32].map(|channel| buffer.from_channel(channel));
        add(&threads, extent, [first, second], third);
        copy(&threads, extent, third, first, Write::Accumulate);
        zero(&threads, extent, second);
        copy(&threads, extent, third, second, Write::Overwrite);
        for pixel in [0, 1777, 2999] {
            let value = |channel: usize| (pixel * 48 + channel) as f32;
            let sum = value(3) + value(19);
            assert_eq!(third.get(pixel, 3), sum);
            assert_eq!(first.get(pixel, 3), value(3) + sum);
            assert_eq!(second.get(pixel, 3), sum);
        }
    }
}

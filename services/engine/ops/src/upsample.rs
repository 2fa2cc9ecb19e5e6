//! Enlargement by two, nearest neighbour.
#![expect(
    unsafe_code,
    reason = "channel ranges of shared buffers, rows split over threads"
)]

use crate::conv2d::Write;
use crate::elementwise::{row, row_mut};
use crate::parallel::Threads;
use crate::view::Extent;
use crate::view::View;

/// Repeats every pixel of the input twice in each direction; `extent` is the input's.
pub fn forward(threads: &Threads, extent: Extent, input: View<'_>, output: View<'_>) {
    let Extent {
        width, channels, ..
    } = extent;
    let input = input.raw(extent.pixels(), channels);
    let output = output.raw(4 * extent.pixels(), channels);
    threads.run(extent.batch * extent.height, |line| {
        for x in 0..width {
            for target in corners(line, x, width) {
                // SAFETY: the extents are checked; the two rows of the output are this line's alone.
                unsafe {
                    row_mut(output, target, channels).copy_from_slice(row(
                        input,
                        line * width + x,
                        channels,
                    ));
                }
            }
        }
    });
}

/// Sums the gradients of the four pixels that a pixel became.
pub fn backward(
    threads: &Threads,
    extent: Extent,
    gradient: View<'_>,
    input_gradient: View<'_>,
    write: Write,
) {
    let Extent {
        width, channels, ..
    } = extent;
    let gradient = gradient.raw(4 * extent.pixels(), channels);
    let input_gradient = input_gradient.raw(extent.pixels(), channels);
    threads.run(extent.batch * extent.height, |line| {
        for x in 0..width {
            // SAFETY: the extents are checked; the row of the target is this line's alone.
            let (target, parts) = unsafe {
                (
                    row_mut(input_gradient, line * width + x, channels),
                    corners(line, x, width).map(|pixel| row(gradient, pixel, channels)),
                )
            };
            for (channel, target) in target.iter_mut().enumerate() {
                let sum = (parts[0][channel] + parts[1][channel])
                    + (parts[2][channel] + parts[3][channel]);
                match write {
                    Write::Overwrite => *target = sum,
                    Write::Accumulate => *target += sum,
                }
            }
        }
    });
}

/// Returns the four pixels of the output for column `x` of an input line (counted over the batch).
pub(super) fn corners(line: usize, x: usize, width: usize) -> [usize; 4] {
    let first = 2 * line * 2 * width + 2 * x;
    [first, first + 1, first + 2 * width, first + 2 * width + 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::as_cells;

    #[test]
    fn gradients_of_the_four_copies_are_summed() {
        let threads = Threads::new(2).unwrap();
        let extent = Extent {
            batch: 2,
            height: 3,
            width: 5,
            channels: 16,
        };
        let mut small: Vec<f32> = (0..extent.elements()).map(|i| i as f32).collect();
        let mut large = vec![f32::NAN; 4 * extent.elements()];
        let mut back = vec![1.0; extent.elements()];
        let small_view = View::dense(as_cells(&mut small), 16);
        let large_view = View::dense(as_cells(&mut large), 16);
        forward(&threads, extent, small_view, large_view);
        // Image 1, row 5, column 7 of the output is row 2, column 3 of the input.
        let pixel = (6 + 5) * 10 + 7;
        assert_eq!(large_view.get(pixel, 4), small_view.get((3 + 2) * 5 + 3, 4));
        backward(
            &threads,
            extent,
            large_view,
            View::dense(as_cells(&mut back), 16),
            Write::Accumulate,
        );
        assert!(back.iter().zip(&small).all(|(b, s)| *b == 4.0 * s + 1.0));
    }
}

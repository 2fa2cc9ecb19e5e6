//! Views: where a tensor lies in a buffer that it may share with others.
//!
//! A buffer is NHWC, `pixel_stride` floats a pixel. A view is a range of its channels, so a concatenation is
//! several views written by several operations, and a split is several views read from one buffer. Memory is
//! `Cell<f32>` because views of one buffer overlap in address though never in elements.

#![expect(
    unsafe_code,
    reason = "pointers that cross threads; who uses them owns disjoint elements"
)]

use std::cell::Cell;

/// The channels of every view are padded to a multiple of this, zero in the padding.
pub const CHANNEL_BLOCK: usize = 16;

/// The real channels of a tensor, as groups that are each padded to a multiple of [`CHANNEL_BLOCK`].
///
/// One group is the usual tensor. A concatenation of 8 + 8 + 8 channels has three groups and takes 48 floats
/// a pixel; the output of a convolution that is split into 8 and 8 has two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Channels {
    groups: Vec<usize>,
}

impl Channels {
    /// Describes one group of `count` channels.
    pub fn new(count: usize) -> Self {
        Self::groups(vec![count])
    }

    /// Describes groups that lie one after another, each padded.
    pub fn groups(groups: Vec<usize>) -> Self {
        assert!(
            !groups.is_empty() && groups.iter().all(|&count| count > 0),
            "invariant: channel groups are not empty"
        );
        Self { groups }
    }

    /// Returns the number of real channels.
    pub fn count(&self) -> usize {
        self.groups.iter().sum()
    }

    /// Returns the floats a pixel takes, padding included.
    pub fn padded(&self) -> usize {
        self.groups
            .iter()
            .map(|count| count.next_multiple_of(CHANNEL_BLOCK))
            .sum()
    }

    /// Returns the padded place of each real channel, in order.
    pub fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let mut start = 0;
        self.groups.iter().flat_map(move |&count| {
            let first = start;
            start += count.next_multiple_of(CHANNEL_BLOCK);
            first..first + count
        })
    }

    /// Spreads one value per real channel to its padded place; the padding becomes zero.
    pub fn spread(&self, values: &[f32], padded: &mut [f32]) {
        assert_eq!(values.len(), self.count(), "one value per real channel");
        padded[..self.padded()].fill(0.0);
        for (place, &value) in self.places().zip(values) {
            padded[place] = value;
        }
    }
}

/// A tensor's place in a buffer: pixel `p`, channel `c` is `cells[offset + p * pixel_stride + c]`.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub cells: &'a [Cell<f32>],
    pub offset: usize,
    pub pixel_stride: usize,
}

impl<'a> View<'a> {
    /// Views a whole dense buffer of `channels` floats a pixel.
    pub fn dense(cells: &'a [Cell<f32>], channels: usize) -> Self {
        Self {
            cells,
            offset: 0,
            pixel_stride: channels,
        }
    }

    /// Views the channels from `channel` on.
    pub fn from_channel(self, channel: usize) -> Self {
        Self {
            offset: self.offset + channel,
            ..self
        }
    }

    /// Reads one element.
    pub fn get(&self, pixel: usize, channel: usize) -> f32 {
        self.cells[self.offset + pixel * self.pixel_stride + channel].get()
    }

    /// Writes one element.
    pub fn set(&self, pixel: usize, channel: usize, value: f32) {
        self.cells[self.offset + pixel * self.pixel_stride + channel].set(value);
    }

    /// Panics unless `pixels` × `channels` elements fit.
    pub fn check(&self, pixels: usize, channels: usize) {
        assert!(
            pixels > 0 && channels > 0 && channels <= self.pixel_stride,
            "invariant: a view of {channels} channels fits its stride {}",
            self.pixel_stride
        );
        let end = self.offset + (pixels - 1) * self.pixel_stride + channels;
        assert!(
            end <= self.cells.len(),
            "invariant: a view ends at {end}, its buffer at {}",
            self.cells.len()
        );
    }

    /// Returns whether this view of `pixels` × `channels` shares no element with another view.
    pub fn is_disjoint(
        &self,
        (pixels, channels): (usize, usize),
        other: &View<'_>,
        (other_pixels, other_channels): (usize, usize),
    ) -> bool {
        let size = size_of::<f32>();
        let start = self.cells.as_ptr().addr() / size + self.offset;
        let end = start + (pixels - 1) * self.pixel_stride + channels;
        let other_start = other.cells.as_ptr().addr() / size + other.offset;
        let other_end = other_start + (other_pixels - 1) * other.pixel_stride + other_channels;
        if end <= other_start || other_end <= start {
            return true;
        }
        // Two channel ranges of the same buffer: compare their places within a pixel.
        let stride = self.pixel_stride;
        if stride != other.pixel_stride {
            return false;
        }
        let ahead = if other_start >= start {
            (other_start - start) % stride
        } else {
            (stride - (start - other_start) % stride) % stride
        };
        ahead >= channels && ahead + other_channels <= stride
    }
}

/// A view without its bounds, for the inside of an operation that has checked them.
#[derive(Debug, Clone, Copy)]
pub struct RawView {
    pub pointer: *mut f32,
    pub pixel_stride: usize,
}

// SAFETY: an operation checks its views, then gives each chunk of work elements that no other chunk writes; the
// caller's `&[Cell<f32>]`, which is not `Sync`, keeps every other thread away until the operation returns.
unsafe impl Send for RawView {}
// SAFETY: as for `Send`.
unsafe impl Sync for RawView {}

impl RawView {
    /// Returns where a pixel's channels start.
    ///
    /// # Safety
    /// The pixel lies in the view.
    #[inline(always)]
    pub unsafe fn pixel(self, pixel: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.pointer.add(pixel * self.pixel_stride) }
    }
}

impl View<'_> {
    /// Checks that `pixels` × `channels` fit, then drops the bounds.
    pub fn raw(&self, pixels: usize, channels: usize) -> RawView {
        self.check(pixels, channels);
        RawView {
            // SAFETY: `check` has seen that the offset lies in the cells; a `Cell<f32>` is laid out as its `f32`.
            pointer: unsafe { self.cells.as_ptr().add(self.offset) }
                .cast_mut()
                .cast(),
            pixel_stride: self.pixel_stride,
        }
    }
}

/// Reads plain floats as cells, to build views of them.
pub fn as_cells(values: &mut [f32]) -> &[Cell<f32>] {
    Cell::from_mut(values).as_slice_of_cells()
}

/// The size of a tensor, channels padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub channels: usize,
}

impl Extent {
    /// Returns the pixels of the whole batch.
    pub fn pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    /// Returns the floats, padding included.
    pub fn elements(&self) -> usize {
        self.pixels() * self.channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_padded_one_by_one() {
        let channels = Channels::groups(vec![8, 8, 24]);
        assert_eq!(channels.count(), 40);
        assert_eq!(channels.padded(), 64);
        let places: Vec<usize> = channels.places().collect();
        assert_eq!(places[7..10], [7, 16, 17]);
        assert_eq!(places[39], 55);
    }

    #[test]
    fn channel_ranges_of_one_buffer_are_disjoint_unless_they_meet() {
        let mut values = vec![0.0; 48 * 10];
        let buffer = View::dense(as_cells(&mut values), 48);
        let (first, second) = (buffer, buffer.from_channel(16));
        assert!(first.is_disjoint((10, 16), &second, (10, 32)));
        assert!(second.is_disjoint((10, 32), &first, (10, 16)));
        assert!(!first.is_disjoint((10, 17), &second, (10, 32)));
        assert!(!second.is_disjoint((10, 32), &buffer.from_channel(32), (10, 16)));
    }
}

//! The ground truth of one batch, for every task.

/// The ground truth of one batch: row `i` says that image `image[i]` shows a `class[i]` in `boxes[i]`.
///
/// What a task needs beside boxes is filled for that task only: `angles`, `keypoints` and `masks` have an entry for
/// every row or none at all; classification has `labels` and no rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Targets {
    /// Which image of the batch, from 0. The rows may come in any order.
    pub image: Vec<u32>,
    /// The class, from 0.
    pub class: Vec<u32>,
    /// Centre x, centre y, width, height as fractions of the image.
    pub boxes: Vec<[f32; 4]>,
    /// Images in the batch, with and without boxes.
    pub batch: usize,
    /// How far each box is turned, in radians; width and height are those of the box in its own frame.
    pub angles: Vec<f32>,
    /// For each row its keypoints: x and y as fractions of the image, and the visibility, 0 for none.
    pub keypoints: Vec<[f32; 3]>,
    /// Which instance is where.
    pub masks: Option<InstanceMaps>,
    /// The class of each whole image.
    pub labels: Vec<u32>,
}

/// A map of instances for each image at a quarter of its sides: 0 is the background, `k` the `k`-th of the image's
/// rows, counted from 1 in the order of the targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceMaps {
    pub height: usize,
    pub width: usize,
    /// `[batch][height][width]`.
    pub values: Vec<u16>,
}

impl InstanceMaps {
    /// The most instances of one image that a map tells apart.
    pub const INSTANCES_MAX: usize = u16::MAX as usize;

    /// Returns the map of one image.
    pub fn image(&self, index: usize) -> &[u16] {
        let size = self.height * self.width;
        &self.values[index * size..][..size]
    }
}

impl Targets {
    /// Returns the targets of `batch` images without any box.
    pub fn empty(batch: usize) -> Self {
        Self {
            batch,
            ..Self::default()
        }
    }

    /// Returns the targets of a batch of whole images.
    pub fn labelled(labels: Vec<u32>) -> Self {
        Self {
            batch: labels.len(),
            labels,
            ..Self::default()
        }
    }

    /// Adds one box.
    pub fn push(&mut self, image: u32, class: u32, bounds: [f32; 4]) {
        self.image.push(image);
        self.class.push(class);
        self.boxes.push(bounds);
    }

    /// Adds one box that is turned by an angle in radians.
    pub fn push_turned(&mut self, image: u32, class: u32, bounds: [f32; 4], angle: f32) {
        self.push(image, class, bounds);
        self.angles.push(angle);
    }

    /// Adds one box with its keypoints.
    pub fn push_posed(
        &mut self,
        image: u32,
        class: u32,
        bounds: [f32; 4],
        keypoints: impl IntoIterator<Item = [f32; 3]>,
    ) {
        self.push(image, class, bounds);
        self.keypoints.extend(keypoints);
    }

    /// Returns the number of boxes in the batch.
    pub fn len(&self) -> usize {
        self.boxes.len()
    }

    /// Returns whether no image has a box.
    pub fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// Returns the keypoints of a row, of which there are `count`.
    pub fn keypoints_of(&self, row: usize, count: usize) -> &[[f32; 3]] {
        &self.keypoints[row * count..][..count]
    }
}

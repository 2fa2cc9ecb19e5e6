//! The last changes of a picture: colours, mirrors and the order of channels.

use super::{Augmentation, Scene};
use crate::data::KeypointLayout;
use crate::data::colour::{self, Jitter};
use crate::random::{Philox, Use};

/// Changes colours and flips, drawn for (seed, epoch, sample). Objects with keypoints are mirrored only where
/// `keypoints` says which become which.
pub fn recolour_and_flip(
    scene: &mut Scene,
    options: &Augmentation,
    seed: u64,
    epoch: u32,
    sample: u32,
    keypoints: Option<&KeypointLayout>,
) {
    let mut stream = Philox::new(seed, epoch, sample, Use::Colour);
    let by = Jitter {
        hue: stream.between(-1.0, 1.0) * options.hsv_h,
        saturation: stream.between(-1.0, 1.0) * options.hsv_s,
        value: stream.between(-1.0, 1.0) * options.hsv_v,
    };
    if by.hue != 0.0 || by.saturation != 0.0 || by.value != 0.0 {
        colour::jitter(&mut scene.picture, by);
    }
    let mut stream = Philox::new(seed, epoch, sample, Use::Flip);
    let flip = keypoints.and_then(|layout| layout.flip.as_deref());
    let may_flip = keypoints.is_none() || flip.is_some();
    // Drawn in any case, so that what follows doesn't depend on the data set.
    let (is_upset, is_mirrored) = (stream.chance(options.flipud), stream.chance(options.fliplr));
    if is_upset && may_flip {
        let height = scene.picture.height() as f32;
        scene.picture.flip_vertical();
        for object in &mut scene.objects {
            object.mirror(1, height, flip);
        }
    }
    if is_mirrored && may_flip {
        let width = scene.picture.width() as f32;
        scene.picture.flip_horizontal();
        for object in &mut scene.objects {
            object.mirror(0, width, flip);
        }
    }
    if stream.chance(options.bgr) {
        for pixel in scene.picture.pixels_mut().as_chunks_mut::<3>().0 {
            pixel.swap(0, 2);
        }
    }
}

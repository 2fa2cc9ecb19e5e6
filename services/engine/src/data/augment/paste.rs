//! Copy-paste: mirrored copies of outlined objects where they hide nothing (Ghiasi et al. 2021, "Simple Copy-Paste").

use super::{Object, Scene, polygon, shared_area};

/// A copy may share less than this part of its own box with any box that is there.
const OVERLAP_MAX: f32 = 0.3;

/// Mirrors the scene and pastes the share `share` of those mirrored objects that overlap little with what is there,
/// the least overlapping first.
pub fn copy_paste(scene: &mut Scene, share: f64) {
    if share == 0.0 {
        return;
    }
    let size = (scene.picture.width(), scene.picture.height());
    let mut candidates: Vec<(f32, Object)> = Vec::new();
    for object in scene
        .objects
        .iter()
        .filter(|object| !object.polygon.is_empty())
    {
        let mut copy = object.clone();
        copy.mirror(0, size.0 as f32, None);
        let own = copy.area();
        let overlap = scene
            .objects
            .iter()
            .map(|other| shared_area(&copy.corners, &other.corners) / own)
            .fold(0.0, f32::max);
        if overlap < OVERLAP_MAX {
            candidates.push((overlap, copy));
        }
    }
    // A stable sort: equal ones stay in the objects' order.
    candidates.sort_by(|a, b| a.0.total_cmp(&b.0));
    let count = (share * candidates.len() as f64).round_ties_even() as usize;
    if count == 0 {
        return;
    }
    let original = scene.picture.clone();
    for (_, copy) in candidates.into_iter().take(count) {
        polygon::fill(&copy.polygon, size, |row, start, end| {
            let target = row * size.0 * 3;
            for column in start..end {
                let pixel = original.at(size.0 - 1 - column, row);
                scene.picture.pixels_mut()[target + column * 3..][..3].copy_from_slice(&pixel);
            }
        });
        scene.objects.push(copy);
    }
}

//! What augmentation promises: objects move with their pixels, and nothing is drawn that the options forbid.

use super::*;
use crate::data::KeypointLayout;
use crate::data::picture::{Matrix, PADDING};
use crate::models::KeypointShape;
use crate::random::{Philox, Use};

fn stream() -> Philox {
    Philox::new(1, 2, 3, Use::Test)
}

#[test]
fn mosaic_parts_touch_the_centre_and_boxes_follow() {
    let colours = [[10, 0, 0], [0, 20, 0], [0, 0, 30], [40, 40, 0]];
    let pictures = colours.map(|colour| Picture::filled(32, 24, colour));
    let whole = [Label::boxed(1, [0.5, 0.5, 1.0, 1.0])];
    let parts = std::array::from_fn(|index| (&pictures[index], &whole[..]));
    let scene = mosaic(parts, (20, 40), 32);
    let picture = &scene.picture;
    assert_eq!((picture.width(), picture.height()), (64, 64));
    assert_eq!(picture.at(19, 39), colours[0]);
    assert_eq!(picture.at(20, 39), colours[1]);
    assert_eq!(picture.at(19, 40), colours[2]);
    assert_eq!(picture.at(20, 40), colours[3]);
    assert_eq!(
        picture.at(0, 15),
        [PADDING; 3],
        "24 rows above the centre are covered"
    );
    assert_eq!(picture.at(0, 16), colours[0]);
    assert_eq!(picture.at(52, 20), [PADDING; 3]);
    let corners: Vec<_> = scene.objects.iter().map(|object| object.corners).collect();
    assert_eq!(
        corners,
        [
            [0.0, 16.0, 20.0, 40.0],
            [20.0, 16.0, 52.0, 40.0],
            [0.0, 40.0, 20.0, 64.0],
            [20.0, 40.0, 52.0, 64.0]
        ]
    );
}

#[test]
fn a_mosaic_drops_what_the_canvas_cuts_off_wholly() {
    let picture = Picture::filled(32, 32, [1; 3]);
    let left_edge = [Label::boxed(0, [0.1, 0.5, 0.2, 0.5])];
    let none: [Label; 0] = [];
    let scene = mosaic(
        [
            (&picture, &left_edge),
            (&picture, &none),
            (&picture, &none),
            (&picture, &none),
        ],
        (16, 32),
        32,
    );
    assert!(scene.objects.is_empty());
}

#[test]
fn a_warp_without_freedom_centres_the_picture() {
    let warp = Warp::draw(&mut stream(), &Augmentation::NONE, (32, 16), 32);
    let scene = Scene::new(
        Picture::filled(32, 16, [9; 3]),
        &[Label::boxed(0, [0.5, 0.5, 1.0, 0.5])],
    );
    let out = warp.apply(&scene, 32);
    assert_eq!(out.picture.at(5, 8), [9; 3]);
    assert_eq!(out.picture.at(5, 7), [PADDING; 3]);
    assert_eq!(out.objects[0].corners, [0.0, 12.0, 32.0, 20.0]);
    assert_eq!(out.objects[0].bounds((32, 32)), [0.5, 0.5, 1.0, 0.25]);
}

#[test]
fn boxes_move_with_the_pixels() {
    // A white square on black: after any warp its box must hold the white pixels and little more.
    let options = Augmentation {
        degrees: 30.0,
        shear: 10.0,
        perspective: 0.0005,
        ..Augmentation::default()
    };
    for sample in 0..20 {
        let mut picture = Picture::filled(96, 96, [0; 3]);
        picture.paste(
            &Picture::filled(24, 24, [255; 3]),
            (0, 0),
            (24, 24),
            (36, 36),
        );
        let scene = Scene::new(picture, &[Label::boxed(0, [0.5, 0.5, 0.25, 0.25])]);
        let mut stream = Philox::new(5, 0, sample, Use::Affine);
        let warp = Warp::draw(&mut stream, &options, (96, 96), 96);
        let mut out = warp.apply(&scene, 96);
        recolour_and_flip(
            &mut out,
            &Augmentation {
                flipud: 0.5,
                ..Augmentation::NONE
            },
            5,
            0,
            sample,
            None,
        );
        let Some(object) = out.objects.first() else {
            continue;
        };
        let mut seen = [f32::MAX, f32::MAX, f32::MIN, f32::MIN];
        for y in 0..96 {
            for x in 0..96 {
                let pixel = out.picture.at(x, y);
                if pixel[0] > 180 {
                    let (x, y) = (x as f32, y as f32);
                    seen = [
                        seen[0].min(x),
                        seen[1].min(y),
                        seen[2].max(x + 1.0),
                        seen[3].max(y + 1.0),
                    ];
                }
            }
        }
        for (wanted, seen) in object.corners.iter().zip(seen) {
            assert!(
                (wanted - seen).abs() < 4.0,
                "sample {sample}: {:?} {seen:?}",
                object.corners
            );
        }
    }
}

#[test]
fn objects_of_which_little_is_left_are_dropped() {
    let keep = |corners: [f32; 4]| {
        let object = Object {
            class: 0,
            corners,
            ..Object::default()
        };
        let warp = Warp {
            matrix: Matrix::IDENTITY,
            scale: 1.0,
        };
        warp.map(&object, 100).is_some()
    };
    assert!(keep([10.0, 10.0, 13.0, 13.0]));
    assert!(!keep([10.0, 10.0, 12.0, 30.0]), "two pixels wide");
    assert!(!keep([-91.0, 10.0, 9.0, 30.0]), "nine per cent left");
    assert!(keep([-89.0, 10.0, 11.0, 30.0]));
    assert!(!keep([100.0, 10.0, 120.0, 30.0]));
}

#[test]
fn a_polygon_gives_a_tighter_box_than_its_corners() {
    let diamond = Label {
        class: 0,
        bounds: [0.5, 0.5, 0.5, 0.5],
        polygon: vec![[0.5, 0.25], [0.75, 0.5], [0.5, 0.75], [0.25, 0.5]],
        keypoints: Vec::new(),
    };
    let scene = Scene::new(Picture::filled(100, 100, [0; 3]), &[diamond]);
    let angle = std::f64::consts::FRAC_PI_4;
    let (sine, cosine) = angle.sin_cos();
    let turn = Matrix::translation(50.0, 50.0)
        .after(&Matrix([
            [cosine, sine, 0.0],
            [-sine, cosine, 0.0],
            [0.0, 0.0, 1.0],
        ]))
        .after(&Matrix::translation(-50.0, -50.0));
    let out = Warp {
        matrix: turn,
        scale: 1.0,
    }
    .apply(&scene, 100);
    let [left, top, right, bottom] = out.objects[0].corners;
    let wanted = 50.0 / f32::sqrt(2.0);
    assert!((right - left - wanted).abs() < 1e-3 && (bottom - top - wanted).abs() < 1e-3);
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let options = Augmentation {
        fliplr: 1.5,
        ..Augmentation::default()
    };
    assert_eq!(
        options.check().unwrap_err().to_string(),
        "fliplr: 1.5 is not between 0 and 1"
    );
    assert!(Augmentation::default().check().is_ok());
}

/// Pictures whose pixels all differ, with objects of all kinds.
fn full_scene() -> Scene {
    let pixels = (0..64 * 48)
        .flat_map(|index| {
            [
                (index % 64) as u8 * 3,
                (index / 64) as u8 * 5,
                (index % 251) as u8,
            ]
        })
        .collect();
    let label = Label {
        class: 1,
        bounds: [0.25, 0.5, 0.25, 0.5],
        polygon: vec![[0.125, 0.25], [0.375, 0.25], [0.375, 0.75]],
        keypoints: vec![[0.25, 0.5, 2.0], [0.125, 0.25, 1.0], [0.375, 0.75, 0.0]],
    };
    let plain = Label::boxed(0, [0.75, 0.25, 0.25, 0.25]);
    Scene::new(Picture::new(64, 48, pixels), &[label, plain])
}

fn layout(flip: Option<Vec<usize>>) -> KeypointLayout {
    KeypointLayout {
        flip,
        ..KeypointLayout::new(KeypointShape { count: 3, dims: 3 })
    }
}

#[test]
fn a_mirrored_scene_mirrored_again_is_itself() {
    let layout = layout(Some(vec![0, 2, 1]));
    for (flipud, fliplr) in [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
        let options = Augmentation {
            flipud,
            fliplr,
            ..Augmentation::NONE
        };
        let mut scene = full_scene();
        scene.objects.truncate(1);
        let original = scene.clone();
        recolour_and_flip(&mut scene, &options, 0, 0, 0, Some(&layout));
        assert_ne!(scene, original);
        recolour_and_flip(&mut scene, &options, 0, 0, 0, Some(&layout));
        assert_eq!(scene, original);
    }
}

#[test]
fn a_mirror_exchanges_left_and_right_keypoints_and_is_forbidden_without_the_pairs() {
    let options = Augmentation {
        fliplr: 1.0,
        ..Augmentation::NONE
    };
    let mut scene = full_scene();
    scene.objects.truncate(1);
    let layout = |flip| Some(layout(flip));
    recolour_and_flip(
        &mut scene,
        &options,
        0,
        0,
        0,
        layout(Some(vec![0, 2, 1])).as_ref(),
    );
    let object = &scene.objects[0];
    assert_eq!(object.corners, [40.0, 12.0, 56.0, 36.0]);
    assert_eq!(object.polygon[0], [56.0, 12.0]);
    let points = [[48.0, 24.0, 2.0], [40.0, 36.0, 0.0], [56.0, 12.0, 1.0]];
    assert_eq!(object.keypoints, points);
    let mut scene = full_scene();
    recolour_and_flip(&mut scene, &options, 0, 0, 0, layout(None).as_ref());
    assert_eq!(scene, full_scene());
}

#[test]
fn keypoints_that_leave_the_picture_are_not_visible() {
    let warp = Warp {
        matrix: Matrix::translation(-12.0, 0.0),
        scale: 1.0,
    };
    let object = &warp.apply(&full_scene(), 64).objects[0];
    let points = [[4.0, 24.0, 2.0], [-4.0, 12.0, 0.0], [12.0, 36.0, 0.0]];
    assert_eq!(object.keypoints, points);
    assert_eq!(
        object.corners,
        [0.0, 12.0, 12.0, 36.0],
        "the box of what is left of the outline"
    );
}

#[test]
fn copies_are_mirrored_and_hide_little() {
    let mut scene = full_scene();
    let before = scene.clone();
    copy_paste(&mut scene, 1.0);
    // The only outlined object lands on free ground at the right, below the other.
    assert_eq!(scene.objects.len(), 3);
    let copy = &scene.objects[2];
    assert_eq!(copy.corners, [40.0, 12.0, 56.0, 36.0]);
    let mut changed = 0;
    polygon::fill(&copy.polygon, (64, 48), |row, start, end| {
        for column in start..end {
            assert_eq!(
                scene.picture.at(column, row),
                before.picture.at(63 - column, row)
            );
            changed += 1;
        }
    });
    let different = (0..64 * 48)
        .filter(|index| {
            let (x, y) = (index % 64, index / 64);
            scene.picture.at(x, y) != before.picture.at(x, y)
        })
        .count();
    assert!(
        different <= changed && changed > 100,
        "{different} of {changed}"
    );
    let mut crowded = before.clone();
    crowded.objects[1].corners = [40.0, 12.0, 56.0, 36.0];
    copy_paste(&mut crowded, 1.0);
    assert_eq!(crowded.objects.len(), 2);
    let mut none = before.clone();
    copy_paste(&mut none, 0.0);
    assert_eq!(none, before);
}

#[test]
fn a_blend_lies_between_both_pictures_and_has_the_objects_of_both() {
    let mut scene = full_scene();
    let mut other = full_scene();
    other.picture = Picture::filled(64, 48, [255, 0, 128]);
    mixup(&mut scene, other, &mut stream());
    assert_eq!(scene.objects.len(), 4);
    for (index, pixel) in scene.picture.pixels().as_chunks::<3>().0.iter().enumerate() {
        let own = full_scene().picture.at(index % 64, index / 64);
        assert!(pixel[0] >= own[0] && pixel[1] <= own[1]);
        if index > 200 {
            break;
        }
    }
    let mut same = full_scene();
    mixup(&mut same, full_scene(), &mut stream());
    let pairs = same
        .picture
        .pixels()
        .iter()
        .zip(full_scene().picture.into_pixels());
    assert!(pairs.into_iter().all(|(&a, b)| a.abs_diff(b) <= 1));
}

#[test]
fn a_cut_never_covers_an_object_and_brings_those_inside_it() {
    let (mut cut, mut brought) = (0, 0);
    for sample in 0..200 {
        let mut scene = full_scene();
        let other = Scene::new(
            Picture::filled(64, 48, [255, 0, 128]),
            &[Label::boxed(2, [0.5, 0.5, 0.5, 0.5])],
        );
        cutmix(&mut scene, &other, &mut Philox::new(1, 0, sample, Use::Cut));
        let original = full_scene();
        assert_eq!(scene.objects[..2], original.objects[..]);
        let is_foreign = |x: usize, y: usize| scene.picture.at(x, y) == [255, 0, 128];
        for object in &original.objects {
            let [left, top, right, bottom] = object.corners.map(|edge| edge as usize);
            assert!((left..right).all(|x| (top..bottom).all(|y| !is_foreign(x, y))));
        }
        cut += usize::from(scene.picture != original.picture);
        for object in &scene.objects[2..] {
            let [left, top, right, bottom] = object.corners.map(|edge| edge as usize);
            assert!(is_foreign(left, top) && is_foreign(right - 1, bottom - 1));
            brought += 1;
        }
    }
    assert!(cut > 20 && brought > 5, "{cut} cuts with {brought} objects");
}

#[test]
fn the_last_epochs_show_whole_pictures() {
    let all = Augmentation {
        mixup: 0.5,
        cutmix: 0.5,
        copy_paste: 0.5,
        ..Augmentation::default()
    };
    let closed = all.closed();
    assert_eq!(
        [
            closed.mosaic,
            closed.mixup,
            closed.cutmix,
            closed.copy_paste
        ],
        [0.0; 4]
    );
    assert_eq!((closed.scale, closed.fliplr), (all.scale, all.fliplr));
}

//! YOLO11: the table of its rows.

use super::blocks::Inner;
use super::family::{Row, Table};

/// A C3k2 of half the width, repeated twice.
pub(super) const fn c3k2(channels: usize, inner: Inner) -> Row {
    Row::Csp {
        channels,
        inner,
        narrowing: 2,
        repeats: 2,
    }
}

/// The early C3k2 of a quarter of the width.
pub(super) const fn narrow_c3k2(channels: usize) -> Row {
    Row::Csp {
        channels,
        inner: Inner::Narrow,
        narrowing: 4,
        repeats: 2,
    }
}

const ROWS: [Row; 23] = [
    Row::Conv(64),
    Row::Conv(128),
    narrow_c3k2(256),
    Row::Conv(256),
    narrow_c3k2(512),
    Row::Conv(512),
    c3k2(512, Inner::C3k),
    Row::Conv(1024),
    c3k2(1024, Inner::C3k),
    Row::Sppf {
        channels: 1024,
        shortcut: false,
    },
    Row::C2psa(1024),
    Row::Upsample,
    Row::Concat(6),
    c3k2(512, Inner::Narrow),
    Row::Upsample,
    Row::Concat(4),
    c3k2(256, Inner::Narrow),
    Row::Conv(256),
    Row::Concat(13),
    c3k2(512, Inner::Narrow),
    Row::Conv(512),
    Row::Concat(10),
    c3k2(1024, Inner::C3k),
];

pub(super) const TABLE: Table = Table {
    rows: &ROWS,
    levels: [16, 19, 22],
    classify: (9, &[Row::C2psa(1024)]),
};

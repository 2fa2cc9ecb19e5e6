//! YOLOv8: the table of its rows.

use super::blocks::Inner;
use super::family::{Row, Table};

const fn c2f(channels: usize, repeats: usize, shortcut: bool) -> Row {
    Row::Csp {
        channels,
        inner: Inner::Wide { shortcut },
        narrowing: 2,
        repeats,
    }
}

const ROWS: [Row; 22] = [
    Row::Conv(64),
    Row::Conv(128),
    c2f(128, 3, true),
    Row::Conv(256),
    c2f(256, 6, true),
    Row::Conv(512),
    c2f(512, 6, true),
    Row::Conv(1024),
    c2f(1024, 3, true),
    Row::Sppf {
        channels: 1024,
        shortcut: false,
    },
    Row::Upsample,
    Row::Concat(6),
    c2f(512, 3, false),
    Row::Upsample,
    Row::Concat(4),
    c2f(256, 3, false),
    Row::Conv(256),
    Row::Concat(12),
    c2f(512, 3, false),
    Row::Conv(512),
    Row::Concat(9),
    c2f(1024, 3, false),
];

pub(super) const TABLE: Table = Table {
    rows: &ROWS,
    levels: [15, 18, 21],
    classify: (9, &[]),
};

//! YOLO26: the table of its rows. Its head has every branch twice and no distance bins (see `heads`).

use super::blocks::Inner;
use super::family::{Row, Table};
use super::yolo11::{c3k2, narrow_c3k2};

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
        shortcut: true,
    },
    Row::C2psa(1024),
    Row::Upsample,
    Row::Concat(6),
    c3k2(512, Inner::C3k),
    Row::Upsample,
    Row::Concat(4),
    c3k2(256, Inner::C3k),
    Row::Conv(256),
    Row::Concat(13),
    c3k2(512, Inner::C3k),
    Row::Conv(512),
    Row::Concat(10),
    Row::Csp {
        channels: 1024,
        inner: Inner::Attention,
        narrowing: 2,
        repeats: 1,
    },
];

pub(super) const TABLE: Table = Table {
    rows: &ROWS,
    levels: [16, 19, 22],
    classify: (9, &[Row::C2psa(1024)]),
};

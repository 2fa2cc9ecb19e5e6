//! YOLO11 for detection: the table of its rows and the rules that scale it.

use super::blocks::{self, C3k2};
use super::{ModelSpec, Scale};
use crate::graph::{Graph, ValueId};

/// One row of the table, with channels before scaling. Its input is the row above.
#[derive(Debug, Clone, Copy)]
enum Row {
    /// 3×3, stride 2.
    Conv(usize),
    C3k2 {
        channels: usize,
        c3k: bool,
        /// Hidden channels are the output's divided by this.
        narrowing: usize,
    },
    Sppf(usize),
    C2psa(usize),
    Upsample,
    /// The row above and the one named.
    Concat(usize),
}

const fn c3k2(channels: usize, c3k: bool) -> Row {
    Row::C3k2 {
        channels,
        c3k,
        narrowing: 2,
    }
}

const fn narrow_c3k2(channels: usize) -> Row {
    Row::C3k2 {
        channels,
        c3k: false,
        narrowing: 4,
    }
}

const ROWS: [Row; 23] = [
    Row::Conv(64),
    Row::Conv(128),
    narrow_c3k2(256),
    Row::Conv(256),
    narrow_c3k2(512),
    Row::Conv(512),
    c3k2(512, true),
    Row::Conv(1024),
    c3k2(1024, true),
    Row::Sppf(1024),
    Row::C2psa(1024),
    Row::Upsample,
    Row::Concat(6),
    c3k2(512, false),
    Row::Upsample,
    Row::Concat(4),
    c3k2(256, false),
    Row::Conv(256),
    Row::Concat(13),
    c3k2(512, false),
    Row::Conv(512),
    Row::Concat(10),
    c3k2(1024, true),
];
/// The rows the head reads, finest first.
const LEVELS: [usize; 3] = [16, 19, 22];
/// Repeats of the rows that repeat something, before scaling.
const REPEATS: usize = 2;
const POOL_WINDOW: usize = 5;

/// How a scale changes the table.
struct Rules {
    /// Half or all of the repeats.
    depth_halves: usize,
    /// Quarters by which channels are multiplied.
    width_quarters: usize,
    channels_max: usize,
    /// Every C3k2 holds C3k blocks, whatever its row says.
    c3k_everywhere: bool,
}

impl Rules {
    fn of(scale: Scale) -> Self {
        let (depth_halves, width_quarters, channels_max, c3k_everywhere) = match scale {
            Scale::N => (1, 1, 1024, false),
            Scale::S => (1, 2, 1024, false),
            Scale::M => (1, 4, 512, true),
            Scale::L => (2, 4, 512, true),
            Scale::X => (2, 6, 512, true),
        };
        Self {
            depth_halves,
            width_quarters,
            channels_max,
            c3k_everywhere,
        }
    }

    fn channels(&self, channels: usize) -> usize {
        (channels.min(self.channels_max) * self.width_quarters)
            .div_ceil(4)
            .next_multiple_of(8)
    }

    fn repeats(&self) -> usize {
        (REPEATS * self.depth_halves / 2).max(1)
    }
}

/// Builds the graph.
pub(super) fn graph(spec: &ModelSpec) -> Graph {
    let rules = Rules::of(spec.scale);
    let mut graph = Graph::default();
    let mut last = graph.image();
    for (index, row) in ROWS.into_iter().enumerate() {
        last = add_row(&mut graph, &rules, index, row, last);
        graph.rows.push(last);
    }
    let levels = LEVELS.map(|row| graph.rows[row]);
    blocks::detect(
        &mut graph,
        &format!("model.{}", ROWS.len()),
        spec.class_count,
        levels,
    );
    graph
}

fn add_row(graph: &mut Graph, rules: &Rules, index: usize, row: Row, last: ValueId) -> ValueId {
    let name = &format!("model.{index}");
    let input = graph.value(last).channels;
    match row {
        Row::Conv(channels) => {
            let channels = [input, rules.channels(channels)];
            blocks::conv(graph, name, channels, 3, 2, last)
        }
        Row::C3k2 {
            channels,
            c3k,
            narrowing,
        } => {
            let output = rules.channels(channels);
            let arguments = C3k2 {
                input,
                output,
                hidden: output / narrowing,
                repeats: rules.repeats(),
                c3k: c3k || rules.c3k_everywhere,
            };
            blocks::c3k2(graph, name, arguments, last)
        }
        Row::Sppf(channels) => {
            let channels = [input, rules.channels(channels)];
            blocks::sppf(graph, name, channels, POOL_WINDOW, last)
        }
        Row::C2psa(channels) => {
            blocks::c2psa(graph, name, rules.channels(channels), rules.repeats(), last)
        }
        Row::Upsample => graph.upsample(name, last),
        Row::Concat(other) => {
            let other = graph.rows[other];
            graph.concat(name, &[last, other])
        }
    }
}

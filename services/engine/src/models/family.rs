//! What the families share: a table of rows with channels before scaling, the rules that scale it, and the
//! walk that turns both into a graph.

use super::blocks::{self, Csp, Inner, Shape};
use super::{Family, ModelSpec, Scale, Task, heads, yolo8, yolo11, yolo26};
use crate::graph::{Constants, Graph, ValueId};

/// One row of a table, with channels before scaling. Its input is the row above.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row {
    /// 3 × 3, stride 2.
    Conv(usize),
    /// C2f or C3k2.
    Csp {
        channels: usize,
        inner: Inner,
        /// Hidden channels are the output's divided by this.
        narrowing: usize,
        repeats: usize,
    },
    Sppf {
        channels: usize,
        shortcut: bool,
    },
    C2psa(usize),
    Upsample,
    /// The row above and the one named.
    Concat(usize),
}

/// Repeats of attention blocks, before scaling.
const ATTENTION_REPEATS: usize = 2;

/// One family, without its head.
pub(super) struct Table {
    pub(super) rows: &'static [Row],
    /// The rows a dense head reads, finest first.
    pub(super) levels: [usize; 3],
    /// The rows of a classifier: so many of the table's, then these.
    pub(super) classify: (usize, &'static [Row]),
}

/// How a scale changes a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// By which repeats are multiplied.
    pub(super) depth: f64,
    /// Quarters by which channels are multiplied.
    pub(super) width_quarters: usize,
    pub(super) channels_max: usize,
    /// Every narrow bottleneck of a C3k2 becomes a C3k.
    pub(super) c3k_everywhere: bool,
}

impl Rules {
    fn of(spec: &ModelSpec) -> Self {
        let (depth, width_quarters, channels_max) = match (spec.family, spec.scale) {
            (Family::Yolo8, Scale::N) => (0.33, 1, 1024),
            (Family::Yolo8, Scale::S) => (0.33, 2, 1024),
            (Family::Yolo8, Scale::M) => (0.67, 3, 768),
            (Family::Yolo8, Scale::L) => (1.0, 4, 512),
            (Family::Yolo8, Scale::X) => (1.0, 5, 512),
            (_, Scale::N) => (0.5, 1, 1024),
            (_, Scale::S) => (0.5, 2, 1024),
            (_, Scale::M) => (0.5, 4, 512),
            (_, Scale::L) => (1.0, 4, 512),
            (_, Scale::X) => (1.0, 6, 512),
        };
        let is_old_classifier = spec.family == Family::Yolo8 && spec.task == Task::Classify;
        Self {
            depth,
            width_quarters,
            channels_max: if is_old_classifier {
                1024
            } else {
                channels_max
            },
            c3k_everywhere: matches!(spec.scale, Scale::M | Scale::L | Scale::X),
        }
    }

    /// Returns scaled channels.
    pub(super) fn channels(&self, channels: usize) -> usize {
        (channels.min(self.channels_max) * self.width_quarters)
            .div_ceil(4)
            .next_multiple_of(8)
    }

    fn repeats(&self, repeats: usize) -> usize {
        match repeats {
            0 | 1 => repeats,
            _ => ((repeats as f64 * self.depth).round_ties_even() as usize).max(1),
        }
    }
}

/// Builds the graph of any model.
pub(super) fn graph(spec: &ModelSpec) -> Graph {
    let table = match spec.family {
        Family::Yolo8 => &yolo8::TABLE,
        Family::Yolo11 => &yolo11::TABLE,
        Family::Yolo26 => &yolo26::TABLE,
    };
    let rules = Rules::of(spec);
    let rows = match (spec.task, table.classify) {
        (Task::Classify, (count, more)) => [&table.rows[..count], more].concat(),
        _ => table.rows.to_vec(),
    };
    let mut graph = Graph {
        norm_constants: match spec.task {
            Task::Classify => Constants::Usual,
            _ => Constants::Dense,
        },
        ..Graph::default()
    };
    let mut last = graph.image();
    for (index, &row) in rows.iter().enumerate() {
        last = add_row(&mut graph, &rules, index, row, last);
        graph.rows.push(last);
    }
    let name = format!("model.{}", rows.len());
    if spec.task == Task::Classify {
        heads::classify(&mut graph, &name, spec.class_count, last);
    } else {
        let levels = table.levels.map(|row| graph.rows[row]);
        heads::dense(&mut graph, &name, spec, &rules, levels);
    }
    graph
}

fn add_row(graph: &mut Graph, rules: &Rules, index: usize, row: Row, last: ValueId) -> ValueId {
    let name = &format!("model.{index}");
    let input = graph.value(last).channels;
    match row {
        Row::Conv(channels) => {
            let shape = Shape::new(input, rules.channels(channels), 3).stride(2);
            blocks::conv(graph, name, shape, last)
        }
        Row::Csp {
            channels,
            inner,
            narrowing,
            repeats,
        } => {
            let output = rules.channels(channels);
            let arguments = Csp {
                input,
                output,
                hidden: output / narrowing,
                repeats: rules.repeats(repeats),
                inner: match inner {
                    Inner::Narrow if rules.c3k_everywhere => Inner::C3k,
                    inner => inner,
                },
            };
            blocks::csp(graph, name, arguments, last)
        }
        Row::Sppf { channels, shortcut } => {
            let channels = [input, rules.channels(channels)];
            blocks::sppf(graph, name, channels, shortcut, last)
        }
        Row::C2psa(channels) => {
            let repeats = rules.repeats(ATTENTION_REPEATS);
            blocks::c2psa(graph, name, rules.channels(channels), repeats, last)
        }
        Row::Upsample => graph.upsample(name, last),
        Row::Concat(other) => {
            let other = graph.rows[other];
            graph.concat(name, &[last, other])
        }
    }
}

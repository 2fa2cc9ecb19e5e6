//! Cross-stage blocks: C2f and its descendant C3k2, and what they repeat.

use super::attention::PsaBlock;
use super::{Conv, Shape};
use crate::graph::{Graph, ValueId};

/// Two convolutions in a row, perhaps with a shortcut round them.
pub(super) struct Bottleneck {
    name: String,
    shortcut: bool,
    cv1: Conv,
    cv2: Conv,
}

impl Bottleneck {
    pub(super) fn declare(
        graph: &mut Graph,
        name: String,
        channels: usize,
        hidden: usize,
        shortcut: bool,
    ) -> Self {
        let narrow = Shape::new(channels, hidden, 3);
        let cv1 = Conv::declare(graph, format!("{name}.cv1"), narrow);
        let wide = Shape::new(hidden, channels, 3);
        let cv2 = Conv::declare(graph, format!("{name}.cv2"), wide);
        Self {
            name,
            shortcut,
            cv1,
            cv2,
        }
    }

    pub(super) fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        let hidden = self.cv1.wire(graph, input);
        let output = self.cv2.wire(graph, hidden);
        if self.shortcut {
            graph.add(&self.name, input, output)
        } else {
            output
        }
    }
}

/// Two branches, one through bottlenecks, joined again.
struct C3k {
    name: String,
    cv1: Conv,
    cv2: Conv,
    cv3: Conv,
    inner: Vec<Bottleneck>,
}

impl C3k {
    const REPEATS: usize = 2;

    fn declare(graph: &mut Graph, name: String, channels: usize) -> Self {
        let hidden = channels / 2;
        let narrow = Shape::new(channels, hidden, 1);
        let cv1 = Conv::declare(graph, format!("{name}.cv1"), narrow);
        let cv2 = Conv::declare(graph, format!("{name}.cv2"), narrow);
        let joined = Shape::new(2 * hidden, channels, 1);
        let cv3 = Conv::declare(graph, format!("{name}.cv3"), joined);
        let inner = (0..Self::REPEATS)
            .map(|i| Bottleneck::declare(graph, format!("{name}.m.{i}"), hidden, hidden, true))
            .collect();
        Self {
            name,
            cv1,
            cv2,
            cv3,
            inner,
        }
    }

    fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        let mut left = self.cv1.wire(graph, input);
        for bottleneck in &self.inner {
            left = bottleneck.wire(graph, left);
        }
        let right = self.cv2.wire(graph, input);
        let both = graph.concat(&self.name, &[left, right]);
        self.cv3.wire(graph, both)
    }
}

/// What a cross-stage block repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::models) enum Inner {
    /// C2f: a bottleneck as wide as its input.
    Wide { shortcut: bool },
    /// C3k2: a bottleneck of half the width.
    Narrow,
    /// C3k2 with C3k blocks.
    C3k,
    /// C3k2 with a bottleneck, then self-attention.
    Attention,
}

/// The arguments of a cross-stage block.
#[derive(Debug, Clone, Copy)]
pub(in crate::models) struct Csp {
    pub(in crate::models) input: usize,
    pub(in crate::models) output: usize,
    pub(in crate::models) hidden: usize,
    pub(in crate::models) repeats: usize,
    pub(in crate::models) inner: Inner,
}

enum Repeated {
    Bottleneck(Bottleneck),
    C3k(C3k),
    Attention(Box<(Bottleneck, PsaBlock)>),
}

impl Repeated {
    fn declare(graph: &mut Graph, name: String, channels: usize, inner: Inner) -> Self {
        let half = channels / 2;
        match inner {
            Inner::Wide { shortcut } => Self::Bottleneck(Bottleneck::declare(
                graph, name, channels, channels, shortcut,
            )),
            Inner::Narrow => {
                Self::Bottleneck(Bottleneck::declare(graph, name, channels, half, true))
            }
            Inner::C3k => Self::C3k(C3k::declare(graph, name, channels)),
            Inner::Attention => Self::Attention(Box::new((
                Bottleneck::declare(graph, format!("{name}.0"), channels, half, true),
                PsaBlock::declare(graph, format!("{name}.1"), channels),
            ))),
        }
    }

    fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        match self {
            Self::Bottleneck(bottleneck) => bottleneck.wire(graph, input),
            Self::C3k(c3k) => c3k.wire(graph, input),
            Self::Attention(both) => {
                let (bottleneck, attention) = &**both;
                let value = bottleneck.wire(graph, input);
                attention.wire(graph, value)
            }
        }
    }
}

/// Adds a C2f or C3k2: the input in two halves, each inner block feeding the next, everything joined.
pub(in crate::models) fn csp(
    graph: &mut Graph,
    name: &str,
    arguments: Csp,
    input: ValueId,
) -> ValueId {
    let Csp {
        hidden, repeats, ..
    } = arguments;
    let first = Shape::new(arguments.input, 2 * hidden, 1);
    let cv1 = Conv::declare(graph, format!("{name}.cv1"), first);
    let last = Shape::new((2 + repeats) * hidden, arguments.output, 1);
    let cv2 = Conv::declare(graph, format!("{name}.cv2"), last);
    let inner: Vec<_> = (0..repeats)
        .map(|i| Repeated::declare(graph, format!("{name}.m.{i}"), hidden, arguments.inner))
        .collect();

    let both = cv1.wire(graph, input);
    let mut parts = graph.halves(name, both).to_vec();
    for block in &inner {
        let last = parts[parts.len() - 1];
        parts.push(block.wire(graph, last));
    }
    let joined = graph.concat(name, &parts);
    cv2.wire(graph, joined)
}

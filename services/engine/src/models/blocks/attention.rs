//! Self-attention over the pixels of a map, and the blocks around it.

use super::{Conv, Shape};
use crate::graph::{Graph, ValueId};

/// Self-attention and a two-layer perceptron, each with a shortcut.
pub(super) struct PsaBlock {
    name: String,
    heads: usize,
    key_channels: usize,
    value_channels: usize,
    qkv: Conv,
    proj: Conv,
    pe: Conv,
    ffn: [Conv; 2],
}

impl PsaBlock {
    pub(super) fn declare(graph: &mut Graph, name: String, channels: usize) -> Self {
        let heads = (channels / 64).max(1);
        let value_channels = channels / heads;
        let key_channels = value_channels / 2;
        let mixed = channels + 2 * key_channels * heads;
        let mut declare =
            |leaf: &str, shape: Shape| Conv::declare(graph, format!("{name}.{leaf}"), shape);
        let qkv = declare("attn.qkv", Shape::new(channels, mixed, 1).linear());
        let proj = declare("attn.proj", Shape::new(channels, channels, 1).linear());
        let pe = declare("attn.pe", Shape::depthwise(channels, 3).linear());
        let ffn = [
            declare("ffn.0", Shape::new(channels, 2 * channels, 1)),
            declare("ffn.1", Shape::new(2 * channels, channels, 1).linear()),
        ];
        Self {
            name,
            heads,
            key_channels,
            value_channels,
            qkv,
            proj,
            pe,
            ffn,
        }
    }

    pub(super) fn wire(&self, graph: &mut Graph, input: ValueId) -> ValueId {
        let attention = format!("{}.attn", self.name);
        let qkv = self.qkv.wire(graph, input);
        let [attended, values] = graph.attention(
            &attention,
            qkv,
            self.heads,
            self.key_channels,
            self.value_channels,
        );
        let positions = self.pe.wire(graph, values);
        let attended = graph.add(&attention, attended, positions);
        let attended = self.proj.wire(graph, attended);
        let middle = graph.add(&self.name, input, attended);
        let wide = self.ffn[0].wire(graph, middle);
        let narrow = self.ffn[1].wire(graph, wide);
        graph.add(&self.name, middle, narrow)
    }
}

/// Adds a C2PSA: half of the channels go through attention blocks.
pub(in crate::models) fn c2psa(
    graph: &mut Graph,
    name: &str,
    channels: usize,
    repeats: usize,
    input: ValueId,
) -> ValueId {
    let hidden = channels / 2;
    let cv1 = Conv::declare(
        graph,
        format!("{name}.cv1"),
        Shape::new(channels, 2 * hidden, 1),
    );
    let cv2 = Conv::declare(
        graph,
        format!("{name}.cv2"),
        Shape::new(2 * hidden, channels, 1),
    );
    let inner: Vec<_> = (0..repeats)
        .map(|i| PsaBlock::declare(graph, format!("{name}.m.{i}"), hidden))
        .collect();

    let both = cv1.wire(graph, input);
    let [kept, mut attended] = graph.halves(name, both);
    for block in &inner {
        attended = block.wire(graph, attended);
    }
    let joined = graph.concat(name, &[kept, attended]);
    cv2.wire(graph, joined)
}

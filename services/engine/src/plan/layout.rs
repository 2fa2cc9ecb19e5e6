//! Where values lie relative to each other: concatenations and splits cost no copy, because their parts are
//! channel ranges of one storage; sums are folded into the convolution that makes one of their terms.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Op, ValueId};
use crate::ops::view::{CHANNEL_BLOCK, Channels};

/// The place of a value in its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The value that stands for the storage.
    pub root: ValueId,
    /// First float within a pixel.
    pub channel: usize,
    /// The value's own channels.
    pub channels: Channels,
}

/// A sum that a convolution makes on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FusedAdd {
    /// The other term.
    pub residual: ValueId,
    pub sum: ValueId,
    /// The node that is gone.
    pub node: usize,
}

/// The layout of a whole graph.
#[derive(Debug)]
pub(super) struct Layout {
    places: Vec<Place>,
    /// By the convolution's node.
    pub fused: BTreeMap<usize, FusedAdd>,
    /// Parts of a concatenation that lie elsewhere too: (node, input), to be copied.
    pub copied: BTreeSet<(usize, usize)>,
}

impl Layout {
    pub fn new(graph: &Graph, fuse: bool) -> Self {
        let groups = channel_groups(graph);
        let fused = if fuse {
            fused_adds(graph)
        } else {
            BTreeMap::new()
        };
        let mut layout = Self {
            places: (0..graph.values.len())
                .map(|id| Place {
                    root: ValueId(id),
                    channel: 0,
                    channels: Channels::groups(groups[id].clone()),
                })
                .collect(),
            fused,
            copied: BTreeSet::new(),
        };
        let parents = layout.place_parts(graph);
        layout.resolve(&parents);
        layout
    }

    /// Returns where a value lies.
    pub fn place(&self, id: ValueId) -> &Place {
        &self.places[id.0]
    }

    /// Returns the floats of one pixel of the storage a value lies in.
    pub fn pixel_stride(&self, id: ValueId) -> usize {
        let root = self.places[id.0].root;
        self.places[root.0].channels.padded()
    }

    /// Decides for every slice and every part of a concatenation what it lies in.
    fn place_parts(&mut self, graph: &Graph) -> Vec<Option<(ValueId, usize)>> {
        let mut parents: Vec<Option<(ValueId, usize)>> = vec![None; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            match node.op {
                Op::Slice { offset } => {
                    let channel = padded_place(&self.place(node.inputs[0]).channels, offset);
                    parents[node.outputs[0].0] = Some((node.inputs[0], channel));
                }
                Op::Concat => self.place_concat(graph, index, &mut parents),
                _ => {}
            }
        }
        parents
    }

    fn place_concat(
        &mut self,
        graph: &Graph,
        index: usize,
        parents: &mut [Option<(ValueId, usize)>],
    ) {
        let node = &graph.nodes[index];
        let output = node.outputs[0];
        let mut channel = 0;
        let mut part = 0;
        while part < node.inputs.len() {
            let input = node.inputs[part];
            // A run of slices that together are one whole value moves as that value.
            let (whole, length) = whole_value(graph, &node.inputs[part..], parents);
            let is_free = parents[whole.0].is_none()
                && !matches!(graph.nodes[graph.producer(whole)].op, Op::Image);
            if is_free {
                parents[whole.0] = Some((output, channel));
                channel += self.place(whole).channels.padded();
                part += length;
            } else {
                self.copied.insert((index, part));
                channel += self.place(input).channels.padded();
                part += 1;
            }
        }
    }

    fn resolve(&mut self, parents: &[Option<(ValueId, usize)>]) {
        for id in 0..parents.len() {
            let (mut root, mut channel) = (id, 0);
            while let Some((parent, offset)) = parents[root] {
                channel += offset;
                root = parent.0;
            }
            self.places[id].root = ValueId(root);
            self.places[id].channel = channel;
        }
    }
}

/// Returns the value that the leading parts make up together, and how many parts they are. A single
/// slice of something bigger is returned as itself.
fn whole_value(
    graph: &Graph,
    parts: &[ValueId],
    parents: &[Option<(ValueId, usize)>],
) -> (ValueId, usize) {
    let slice_of = |id: ValueId| match graph.nodes[graph.producer(id)].op {
        Op::Slice { offset } => parents[id.0].map(|(parent, _)| (parent, offset)),
        _ => None,
    };
    let Some((parent, 0)) = slice_of(parts[0]) else {
        return (parts[0], 1);
    };
    let mut covered = 0;
    for (index, &part) in parts.iter().enumerate() {
        if slice_of(part) != Some((parent, covered)) {
            break;
        }
        covered += graph.value(part).channels;
        if covered == graph.value(parent).channels {
            return (parent, index + 1);
        }
    }
    (parts[0], 1)
}

/// Returns the padded place of a channel that starts a group or lies in one.
fn padded_place(channels: &Channels, channel: usize) -> usize {
    channels
        .places()
        .nth(channel)
        .expect("invariant: a slice starts within its value")
}

/// Returns the channel groups of every value: cut where it is sliced, joined where it is concatenated.
fn channel_groups(graph: &Graph) -> Vec<Vec<usize>> {
    let mut cuts: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); graph.values.len()];
    for node in &graph.nodes {
        if let Op::Slice { offset } = node.op {
            let end = offset + graph.value(node.outputs[0]).channels;
            cuts[node.inputs[0].0].extend([offset, end]);
        }
    }
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); graph.values.len()];
    for node in &graph.nodes {
        for &output in &node.outputs {
            let channels = graph.value(output).channels;
            let own = match node.op {
                Op::Concat => node
                    .inputs
                    .iter()
                    .flat_map(|input| groups[input.0].iter().copied())
                    .collect(),
                Op::Add | Op::MaxPool { .. } | Op::Upsample | Op::GlobalPool => {
                    groups[node.inputs[0].0].clone()
                }
                _ => {
                    let ends = cuts[output.0].iter().copied().chain([channels]);
                    let mut last = 0;
                    let widths = ends.map(|end| {
                        let width = end - last;
                        last = end;
                        width
                    });
                    widths.filter(|&width| width > 0).collect()
                }
            };
            groups[output.0] = joined(own);
        }
    }
    groups
}

/// Joins neighbouring groups where no padding lies between them.
fn joined(groups: Vec<usize>) -> Vec<usize> {
    let mut result: Vec<usize> = Vec::with_capacity(groups.len());
    for group in groups {
        match result.last_mut() {
            Some(last) if last.is_multiple_of(CHANNEL_BLOCK) => *last += group,
            _ => result.push(group),
        }
    }
    result
}

/// Finds the sums one of whose terms is a convolution that nobody else reads, the other term being older.
fn fused_adds(graph: &Graph) -> BTreeMap<usize, FusedAdd> {
    let mut fused = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if node.op != Op::Add {
            continue;
        }
        let [left, right] = [node.inputs[0], node.inputs[1]];
        for (term, residual) in [(right, left), (left, right)] {
            let producer = graph.producer(term);
            let is_normed = matches!(graph.nodes[producer].op,
                Op::Convolution(convolution) if convolution.norm.is_some());
            let is_alone = graph.consumers(term).count() == 1;
            if term != residual
                && is_normed
                && is_alone
                && graph.producer(residual) < producer
                && !fused.contains_key(&producer)
            {
                let add = FusedAdd {
                    residual,
                    sum: node.outputs[0],
                    node: index,
                };
                fused.insert(producer, add);
                break;
            }
        }
    }
    fused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{self, ModelSpec};

    fn layout(name: &str) -> (Graph, Layout) {
        let graph = models::graph(&ModelSpec::parse(name, 80).unwrap());
        let layout = Layout::new(&graph, true);
        (graph, layout)
    }

    #[test]
    fn only_the_untouched_half_of_attention_is_copied() {
        for name in ModelSpec::names() {
            let (graph, layout) = layout(&name);
            let copied: Vec<_> = layout
                .copied
                .iter()
                .map(|&(node, part)| (graph.nodes[node].name.as_str(), part))
                .collect();
            let untouched = graph.nodes.iter().find_map(|node| {
                let row = node.name.strip_suffix(".m.0.attn")?;
                matches!(node.op, Op::Attention { .. }).then_some((row, 0))
            });
            let expected: Vec<_> = untouched.into_iter().collect();
            assert_eq!(copied, expected, "{name}");
        }
    }

    #[test]
    fn every_sum_is_made_by_a_convolution() {
        for name in ModelSpec::names() {
            let (graph, layout) = layout(&name);
            // But that of YOLO26's levels, whose terms are no convolutions.
            let sums = graph.nodes.iter().filter(|n| n.op == Op::Add);
            let sums = sums.filter(|n| n.name != "model.23.proto.feat").count();
            assert_eq!(layout.fused.len(), sums, "{name}");
        }
    }

    #[test]
    fn parts_of_a_concatenation_lie_side_by_side() {
        let (graph, layout) = layout("yolo11n");
        for (index, node) in graph.nodes.iter().enumerate() {
            if node.op != Op::Concat {
                continue;
            }
            let mut channel = layout.place(node.outputs[0]).channel;
            for (part, &input) in node.inputs.iter().enumerate() {
                let place = layout.place(input);
                if !layout.copied.contains(&(index, part)) {
                    assert_eq!(place.root, layout.place(node.outputs[0]).root);
                    assert_eq!(place.channel, channel);
                }
                channel += place.channels.padded();
            }
        }
    }
}

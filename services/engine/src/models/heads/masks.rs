//! Prototypes of masks: a map at a quarter of the input's side, of which each object's mask is a weighted sum.

use crate::graph::{Graph, ValueId};
use crate::models::blocks::{Conv, Shape, chain};
use crate::models::family::Rules;
use crate::models::{Family, MASK_CHANNELS, ModelSpec};

/// Channels within, before scaling.
const HIDDEN: usize = 256;

/// The prototypes' layers with their tensors declared.
pub(super) struct Masks {
    name: String,
    /// Convolution, enlargement, two convolutions.
    layers: [Conv; 4],
    fusion: Option<Fusion>,
}

/// YOLO26 makes prototypes of all levels, and learns a class for each pixel beside.
struct Fusion {
    /// Of the coarser levels, to the finest one's channels.
    refine: [Conv; 2],
    fuse: Conv,
    semantic: [Conv; 3],
}

impl Masks {
    pub(super) fn declare(
        graph: &mut Graph,
        name: &str,
        spec: &ModelSpec,
        rules: &Rules,
        channels: [usize; 3],
    ) -> Self {
        let hidden = rules.channels(HIDDEN);
        let is_fused = spec.family == Family::Yolo26;
        let input = if is_fused { hidden } else { channels[0] };
        let mut declare = |leaf: &str, shape| Conv::declare(graph, format!("{name}.{leaf}"), shape);
        let first = declare("cv1", Shape::new(input, hidden, 3));
        let enlarge =
            Conv::declare_plain(graph, format!("{name}.upsample"), Shape::transposed(hidden));
        let mut declare = |leaf: &str, shape| Conv::declare(graph, format!("{name}.{leaf}"), shape);
        let second = declare("cv2", Shape::new(hidden, hidden, 3));
        let last = declare("cv3", Shape::new(hidden, MASK_CHANNELS, 1));
        Self {
            name: name.to_owned(),
            layers: [first, enlarge, second, last],
            fusion: is_fused.then(|| Fusion::declare(graph, name, spec, hidden, channels)),
        }
    }

    pub(super) fn wire(&self, graph: &mut Graph, inputs: [ValueId; 3]) {
        let features = match &self.fusion {
            None => inputs[0],
            Some(fusion) => fusion.wire(graph, &self.name, inputs),
        };
        graph.prototypes = Some(chain(graph, &self.layers, features));
    }
}

impl Fusion {
    fn declare(
        graph: &mut Graph,
        name: &str,
        spec: &ModelSpec,
        hidden: usize,
        channels: [usize; 3],
    ) -> Self {
        let finest = channels[0];
        let mut declare = |leaf: &str, shape| Conv::declare(graph, format!("{name}.{leaf}"), shape);
        let refine = [
            declare("feat_refine.0", Shape::new(channels[1], finest, 1)),
            declare("feat_refine.1", Shape::new(channels[2], finest, 1)),
        ];
        let fuse = declare("feat_fuse", Shape::new(finest, hidden, 3));
        let first = declare("semseg.0", Shape::new(finest, hidden, 3));
        let second = declare("semseg.1", Shape::new(hidden, hidden, 3));
        let classes = Shape::new(hidden, spec.class_count, 1);
        let last = Conv::declare_plain(graph, format!("{name}.semseg.2"), classes);
        Self {
            refine,
            fuse,
            semantic: [first, second, last],
        }
    }

    /// Adds the coarser levels to the finest: enlarging the sum of two equals the sum of both enlarged.
    fn wire(&self, graph: &mut Graph, name: &str, inputs: [ValueId; 3]) -> ValueId {
        let coarsest = self.refine[1].wire(graph, inputs[2]);
        let coarsest = graph.upsample(&format!("{name}.feat_refine.1.up"), coarsest);
        let middle = self.refine[0].wire(graph, inputs[1]);
        let coarse = graph.add(&format!("{name}.feat_refine.0.sum"), coarsest, middle);
        let coarse = graph.upsample(&format!("{name}.feat_refine.0.up"), coarse);
        let all = graph.add(&format!("{name}.feat"), inputs[0], coarse);
        graph.semantic = Some(chain(graph, &self.semantic, all));
        self.fuse.wire(graph, all)
    }
}

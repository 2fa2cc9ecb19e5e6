//! What a plan puts out: where the head's raw outputs lie, and the launches that make predictions of them.

use super::Branches;
use super::forward::Lowering;
use super::launch::{BufferId, BufferKind, Kernel, Slot};
use crate::decode::DETECTIONS_MAX;
use crate::graph::{Graph, ValueId};
use crate::models::ModelSpec;

/// Where an output of the head lies, and its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedOutput {
    pub value: Slot,
    /// In training.
    pub gradient: Option<Slot>,
}

/// The outputs of one level of one branch of the head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedHead {
    pub stride: usize,
    pub height: usize,
    pub width: usize,
    pub boxes: PlannedOutput,
    pub scores: PlannedOutput,
    pub extra: Option<PlannedOutput>,
    pub sigma: Option<PlannedOutput>,
}

/// A map of features that the head puts out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedMap {
    pub height: usize,
    pub width: usize,
    /// Without padding.
    pub channels: usize,
    pub output: PlannedOutput,
}

/// Everything the head puts out, as in [`crate::network::Outputs`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlannedOutputs {
    pub branches: Vec<Vec<PlannedHead>>,
    pub prototypes: Option<PlannedMap>,
    pub semantic: Option<PlannedMap>,
    pub logits: Option<PlannedMap>,
}

impl PlannedOutputs {
    /// Returns every output.
    pub fn iter(&self) -> impl Iterator<Item = PlannedOutput> + '_ {
        let of_level = |head: &PlannedHead| {
            let always = [Some(head.boxes), Some(head.scores)];
            always.into_iter().chain([head.extra, head.sigma]).flatten()
        };
        let maps = [self.prototypes, self.semantic, self.logits];
        let levels = self.branches.iter().flatten().flat_map(of_level);
        levels.chain(maps.into_iter().flatten().map(|map| map.output))
    }
}

/// How the rows of predictions are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// For each anchor a box, a probability per class, then the task's extras.
    Anchors,
    /// For each detection, surest first, a box, score and class, then the task's extras.
    Detections,
    /// One row of an image: a probability per class.
    Classes,
}

impl Rows {
    /// Returns the numbers of a row.
    pub fn row_length(self, class_count: usize, extra_count: usize) -> usize {
        match self {
            Self::Anchors => 4 + class_count + extra_count,
            Self::Detections => 6 + extra_count,
            Self::Classes => class_count,
        }
    }
}

/// Where the predictions of a batch lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedPredictions {
    pub output: BufferId,
    /// Per image.
    pub rows: usize,
    pub form: Rows,
}

/// Leaves out of the outputs what only training wants.
pub fn keep_what_predicts(graph: &mut Graph, branches: Branches) {
    graph.semantic = None;
    match branches {
        Branches::OneToMany => graph.branches.truncate(1),
        Branches::OneToOne => {
            graph
                .branches
                .drain(..graph.branches.len().saturating_sub(1));
        }
        Branches::Both => {}
    }
    for head in graph.branches.iter_mut().flatten() {
        head.sigma = None;
    }
}

impl Lowering {
    /// Says where the head's outputs lie, after the passes that make them.
    pub fn plan_outputs(&mut self) {
        let branches = self.graph.branches.clone();
        let branches = branches.iter().map(|levels| {
            let levels = levels.iter().map(|head| {
                let extent = self.extent(head.boxes);
                PlannedHead {
                    stride: head.stride,
                    height: extent.height,
                    width: extent.width,
                    boxes: self.planned_output(head.boxes),
                    scores: self.planned_output(head.scores),
                    extra: head.extra.map(|id| self.planned_output(id)),
                    sigma: head.sigma.map(|id| self.planned_output(id)),
                }
            });
            levels.collect()
        });
        self.outputs.branches = branches.collect();
        let Graph {
            prototypes,
            semantic,
            logits,
            ..
        } = self.graph;
        let [prototypes, semantic, logits] =
            [prototypes, semantic, logits].map(|id| id.map(|id| self.planned_map(id)));
        self.outputs.prototypes = prototypes;
        self.outputs.semantic = semantic;
        self.outputs.logits = logits;
    }

    fn planned_output(&mut self, id: ValueId) -> PlannedOutput {
        PlannedOutput {
            value: self.slot(id),
            gradient: self.output_gradients.get(&id).copied(),
        }
    }

    fn planned_map(&mut self, id: ValueId) -> PlannedMap {
        let extent = self.extent(id);
        PlannedMap {
            height: extent.height,
            width: extent.width,
            channels: self.graph.value(id).channels,
            output: self.planned_output(id),
        }
    }

    /// Makes predictions of the head's outputs.
    pub fn decode(&mut self, spec: &ModelSpec) {
        let batch = self.shape.batch;
        if let Some(logits) = self.graph.logits {
            let length = batch * spec.class_count;
            let output = self.buffer("predictions", BufferKind::Predictions, length);
            let kernel = Kernel::Softmax {
                extent: self.extent(logits),
                input: self.slot(logits),
                output,
            };
            self.launch("predictions", kernel, 0, 2 * length);
            self.predictions = Some(PlannedPredictions {
                output,
                rows: 1,
                form: Rows::Classes,
            });
            return;
        }
        let levels = &self.graph.branches[0];
        let cells = levels.iter().map(|head| self.extent(head.boxes));
        let anchors: usize = cells.map(|extent| extent.height * extent.width).sum();
        let extras = spec.extra_channels();
        let form = Rows::Anchors;
        let length = batch * anchors * form.row_length(spec.class_count, extras);
        let decoded = self.buffer("predictions", BufferKind::Predictions, length);
        let kernel = Kernel::Decode { output: decoded };
        self.launch("predictions", kernel, 0, 2 * length);
        self.predictions = Some(PlannedPredictions {
            output: decoded,
            rows: anchors,
            form,
        });
        if self.options.branches == Branches::OneToOne && spec.family.is_end_to_end() {
            let form = Rows::Detections;
            let rows = anchors.min(DETECTIONS_MAX);
            let selected = batch * rows * form.row_length(spec.class_count, extras);
            let output = self.buffer("detections", BufferKind::Predictions, selected);
            let kernel = Kernel::Select {
                input: decoded,
                output,
                detections: rows,
            };
            self.launch("detections", kernel, 0, length + selected);
            self.predictions = Some(PlannedPredictions { output, rows, form });
        }
    }
}

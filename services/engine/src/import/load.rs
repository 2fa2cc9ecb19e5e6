//! Taking weights over: by name and shape, and class by class where the classes are others.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use super::{Tensor, Weights, read};
use crate::graph::Graph;
use crate::models::{self, ModelSpec};
use crate::network::{Role, State, TensorInfo};
use crate::{Error, Result};

/// The widest score chains that are believed: four times those of the largest model.
const CLASS_HIDDEN_MAX: usize = 2048;
/// How many names a report lists before it counts the rest.
const NAMES_SHOWN: usize = 4;

/// A tensor of the model that kept its fresh values, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub name: String,
    pub rule: String,
}

/// What was taken over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// What the weights came from.
    pub source: String,
    /// Tensors of the model that have values of the file now, running statistics included.
    pub loaded: usize,
    /// All tensors of the model, without constants that the file leaves out.
    pub all: usize,
    pub skipped: Vec<Skipped>,
    /// Tensors of the file that the model has no place for.
    pub unused: Vec<String>,
    /// Where the classes are others: those whose rows of the head were taken over, and those that begin anew.
    pub classes: Option<[Vec<String>; 2]>,
    pub notes: Vec<String>,
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            loaded,
            all,
            ..
        } = self;
        write!(
            f,
            "weights from {source}: {loaded} of {all} tensors taken over"
        )?;
        if let Some([known, fresh]) = &self.classes {
            let total = known.len() + fresh.len();
            write!(f, "; {} of {total} classes known by name", known.len())?;
            if !fresh.is_empty() {
                write!(f, ", new: {}", some_of(fresh.iter().map(String::as_str)))?;
            }
        }
        if !self.skipped.is_empty() {
            let skipped: Vec<String> = self
                .skipped
                .iter()
                .map(|skipped| format!("{} ({})", skipped.name, skipped.rule))
                .collect();
            let skipped = some_of(skipped.iter().map(String::as_str));
            write!(f, "; left fresh: {skipped}")?;
        }
        if !self.unused.is_empty() {
            let unused = some_of(self.unused.iter().map(String::as_str));
            write!(f, "; without a place in the model: {unused}")?;
        }
        for note in &self.notes {
            write!(f, "; {note}")?;
        }
        Ok(())
    }
}

/// Lists the first few and counts the rest.
fn some_of<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(NAMES_SHOWN);
    let shown: Vec<&str> = names.take(NAMES_SHOWN).collect();
    match more {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns fresh weights of a model of the given classes, with what a file has for it taken over.
pub fn into_state(
    spec: &ModelSpec,
    path: &Path,
    classes: &[String],
    seed: u64,
) -> Result<(State, LoadReport)> {
    let mut state = models::initialise(spec, seed);
    let mut report = load(spec, classes, &mut state, &read(path)?);
    report.source = path.display().to_string();
    if report.loaded == 0 {
        let example = report.unused.first().map_or("none", String::as_str);
        return Err(Error::Weights {
            place: report.source,
            rule: format!(
                "no tensor of a {} is in it by name and shape; it holds {example}, for example",
                spec.name()
            ),
        });
    }
    Ok((state, report))
}

/// Returns a model that keeps the width of the weights' score chains: there the count of their own classes decided, and
/// with another width none of the head's scores could be taken over.
pub fn fitted(spec: ModelSpec, weights: &Weights) -> ModelSpec {
    let tables = models::tables(&spec);
    let last = tables
        .parameters
        .iter()
        .find(|info| info.name.ends_with(".cv3.0.2.weight"));
    let Some(last) = last else {
        return spec;
    };
    let theirs = weights.tensors.get(&last.name);
    match theirs.map(|tensor| &tensor.shape[..]) {
        Some(&[_, hidden, 1, 1])
            if hidden != last.shape[1] && (1..=CLASS_HIDDEN_MAX).contains(&hidden) =>
        {
            ModelSpec {
                class_hidden: Some(hidden),
                ..spec
            }
        }
        _ => spec,
    }
}

/// Takes over every tensor of equal name and shape, and the head's rows of classes with equal names.
pub fn load(
    spec: &ModelSpec,
    classes: &[String],
    state: &mut State,
    weights: &Weights,
) -> LoadReport {
    let graph = models::graph(spec);
    let mut report = LoadReport {
        source: "a model".into(),
        all: graph.parameters.len() + graph.buffers.len(),
        notes: weights.notes.clone(),
        ..LoadReport::default()
    };
    let unfolded = unfold(&graph, &weights.tensors);
    if !unfolded.is_empty() {
        report.notes.push(format!(
            "{} convolutions with their norms folded in: each norm begins as one that changes nothing but adds the bias",
            unfolded.len() / 4
        ));
    }
    let find = |name: &str| weights.tensors.get(name).or_else(|| unfolded.get(name));
    let rows = Rows::new(classes, weights.classes.as_deref());
    let State {
        parameters,
        buffers,
    } = state;
    let lists: [(&[TensorInfo], &mut [f32]); 2] =
        [(&graph.parameters, parameters), (&graph.buffers, buffers)];
    for (infos, values) in lists {
        for info in infos {
            let target = &mut values[info.range()];
            let taken = match find(&info.name) {
                // A constant is what it is.
                None if info.role == Role::Frozen => {
                    report.all -= 1;
                    continue;
                }
                None => Err("not in the file".to_owned()),
                Some(tensor) if is_class_output(&info.name) => rows.copy(info, tensor, target),
                Some(tensor) if tensor.shape == info.shape => {
                    target.copy_from_slice(&tensor.values);
                    Ok(())
                }
                Some(tensor) => Err(format!("{:?} there, {:?} here", tensor.shape, info.shape)),
            };
            match taken {
                Ok(()) => report.loaded += 1,
                Err(rule) => report.skipped.push(Skipped {
                    name: info.name.clone(),
                    rule,
                }),
            }
        }
    }
    report.classes = rows.told();
    report.unused = unused(&graph, weights);
    report
}

/// Returns a norm for each convolution of the model that the file has folded with its own: a scale of one and no
/// shift but the bias, on statistics that divide by one.
fn unfold(graph: &Graph, tensors: &BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let mut norms = BTreeMap::new();
    let variance = 1.0 - graph.norm_constants.epsilon() as f32;
    for info in &graph.parameters {
        let Some(block) = info.name.strip_suffix(".bn.weight") else {
            continue;
        };
        let bias = tensors.get(&format!("{block}.conv.bias"));
        let (Some(bias), false) = (bias, tensors.contains_key(&info.name)) else {
            continue;
        };
        let count = bias.values.len();
        let filled = |value: f32| Tensor {
            shape: vec![count],
            values: vec![value; count],
        };
        norms.insert(info.name.clone(), filled(1.0));
        norms.insert(format!("{block}.bn.bias"), bias.clone());
        norms.insert(format!("{block}.bn.running_mean"), filled(0.0));
        norms.insert(format!("{block}.bn.running_var"), filled(variance));
    }
    norms
}

/// Returns the names of the file's tensors that mean nothing to the model. Counters of batches and biases that became
/// norms are none of them.
fn unused(graph: &Graph, weights: &Weights) -> Vec<String> {
    let known: std::collections::BTreeSet<&str> = graph
        .parameters
        .iter()
        .chain(&graph.buffers)
        .map(|info| info.name.as_str())
        .collect();
    let is_unused = |name: &&String| {
        let folded = name.strip_suffix(".conv.bias");
        !known.contains(name.as_str())
            && !name.ends_with(".num_batches_tracked")
            && folded.is_none_or(|block| !known.contains(format!("{block}.bn.bias").as_str()))
    };
    weights.tensors.keys().filter(is_unused).cloned().collect()
}

/// Returns whether a tensor is the last one of a class branch: its rows are classes.
fn is_class_output(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    matches!(
        parts[..],
        ["model", _, "cv3" | "one2one_cv3", _, "2", "weight" | "bias"]
            | ["model", _, "linear", "weight" | "bias"]
            | ["model", _, "proto", "semseg", "2", "weight" | "bias"]
    )
}

/// Which row of the file's head belongs to each class of the model.
enum Rows {
    /// The classes are the same, or nothing is known of them.
    AsTheyStand,
    Named {
        classes: Vec<String>,
        sources: Vec<Option<usize>>,
    },
}

impl Rows {
    fn new(classes: &[String], source: Option<&[String]>) -> Self {
        let Some(source) = source else {
            return Self::AsTheyStand;
        };
        let folded = |names: &[String]| -> Vec<String> {
            names.iter().map(|name| name.to_lowercase()).collect()
        };
        let (wanted, known) = (folded(classes), folded(source));
        let sources: Vec<Option<usize>> = wanted
            .iter()
            .map(|name| known.iter().position(|other| other == name))
            .collect();
        let has_nothing_in_common = sources.iter().all(Option::is_none);
        if wanted == known || (has_nothing_in_common && classes.len() == source.len()) {
            return Self::AsTheyStand;
        }
        Self::Named {
            classes: classes.to_vec(),
            sources,
        }
    }

    fn copy(&self, info: &TensorInfo, tensor: &Tensor, target: &mut [f32]) -> Result<(), String> {
        let differ = || format!("{:?} there, {:?} here", tensor.shape, info.shape);
        let Self::Named { sources, .. } = self else {
            if tensor.shape != info.shape {
                return Err(differ());
            }
            target.copy_from_slice(&tensor.values);
            return Ok(());
        };
        // A row has the same length when everything but the count of classes agrees.
        if tensor.shape.get(1..) != info.shape.get(1..) {
            return Err(differ());
        }
        if sources.iter().all(Option::is_none) {
            return Err("none of its classes is known".into());
        }
        let length: usize = info.shape[1..].iter().product();
        for (row, source) in target.chunks_exact_mut(length).zip(sources) {
            let known = source.and_then(|source| tensor.values.chunks_exact(length).nth(source));
            if let Some(known) = known {
                row.copy_from_slice(known);
            }
        }
        Ok(())
    }

    fn told(&self) -> Option<[Vec<String>; 2]> {
        let Self::Named { classes, sources } = self else {
            return None;
        };
        let of = |is_known: bool| {
            let pairs = classes.iter().zip(sources);
            let chosen = pairs.filter(|(_, source)| source.is_some() == is_known);
            chosen.map(|(class, _)| class.clone()).collect()
        };
        Some([of(true), of(false)])
    }
}

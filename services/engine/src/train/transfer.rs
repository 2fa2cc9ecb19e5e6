//! Starting from the weights of another run: what fits is taken over, class by class in the head.

use crate::checkpoint::Checkpoint;
use crate::models::{self, ModelSpec};
use crate::network::State;

/// Copies every tensor of equal name and shape into `state`, and the head's rows of classes with equal names.
/// Returns what was done, in words.
pub fn transfer(
    spec: &ModelSpec,
    classes: &[String],
    state: &mut State,
    source: &Checkpoint,
) -> String {
    let from_tables = models::tables(&source.header.model);
    let to_tables = models::tables(spec);
    let from_state = source.inference_state();
    let is_same_set = source.header.classes == classes;
    let mut copied = 0;
    for to in &to_tables.parameters {
        let Some(from) = from_tables
            .parameters
            .iter()
            .find(|from| from.name == to.name)
        else {
            continue;
        };
        let values = &from_state.parameters[from.range()];
        let target = &mut state.parameters[to.range()];
        if is_class_output(&to.name) && !is_same_set {
            // Rows of one class each; a row has the same length when everything but the count of classes agrees.
            if from.shape[1..] != to.shape[1..] {
                continue;
            }
            let row: usize = to.shape[1..].iter().product();
            for (index, class) in classes.iter().enumerate() {
                let known = source
                    .header
                    .classes
                    .iter()
                    .position(|name| name.eq_ignore_ascii_case(class));
                if let Some(known) = known {
                    target[index * row..(index + 1) * row]
                        .copy_from_slice(&values[known * row..(known + 1) * row]);
                }
            }
            copied += 1;
        } else if from.shape == to.shape {
            target.copy_from_slice(values);
            copied += 1;
        }
    }
    for to in &to_tables.buffers {
        let known = from_tables
            .buffers
            .iter()
            .find(|from| from.name == to.name && from.shape == to.shape);
        if let Some(from) = known {
            state.buffers[to.range()].copy_from_slice(&from_state.buffers[from.range()]);
        }
    }
    format!(
        "weights taken over from a {}: {copied} of {} tensors",
        source.header.model.name(),
        to_tables.parameters.len()
    )
}

/// Returns whether a tensor is the last one of a head's class branch: its rows are classes.
fn is_class_output(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    matches!(parts[..], ["model", _, "cv3", _, "2", "weight" | "bias"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::tests::example;

    #[test]
    fn the_same_model_is_taken_over_whole() {
        let source = example();
        let spec = source.header.model.clone();
        let mut state = models::initialise(&spec, 99);
        let told = transfer(&spec, &source.header.classes, &mut state, &source);
        assert_eq!(state, *source.inference_state());
        assert!(
            told.starts_with("weights taken over from a yolo11n: "),
            "{told}"
        );
    }

    #[test]
    fn class_rows_follow_their_names() {
        let source = example();
        let classes = ["new".to_owned(), "CAT".to_owned(), "other".to_owned()];
        let spec = ModelSpec::parse("yolo11n", 3).unwrap();
        let fresh = models::initialise(&spec, 99);
        let mut state = fresh.clone();
        transfer(&spec, &classes, &mut state, &source);
        let tables = models::tables(&spec);
        let find = |name: &str| tables.parameters.iter().find(|t| t.name == name).unwrap();
        let weight = find("model.23.cv3.1.2.weight");
        let row = weight.shape[1];
        let rows = |state: &State| state.parameters[weight.range()].to_vec();
        let source_tables = models::tables(&source.header.model);
        let source_weight = source_tables
            .parameters
            .iter()
            .find(|t| t.name == weight.name)
            .unwrap();
        let cat = &source.inference_state().parameters[source_weight.range()][..row];
        assert_eq!(&rows(&state)[row..2 * row], cat);
        assert_eq!(rows(&state)[..row], rows(&fresh)[..row]);
        assert_eq!(rows(&state)[2 * row..], rows(&fresh)[2 * row..]);
        let first = find("model.0.conv.weight").range();
        assert_eq!(
            state.parameters[first.clone()],
            source.inference_state().parameters[first]
        );
    }
}

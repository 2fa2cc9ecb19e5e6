//! Where numbers stopped being numbers: the first tensor or layer that holds one that is not finite.

use crate::data::Batch;
use crate::models::{self, ModelSpec};
use crate::network::{Images, InputShape, Network, State};
use crate::parallel::Threads;
use crate::plan::{Mode, Options};

/// Looks at the weights, then at every layer of a forward pass of `batch` in order, and says what it found first.
pub fn first_not_finite(
    spec: &ModelSpec,
    state: &State,
    batch: &Batch,
    threads: &Threads,
) -> String {
    let is_broken = |values: &[f32]| values.iter().any(|value| !value.is_finite());
    let tables = models::tables(spec);
    for tensor in &tables.parameters {
        if is_broken(&state.parameters[tensor.range()]) {
            return format!("the weights {}", tensor.name);
        }
    }
    // All layers at once take more memory than a step, perhaps more than there is: then one picture must do.
    let network = [batch.count, 1].into_iter().find_map(|count| {
        let shape = InputShape {
            batch: count,
            height: batch.height,
            width: batch.width,
        };
        let options = Options {
            keep_everything: true,
            ..Options::new(Mode::Train, threads.count())
        };
        Network::with_options(spec, shape, options, threads).ok()
    });
    let Some(mut network) = network else {
        return "a layer (there is no memory to look at all of them)".into();
    };
    let len = network.plan().shape.pixel_count() * 3;
    network.forward(&mut state.clone(), Images::U8(&batch.images[..len]));
    let graph = models::graph(spec);
    let broken = graph.nodes.iter().find(|node| {
        let mut outputs = node.outputs.iter();
        outputs.any(|&output| {
            let values = network.value(output);
            values.is_some_and(|values| is_broken(&values))
        })
    });
    match broken {
        Some(node) => format!("the layer {}", node.name),
        None => "the loss, every layer before it is finite".into(),
    }
}

//! The networks of a run: one for each input shape met, a few held at a time.

use super::Freeze;
use crate::Result;
use crate::models::ModelSpec;
use crate::network::{InputShape, Network, State};
use crate::ops::conv2d;
use crate::parallel::Threads;
use crate::plan::{self, Mode};

/// Networks of one model for the shapes last used.
#[derive(Debug)]
pub struct Networks {
    spec: ModelSpec,
    mode: Mode,
    threads: Threads,
    held_max: usize,
    precision: conv2d::Precision,
    /// Layers whose norms keep their running statistics in training.
    freeze: Freeze,
    /// The one used last comes first.
    held: Vec<Held>,
}

#[derive(Debug)]
struct Held {
    network: Network,
    /// Whether it has the weights of now; those of training read them from the state instead.
    is_loaded: bool,
}

impl Networks {
    /// Makes room for `held_max` networks.
    pub fn new(spec: ModelSpec, mode: Mode, threads: Threads, held_max: usize) -> Self {
        Self {
            spec,
            mode,
            threads,
            held_max,
            precision: conv2d::Precision::F32,
            freeze: Freeze::default(),
            held: Vec::new(),
        }
    }

    /// Computes so in training.
    pub fn computing(self, precision: conv2d::Precision) -> Self {
        Self { precision, ..self }
    }

    /// Keeps the running statistics of the layers that are not trained.
    pub fn freezing(self, freeze: Freeze) -> Self {
        Self { freeze, ..self }
    }

    /// Returns the network for a shape, making it where none is held.
    pub fn get(&mut self, shape: InputShape) -> Result<&mut Network> {
        Ok(&mut self.bring_first(shape)?.network)
    }

    /// Returns the network for a shape with `state` loaded.
    pub fn get_loaded(&mut self, shape: InputShape, state: &State) -> Result<&mut Network> {
        let held = self.bring_first(shape)?;
        if !held.is_loaded {
            held.network.load(state);
            held.is_loaded = true;
        }
        Ok(&mut held.network)
    }

    /// Says that the weights are others now.
    pub fn forget_weights(&mut self) {
        for held in &mut self.held {
            held.is_loaded = false;
        }
    }

    fn bring_first(&mut self, shape: InputShape) -> Result<&mut Held> {
        let found = self
            .held
            .iter()
            .position(|held| held.network.plan().shape == shape);
        if let Some(index) = found {
            self.held[..=index].rotate_right(1);
        } else {
            // The memory of the one to go is free before the new one takes its own.
            self.held.truncate(self.held_max - 1);
            let mut network = match self.mode {
                Mode::Train => {
                    let options = plan::Options {
                        precision: self.precision,
                        ..plan::Options::new(Mode::Train, self.threads.count())
                    };
                    Network::with_options(&self.spec, shape, options, &self.threads)?
                }
                Mode::Infer => Network::infer_outputs(&self.spec, shape, &self.threads)?,
            };
            if !self.freeze.is_empty() {
                network.keep_statistics(|tensor| self.freeze.holds(tensor));
            }
            let held = Held {
                network,
                is_loaded: false,
            };
            self.held.insert(0, held);
        }
        Ok(&mut self.held[0])
    }
}

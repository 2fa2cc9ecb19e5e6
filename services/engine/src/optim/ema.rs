//! The exponential moving average of the model, which is what is validated, saved and deployed.

use crate::network::State;
use crate::parallel::Threads;

/// The largest weight of the past.
const DECAY_MAX: f64 = 0.9999;
/// Updates after which the decay has grown to 63 % of its maximum.
const DECAY_RAMP: f64 = 2000.0;
/// Elements averaged by one task.
const CHUNK_ELEMENTS: usize = 1 << 15;

/// The average of the parameters and of the normalisation statistics.
#[derive(Debug, Clone)]
pub struct Ema {
    state: State,
    update_count: u64,
}

impl Ema {
    /// Starts at the model's present state.
    pub fn new(state: &State) -> Self {
        Self::restore(state.clone(), 0)
    }

    /// Continues from a saved average.
    pub fn restore(state: State, update_count: u64) -> Self {
        Self {
            state,
            update_count,
        }
    }

    /// Returns the average.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns how many updates went in.
    pub fn update_count(&self) -> u64 {
        self.update_count
    }

    /// Returns the weight of the past at an update; the first one has number 1.
    pub fn decay(update_count: u64) -> f64 {
        DECAY_MAX * (1.0 - (-(update_count as f64) / DECAY_RAMP).exp())
    }

    /// Moves the average towards the model.
    pub fn update(&mut self, model: &State, threads: &Threads) {
        self.update_count += 1;
        let share = (1.0 - Self::decay(self.update_count)) as f32;
        let pairs = [
            (&mut self.state.parameters, &model.parameters),
            (&mut self.state.buffers, &model.buffers),
        ];
        let chunks = pairs.into_iter().flat_map(|(average, model)| {
            assert_eq!(
                average.len(),
                model.len(),
                "invariant: one model, one shape"
            );
            average
                .chunks_mut(CHUNK_ELEMENTS)
                .zip(model.chunks(CHUNK_ELEMENTS))
        });
        threads.run_each(chunks, |_, (average, model)| {
            for (average, &model) in average.iter_mut().zip(model) {
                // In this form what never changes stays what it is, to the bit.
                *average += share * (model - *average);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(value: f32) -> State {
        State {
            parameters: vec![value, 15.0],
            buffers: vec![-value],
        }
    }

    #[test]
    fn the_average_follows_the_model_with_a_growing_memory() {
        let threads = Threads::new(2).unwrap();
        let mut ema = Ema::new(&state(1.0));
        let mut expected = 1.0f64;
        for step in 1..=20u32 {
            let value = f64::from(step) * 0.25;
            ema.update(&state(value as f32), &threads);
            let decay = 0.9999 * (1.0 - (-f64::from(step) / 2000.0).exp());
            expected = decay * expected + (1.0 - decay) * value;
        }
        assert!((f64::from(ema.state().parameters[0]) - expected).abs() < 1e-6);
        assert_eq!(ema.state().buffers[0], -ema.state().parameters[0]);
        assert_eq!(ema.state().parameters[1], 15.0);
        assert_eq!(ema.update_count(), 20);
    }
}

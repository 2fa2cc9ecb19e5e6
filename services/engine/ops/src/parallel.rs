//! Threads for kernels: work is cut into chunks by the caller, never by the number of threads, so that
//! results are the same bits whatever the machine.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Why threads were not started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such number of threads is possible.
    #[error("must be between 1 and {}, not {count}", Threads::COUNT_MAX)]
    Count { count: usize },
    /// The system has no more.
    #[error("the system refused {count} threads: {source}")]
    Refused {
        count: usize,
        source: rayon::ThreadPoolBuildError,
    },
}

/// A fixed set of threads; cloning shares them.
#[derive(Debug, Clone)]
pub struct Threads {
    count: usize,
    /// The helpers beside the calling thread; absent for one thread.
    helpers: Option<Arc<rayon::ThreadPool>>,
}

impl Threads {
    /// The most threads one engine uses.
    pub const COUNT_MAX: usize = 1024;

    /// Starts `count` threads, counting the caller's own.
    pub fn new(count: usize) -> Result<Self, Error> {
        if count == 0 || count > Self::COUNT_MAX {
            return Err(Error::Count { count });
        }
        let helpers = if count == 1 {
            None
        } else {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(count - 1)
                .thread_name(|index| format!("engine-{index}"))
                .build()
                .map_err(|source| Error::Refused { count, source })?;
            Some(Arc::new(pool))
        };
        Ok(Self { count, helpers })
    }

    /// Starts as many threads as the process may run at once.
    pub fn available() -> Result<Self, Error> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(count.min(Self::COUNT_MAX))
    }

    /// Returns the number of threads, the caller's own included.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `work` once for each of `0..chunks`, on all threads, and returns when all calls have.
    ///
    /// Which thread takes which chunk is left to chance: a chunk must depend on its index only, and sums
    /// over chunks must be made afterwards in the order of the index.
    pub fn run(&self, chunks: usize, work: impl Fn(usize) + Sync) {
        self.run_lanes(chunks, |_, chunk| work(chunk));
    }

    /// As [`Threads::run`], and calls `work(lane, chunk)`: no two calls of one lane overlap in time and lanes
    /// are below [`Threads::count`], so that a lane may own scratch memory.
    pub fn run_lanes(&self, chunks: usize, work: impl Fn(usize, usize) + Sync) {
        let Some(helpers) = self.helpers.as_ref().filter(|_| chunks > 1) else {
            (0..chunks).for_each(|chunk| work(0, chunk));
            return;
        };
        let next = AtomicUsize::new(0);
        let drain = |lane: usize| {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    return;
                }
                work(lane, chunk);
            }
        };
        helpers.in_place_scope(|scope| {
            let drain = &drain;
            for lane in 1..self.count.min(chunks) {
                scope.spawn(move |_| drain(lane));
            }
            drain(0);
        });
    }

    /// Calls `work` once for each item with its index, on all threads; see [`Threads::run`].
    ///
    /// This is how a chunk owns what it writes to: the items may hold `&mut` slices of one vector.
    pub fn run_each<T: Send>(
        &self,
        items: impl IntoIterator<Item = T>,
        work: impl Fn(usize, T) + Sync,
    ) {
        let items: Vec<_> = items
            .into_iter()
            .map(|item| Mutex::new(Some(item)))
            .collect();
        self.run(items.len(), |index| {
            let item = items[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(item) = item {
                work(index, item);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chunk_runs_once_on_any_number_of_threads() {
        for count in [1, 2, 5] {
            let threads = Threads::new(count).unwrap();
            for chunks in [0, 1, 2, 7, 1000] {
                let seen: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                threads.run_lanes(chunks, |lane, i| {
                    assert!(lane < count);
                    seen[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn every_item_is_handed_over_once_with_its_index() {
        let mut values = vec![0; 100];
        let threads = Threads::new(3).unwrap();
        threads.run_each(values.chunks_mut(7), |index, chunk| chunk.fill(index));
        assert!((0..100).all(|i| values[i] == i / 7));
    }

    #[test]
    fn no_threads_are_refused() {
        assert!(Threads::new(0).is_err());
    }
}

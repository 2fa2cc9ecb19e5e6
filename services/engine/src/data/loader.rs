//! Prepares items on threads of its own, ahead of the one who takes them, and hands them over in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Stopwatch;
use crate::{Error, Result};

/// Items prepared or in preparation ahead of the taker, per thread.
pub const AHEAD_PER_THREAD: usize = 2;

/// Makes items 0, 1, 2, … with some threads; dropping it stops them.
pub struct Loader<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
    waited: Duration,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Told when an item is ready or taken, or all is over.
    changed: Condvar,
    count: usize,
    ahead_max: usize,
}

struct State<T> {
    /// The next item a thread begins.
    next_begun: usize,
    /// The next item handed over.
    next_taken: usize,
    ready: BTreeMap<usize, Result<T>>,
    is_over: bool,
}

impl<T: Send + 'static> Loader<T> {
    /// Starts `threads` threads (at least one) that make items `first..count` with `make`.
    pub fn start(
        first: usize,
        count: usize,
        threads: usize,
        make: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                next_begun: first,
                next_taken: first,
                ready: BTreeMap::new(),
                is_over: false,
            }),
            changed: Condvar::new(),
            count,
            ahead_max: threads * AHEAD_PER_THREAD,
        });
        let make = Arc::new(make);
        let threads = (0..threads)
            .map(|_| {
                let shared = Arc::clone(&shared);
                let make = Arc::clone(&make);
                std::thread::spawn(move || shared.work(&*make))
            })
            .collect();
        Self {
            shared,
            threads,
            waited: Duration::ZERO,
        }
    }

    /// Returns the next item, waiting until it is ready; `None` after the last.
    pub fn take(&mut self) -> Result<Option<T>> {
        let mut state = self.shared.lock();
        let index = state.next_taken;
        if index >= self.shared.count {
            return Ok(None);
        }
        if !state.ready.contains_key(&index) {
            let stopwatch = Stopwatch::start();
            while !state.ready.contains_key(&index) && !state.is_over {
                state = self.shared.wait(state);
            }
            self.waited += stopwatch.elapsed();
        }
        let item = state.ready.remove(&index).unwrap_or_else(|| {
            let rule = "a thread that prepares batches died".into();
            Err(Error::Data {
                place: format!("batch {index}"),
                rule,
            })
        });
        state.next_taken += 1;
        drop(state);
        self.shared.changed.notify_all();
        item.map(Some)
    }

    /// Returns how long the taker has waited for items.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl<T> Drop for Loader<T> {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

impl<T> Shared<T> {
    fn work(&self, make: &(dyn Fn(usize) -> Result<T> + Send + Sync)) {
        let _end = OverOnPanic(self);
        while let Some(index) = self.begin() {
            let item = make(index);
            self.lock().ready.insert(index, item);
            self.changed.notify_all();
        }
    }

    /// Takes the number of the next item to make, once there is room for it.
    fn begin(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.is_over || state.next_begun >= self.count {
                return None;
            }
            if state.next_begun < state.next_taken + self.ahead_max {
                state.next_begun += 1;
                return Some(state.next_begun - 1);
            }
            state = self.wait(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<T>>) -> MutexGuard<'a, State<T>> {
        self.changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the waiting of everybody when a thread dies.
struct OverOnPanic<'a, T>(&'a Shared<T>);

impl<T> Drop for OverOnPanic<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().is_over = true;
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn items_come_in_order_and_never_more_than_the_limit_ahead() {
        let begun = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&begun);
        let mut loader = Loader::start(5, 40, 3, move |index| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(index)
        });
        for index in 5..40 {
            assert_eq!(loader.take().unwrap(), Some(index));
            let taken = index - 4;
            assert!(begun.load(Ordering::SeqCst) <= taken + 3 * AHEAD_PER_THREAD);
        }
        assert_eq!(loader.take().unwrap(), None);
    }

    #[test]
    fn an_error_reaches_the_taker_in_its_place() {
        let mut loader = Loader::start(0, 3, 2, |index| match index {
            1 => Err(Error::Cancelled),
            _ => Ok(index),
        });
        assert_eq!(loader.take().unwrap(), Some(0));
        assert!(loader.take().is_err());
        assert_eq!(loader.take().unwrap(), Some(2));
    }

    #[test]
    fn a_thread_that_dies_is_an_error_and_no_endless_wait() {
        let mut loader: Loader<usize> = Loader::start(0, 3, 1, |_| panic!("on purpose"));
        assert!(loader.take().is_err());
    }

    #[test]
    fn a_loader_that_is_dropped_early_stops_its_threads() {
        let loader = Loader::start(0, usize::MAX, 2, Ok);
        drop(loader);
    }
}

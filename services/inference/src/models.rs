//! Models ready to answer: loaded once, kept while they are used, and asked one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use engine::checkpoint::Checkpoint;
use engine::clock::Stopwatch;
use engine::data::decode;
use engine::data::picture::Picture;
use engine::parallel::Threads;
use engine::predict::{Found, PredictOptions, Predictor};
use kit::blobs::{BlobKey, Blobs};
use kit::fault::Fault;
use kit::id::{Id, Workspace};
use tokio::sync::Mutex;

use crate::config::Config;
use crate::error::Error;

/// The largest weights file that is loaded.
const WEIGHTS_BYTES_MAX: u64 = 4 << 30;
/// The side of the grey picture that a model looks at before it counts as ready.
const WARM_SIDE: usize = 64;

/// What a prediction came to and where its time went.
#[derive(Debug)]
pub struct Predicted {
    pub found: Vec<Found>,
    pub width: usize,
    pub height: usize,
    pub decode: Duration,
    pub infer: Duration,
}

/// Models by the digest of their weights.
pub struct Models {
    blobs: Blobs,
    config: Config,
    threads: Threads,
    ready: Mutex<Ready>,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Ready {
    clock: u64,
    models: HashMap<String, (u64, Arc<Mutex<Predictor>>)>,
}

impl Models {
    /// Returns the models of this process, none of them loaded.
    pub fn new(blobs: Blobs, config: Config) -> Result<Self, Fault> {
        let threads = match config.threads {
            0 => Threads::available(),
            count => Threads::new(count),
        };
        Ok(Self {
            blobs,
            config,
            threads: threads.map_err(Fault::internal)?,
            ready: Mutex::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Makes a model ready and looks through it once, so that the first question doesn't wait for memory.
    pub async fn load(
        &self,
        workspace_id: Id<Workspace>,
        digest: &str,
        image_size: usize,
    ) -> Result<Arc<Mutex<Predictor>>, Error> {
        let mut ready = self.ready.lock().await;
        ready.clock += 1;
        let now = ready.clock;
        if let Some((used, model)) = ready.models.get_mut(digest) {
            *used = now;
            return Ok(model.clone());
        }
        let hash = blake3::Hash::from_hex(digest).map_err(Fault::internal)?;
        let key = BlobKey::new(crate::NAME, workspace_id, hash);
        let bytes = self.blobs.get(&key, WEIGHTS_BYTES_MAX).await?;
        let threads = self.threads.clone();
        let loading = tokio::task::spawn_blocking(move || -> engine::Result<Predictor> {
            let checkpoint = Checkpoint::from_bytes(&bytes, "the model's weights")?;
            let mut predictor = Predictor::new(&checkpoint, image_size, &threads)?;
            let grey = Picture::filled(WARM_SIDE, WARM_SIDE, [114; 3]);
            predictor.predict(&[&grey], &PredictOptions::default())?;
            Ok(predictor)
        });
        let model = Arc::new(Mutex::new(loading.await.map_err(Fault::internal)??));
        while ready.models.len() >= self.config.models_max.max(1) {
            let oldest = ready.models.iter().min_by_key(|(_, (used, _))| *used);
            let Some(oldest) = oldest.map(|(digest, _)| digest.clone()) else {
                break;
            };
            ready.models.remove(&oldest);
        }
        ready.models.insert(digest.to_owned(), (now, model.clone()));
        Ok(model)
    }

    /// Finds the objects in an encoded picture.
    pub async fn predict(
        &self,
        model: Arc<Mutex<Predictor>>,
        image: bytes::Bytes,
        options: PredictOptions,
    ) -> Result<Predicted, Error> {
        options.check()?;
        let _place = Place::take(&self.waiting, self.config.queue_max)?;
        let mut model = model.lock_owned().await;
        let predicting = tokio::task::spawn_blocking(move || -> Result<Predicted, Error> {
            let stopwatch = Stopwatch::start();
            let picture = decode::decode("image", &image)
                .map_err(|error| Error::ImageUnreadable(error.to_string()))?;
            let decode = stopwatch.elapsed();
            let found = model
                .predict(&[&picture], &options)?
                .pop()
                .unwrap_or_default();
            Ok(Predicted {
                found,
                width: picture.width(),
                height: picture.height(),
                decode,
                infer: stopwatch.elapsed() - decode,
            })
        });
        predicting.await.map_err(Fault::internal)?
    }
}

/// A place in the queue, given back when dropped.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(waiting: &'a AtomicUsize, most: usize) -> Result<Self, Error> {
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        let place = Self(waiting);
        if before >= most {
            Err(Error::Busy { waiting: before })
        } else {
            Ok(place)
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

//! What may be lost: rate limits, cached answers, the last snapshot of a live run.
//!
//! In the process itself, or in Redis where one is configured. Nothing may rely on it being
//! shared, nor on anything in it being there: a Redis that is away is an empty cache.

use std::sync::Arc;
use std::time::Duration;

use moka::Expiry;
use moka::future::Cache as Local;
use redis::AsyncCommands;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

use crate::config::Fleet;
use crate::fault::{Fault, Kind};

/// Entries that a process keeps at most.
const ENTRIES_MAX: u64 = 100_000;
/// The largest value.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// How long Redis may take: a slow cache is worse than none.
const REDIS_TIMEOUT: Duration = Duration::from_millis(250);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Counts within a window and says so in one step, so that a counter can't lose its end.
const INCREMENT: &str = "local n = redis.call('incr', KEYS[1])
if n == 1 then redis.call('pexpire', KEYS[1], ARGV[1]) end
return n";

/// A cache. Clones share it.
#[derive(Clone)]
pub struct Cache {
    prefix: Arc<str>,
    place: Place,
}

#[derive(Clone)]
enum Place {
    Local(Local<String, Entry>),
    Redis(ConnectionManager),
}

#[derive(Clone)]
struct Entry {
    value: Arc<[u8]>,
    count: u64,
    ttl: Duration,
}

/// Entries live as long as they were given when they were made, however often they are counted.
struct AsGiven;

impl Expiry<String, Entry> for AsGiven {
    fn expire_after_create(
        &self,
        _: &String,
        entry: &Entry,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(entry.ttl)
    }

    fn expire_after_update(
        &self,
        _: &String,
        entry: &Entry,
        _: std::time::Instant,
        left: Option<Duration>,
    ) -> Option<Duration> {
        if entry.count > 1 {
            left
        } else {
            Some(entry.ttl)
        }
    }
}

impl Cache {
    /// Opens the cache that is configured; keys of different services don't meet.
    pub async fn open(fleet: &Fleet, service: &str) -> Result<Self, Fault> {
        let prefix = format!("fovea:{service}:").into();
        let place = match &fleet.redis_url {
            None => {
                return Ok(Self {
                    prefix,
                    ..Self::local()
                });
            }
            Some(url) => {
                let failed = |error: redis::RedisError| {
                    Fault::new(
                        Kind::Unavailable,
                        "REDIS_UNREACHABLE",
                        "kit",
                        "fleet.redis_url: Redis does not answer",
                    )
                    .caused_by(error)
                };
                let client = redis::Client::open(url.expose().as_str()).map_err(failed)?;
                let config = ConnectionManagerConfig::new()
                    .set_response_timeout(Some(REDIS_TIMEOUT))
                    .set_connection_timeout(Some(CONNECT_TIMEOUT));
                let manager = client.get_connection_manager_with_config(config);
                Place::Redis(manager.await.map_err(failed)?)
            }
        };
        Ok(Self { prefix, place })
    }

    /// Returns a cache within this process.
    pub fn local() -> Self {
        let cache = Local::builder()
            .max_capacity(ENTRIES_MAX)
            .expire_after(AsGiven)
            .build();
        Self {
            prefix: "".into(),
            place: Place::Local(cache),
        }
    }

    /// Returns a value, if it is still there.
    pub async fn get(&self, key: &str) -> Option<Vec<u8>> {
        match &self.place {
            Place::Local(cache) => cache.get(&self.key(key)).await.map(|e| e.value.to_vec()),
            Place::Redis(manager) => or_empty(
                manager
                    .clone()
                    .get::<_, Option<Vec<u8>>>(self.key(key))
                    .await,
            )
            .flatten(),
        }
    }

    /// Keeps a value for a while; what is too large is not kept.
    pub async fn set(&self, key: &str, value: &[u8], ttl: Duration) {
        if value.len() > VALUE_BYTES_MAX || ttl.is_zero() {
            return;
        }
        match &self.place {
            Place::Local(cache) => {
                let entry = Entry {
                    value: value.into(),
                    count: 1,
                    ttl,
                };
                cache.insert(self.key(key), entry).await;
            }
            Place::Redis(manager) => {
                let mut redis = manager.clone();
                let set = redis.pset_ex::<_, _, ()>(self.key(key), value, millis(ttl));
                or_empty(set.await);
            }
        }
    }

    /// Forgets a value.
    pub async fn remove(&self, key: &str) {
        match &self.place {
            Place::Local(cache) => cache.invalidate(&self.key(key)).await,
            Place::Redis(manager) => {
                or_empty(manager.clone().del::<_, ()>(self.key(key)).await);
            }
        }
    }

    /// Counts one more and returns the count within the window that the first one opened; for
    /// rate limits. A cache that is away counts 1: it must not stop anybody.
    pub async fn increment(&self, key: &str, window: Duration) -> u64 {
        match &self.place {
            Place::Local(cache) => {
                let entry = cache.entry(self.key(key)).and_upsert_with(|before| {
                    let count = before.map_or(0, |entry| entry.value().count) + 1;
                    std::future::ready(Entry {
                        value: Arc::new([]),
                        count,
                        ttl: window,
                    })
                });
                entry.await.into_value().count
            }
            Place::Redis(manager) => {
                let script = redis::Script::new(INCREMENT);
                let mut call = script.key(self.key(key));
                call.arg(millis(window));
                or_empty(call.invoke_async::<u64>(&mut manager.clone()).await).unwrap_or(1)
            }
        }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match self.place {
            Place::Local(_) => "local",
            Place::Redis(_) => "redis",
        };
        out.debug_tuple("Cache").field(&place).finish()
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn or_empty<T>(answer: redis::RedisResult<T>) -> Option<T> {
    answer
        .map_err(|error| tracing::warn!(%error, "Redis does not answer; goes on without"))
        .ok()
}

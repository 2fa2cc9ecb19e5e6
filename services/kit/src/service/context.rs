//! What a service is given when it starts.

use std::sync::Arc;

use opentelemetry::metrics::Meter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::channel::{self, Channel};
use crate::auth::{Signer, Verifier};
use crate::blobs::Blobs;
use crate::bus::Bus;
use crate::cache::Cache;
use crate::config::{Config, Fleet};
use crate::fault::Fault;
use crate::store::{Migration, Store};
use crate::telemetry;
use crate::time::{Clock, Timestamp};

/// What a service is given. Clones share it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    service: &'static str,
    config: Config,
    clock: Clock,
    bus: Bus,
    blobs: Blobs,
    cache: Cache,
    signer: Signer,
    verifier: Verifier,
    shutdown: CancellationToken,
}

impl Context {
    /// Connects a service to all that it shares with others: the bus, blobs, the cache, the key.
    pub async fn start(
        config: Config,
        service: &'static str,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> Result<Self, Fault> {
        let fleet = config.fleet();
        let signer = Signer::open(&fleet.identity_key_path(), clock.clone())?;
        let bus = Bus::connect(fleet, service).await?;
        let blobs = Blobs::open(fleet, service, &signer)?;
        let cache = Cache::open(fleet, service).await?;
        let verifier = signer.verifier();
        Ok(Self(Arc::new(Inner {
            service,
            config,
            clock,
            bus,
            blobs,
            cache,
            signer,
            verifier,
            shutdown,
        })))
    }

    /// Returns the service's name.
    pub fn service(&self) -> &'static str {
        self.0.service
    }

    /// Returns all that was configured.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Returns what all services share in the configuration.
    pub fn fleet(&self) -> &Fleet {
        self.0.config.fleet()
    }

    /// Reads the service's own section of the configuration.
    pub fn section<T>(&self) -> Result<T, Fault>
    where
        T: Default + Serialize + DeserializeOwned,
    {
        Ok(self.0.config.section(self.0.service)?)
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns what the clock shows.
    pub fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// Returns the bus.
    pub fn bus(&self) -> &Bus {
        &self.0.bus
    }

    /// Returns the service's blobs.
    pub fn blobs(&self) -> &Blobs {
        &self.0.blobs
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Cache {
        &self.0.cache
    }

    /// Returns who signs identities.
    pub fn signer(&self) -> &Signer {
        &self.0.signer
    }

    /// Returns who verifies identities.
    pub fn verifier(&self) -> &Verifier {
        &self.0.verifier
    }

    /// Returns what tells every task to stop.
    pub fn shutdown(&self) -> &CancellationToken {
        &self.0.shutdown
    }

    /// Returns the meter of a domain's instruments.
    pub fn meter(&self, domain: &'static str) -> Meter {
        telemetry::meter(domain)
    }

    /// Opens the service's store and brings its schema up to date.
    pub async fn open_store(&self, migrations: &[Migration]) -> Result<Store, Fault> {
        Ok(Store::open(
            self.fleet(),
            self.service(),
            self.clock().clone(),
            migrations,
        )
        .await?)
    }

    /// Returns a channel to another service, for its generated client. It connects when it is
    /// first used, and again whenever the other side was away; calls are signed and traced.
    pub fn channel(&self, service: &str) -> Result<Channel, Fault> {
        channel::open(self, service)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Context")
            .field("service", &self.0.service)
            .finish_non_exhaustive()
    }
}

//! The section `[fleet]`: what all services share. Its defaults make one machine work.

use std::marker::PhantomData;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Secret;

/// Every service, in the order of their default ports.
pub const SERVICES: [&str; 8] = [
    "gateway",
    "accounts",
    "datasets",
    "projects",
    "billing",
    "scheduler",
    "inference",
    "worker",
];

/// What all services share.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fleet {
    /// The folder that holds all state of this machine. Default `.fovea`.
    pub data: PathBuf,
    /// Where NATS is. Default `nats://127.0.0.1:7420`, which `fovea up` starts itself.
    pub nats_url: String,
    /// Copies of each stream; above one needs a NATS cluster. Default 1.
    pub nats_replicas: usize,
    /// How much the stream of facts may hold; the oldest go first. Default `1GiB`.
    #[serde(with = "super::size")]
    pub facts_bytes_max: u64,
    /// How much the stream of telemetry may hold; the oldest goes first. Default `512MiB`.
    #[serde(with = "super::size")]
    pub telemetry_bytes_max: u64,
    /// The pause before a fact that failed is heard again; it doubles each time. Default `250ms`.
    #[serde(with = "super::duration")]
    pub fact_retry_pause: Duration,
    /// `sqlite` for one file a service in the data folder, or `postgres://…` for one schema a
    /// service. Default `sqlite`.
    pub database_url: Secret<String>,
    /// Connections a service keeps to PostgreSQL, or readers of its SQLite file. Default 8.
    pub database_connections: u32,
    /// Where Redis is; without it every process caches for itself. Default none.
    pub redis_url: Option<Secret<String>>,
    /// Where blobs are: `file:///path` or `s3://bucket`. Default the folder `blobs` in `data`.
    pub blob_url: Option<String>,
    /// The S3 endpoint, for stores that aren't AWS. Default none.
    pub s3_endpoint: Option<String>,
    /// The S3 region. Default `us-east-1`.
    pub s3_region: String,
    /// The S3 access key. Default none.
    pub s3_access_key_id: Option<String>,
    /// The S3 secret. Default none.
    pub s3_secret_access_key: Option<Secret<String>>,
    /// Where each service listens. Default `127.0.0.1`, ports 7400 to 7407.
    pub listen: Ports<Listen>,
    /// Where each service serves `/metrics` and `/healthz`. Default `127.0.0.1`, ports 7410 to
    /// 7417.
    pub metrics: Ports<Metrics>,
    /// Where others find a service, if not at the address it listens on.
    pub address: Addresses,
    /// The OpenTelemetry collector. Default none.
    pub otlp_endpoint: Option<String>,
    /// `text` or `json`. Default `text`.
    pub log_format: LogFormat,
    /// Which log lines are written, as `tracing` filters say it. Default `info`.
    pub log_filter: String,
    /// The key pair that signs identities. Default `identity.key` in `data`, made at first start.
    pub identity_key_file: Option<PathBuf>,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            data: PathBuf::from(".fovea"),
            nats_url: "nats://127.0.0.1:7420".to_owned(),
            nats_replicas: 1,
            facts_bytes_max: 1 << 30,
            telemetry_bytes_max: 512 << 20,
            fact_retry_pause: Duration::from_millis(250),
            database_url: Secret::new("sqlite".to_owned()),
            database_connections: 8,
            redis_url: None,
            blob_url: None,
            s3_endpoint: None,
            s3_region: "us-east-1".to_owned(),
            s3_access_key_id: None,
            s3_secret_access_key: None,
            listen: Ports::default(),
            metrics: Ports::default(),
            address: Addresses::default(),
            otlp_endpoint: None,
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
            identity_key_file: None,
        }
    }
}

impl Fleet {
    /// Returns the address a client calls a service at.
    pub fn service_url(&self, service: &str) -> Option<String> {
        let listens = self.listen.get(service)?;
        Some(match self.address.get(service) {
            Some(address) => address.to_owned(),
            None => format!("http://{listens}"),
        })
    }

    /// Returns the file of the key pair that signs identities.
    pub fn identity_key_path(&self) -> PathBuf {
        self.identity_key_file
            .clone()
            .unwrap_or_else(|| self.data.join("identity.key"))
    }

    /// Returns the folder for what a running process writes and nobody misses afterwards.
    pub fn run_folder(&self) -> PathBuf {
        self.data.join("run")
    }

    /// Returns the same fleet with another data folder; for tests.
    #[must_use]
    pub fn in_folder(mut self, data: &Path) -> Self {
        self.data = data.to_owned();
        self
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line, for machines.
    Json,
}

/// What a row of ports is for, and so where it begins.
pub trait FirstPort: 'static {
    /// The port of the first service.
    const FIRST: u16;
}

/// The ports of gRPC, and of HTTP at the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {}

impl FirstPort for Listen {
    const FIRST: u16 = 7400;
}

/// The ports of `/metrics` and `/healthz`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metrics {}

impl FirstPort for Metrics {
    const FIRST: u16 = 7410;
}

/// One address a service, by default on loopback, in the order of [`SERVICES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, bound = "F: FirstPort")]
#[expect(missing_docs, reason = "the fields are the services")]
pub struct Ports<F> {
    pub gateway: SocketAddr,
    pub accounts: SocketAddr,
    pub datasets: SocketAddr,
    pub projects: SocketAddr,
    pub billing: SocketAddr,
    pub scheduler: SocketAddr,
    pub inference: SocketAddr,
    pub worker: SocketAddr,
    #[serde(skip)]
    first: PhantomData<F>,
}

impl<F: FirstPort> Default for Ports<F> {
    fn default() -> Self {
        let at = |offset| SocketAddr::from((Ipv4Addr::LOCALHOST, F::FIRST + offset));
        Self {
            gateway: at(0),
            accounts: at(1),
            datasets: at(2),
            projects: at(3),
            billing: at(4),
            scheduler: at(5),
            inference: at(6),
            worker: at(7),
            first: PhantomData,
        }
    }
}

impl<F> Ports<F> {
    /// Returns a service's address.
    pub fn get(&self, service: &str) -> Option<SocketAddr> {
        Some(match service {
            "gateway" => self.gateway,
            "accounts" => self.accounts,
            "datasets" => self.datasets,
            "projects" => self.projects,
            "billing" => self.billing,
            "scheduler" => self.scheduler,
            "inference" => self.inference,
            "worker" => self.worker,
            _ => return None,
        })
    }
}

/// Where others find a service: `http://host:port`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are the services")]
pub struct Addresses {
    pub gateway: Option<String>,
    pub accounts: Option<String>,
    pub datasets: Option<String>,
    pub projects: Option<String>,
    pub billing: Option<String>,
    pub scheduler: Option<String>,
    pub inference: Option<String>,
}

impl Addresses {
    /// Returns the address that was given for a service.
    pub fn get(&self, service: &str) -> Option<&str> {
        let address = match service {
            "gateway" => &self.gateway,
            "accounts" => &self.accounts,
            "datasets" => &self.datasets,
            "projects" => &self.projects,
            "billing" => &self.billing,
            "scheduler" => &self.scheduler,
            "inference" => &self.inference,
            _ => return None,
        };
        address.as_deref()
    }
}

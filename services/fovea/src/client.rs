//! The way to a fleet: where it is, the key to call it with, and the clients of its services.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use anyhow::{Context as _, Result, bail};
use proto::fovea::accounts::v1::account_service_client::AccountServiceClient;
use proto::fovea::billing::v1::billing_service_client::BillingServiceClient;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::endpoints::v1::endpoint_service_client::EndpointServiceClient;
use proto::fovea::events::v1::event_service_client::EventServiceClient;
use proto::fovea::fleet::v1::fleet_service_client::FleetServiceClient;
use proto::fovea::jobs::v1::job_service_client::JobServiceClient;
use proto::fovea::models::v1::model_service_client::ModelServiceClient;
use proto::fovea::projects::v1::project_service_client::ProjectServiceClient;
use proto::fovea::runs::v1::run_service_client::RunServiceClient;
use serde::{Deserialize, Serialize};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Where `fovea up` listens.
pub const DEFAULT_URL: &str = "http://127.0.0.1:7400";
/// The largest message either way.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What `fovea login` remembers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Credentials {
    pub url: String,
    pub key: String,
}

impl Credentials {
    /// Returns where they are kept for this user.
    pub fn path() -> Result<PathBuf> {
        let folder = std::env::var_os("XDG_CONFIG_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".config")))
            .context("there is no home folder to keep credentials in: set XDG_CONFIG_HOME")?;
        Ok(folder.join("fovea").join("credentials.toml"))
    }

    /// Reads them; `FOVEA_URL` and `FOVEA_KEY` win over the file.
    pub fn load() -> Result<Self> {
        let path = Self::path()?;
        let text = |name: &str| std::env::var_os(name).and_then(|value| value.into_string().ok());
        let saved = match std::fs::read_to_string(&path) {
            Ok(content) => Some(
                toml::from_str::<Self>(&content)
                    .with_context(|| format!("{}: not what `fovea login` wrote", path.display()))?,
            ),
            Err(_) => None,
        };
        let url = text("FOVEA_URL").or_else(|| saved.as_ref().map(|saved| saved.url.clone()));
        let key = text("FOVEA_KEY").or_else(|| saved.map(|saved| saved.key));
        match key {
            Some(key) => Ok(Self {
                url: url.unwrap_or_else(|| DEFAULT_URL.to_owned()),
                key,
            }),
            None => bail!("not logged in: run `fovea login`, or set FOVEA_URL and FOVEA_KEY"),
        }
    }

    /// Writes them for this user alone.
    pub fn save(&self) -> Result<PathBuf> {
        let path = Self::path()?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        write_private(&path, &toml::to_string(self)?)?;
        Ok(path)
    }
}

fn write_private(path: &Path, content: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let place = || path.display().to_string();
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).with_context(place)?;
    file.write_all(content.as_bytes()).with_context(place)
}

/// Puts the key on every call.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request
            .metadata_mut()
            .insert("authorization", self.0.clone());
        Ok(request)
    }
}

type Service = InterceptedService<Channel, Bearer>;

/// A fleet and the key to it.
#[derive(Clone)]
pub struct Fleet {
    service: Service,
    credentials: Credentials,
    http: reqwest::Client,
}

macro_rules! clients {
    ($($name:ident: $client:ident,)*) => {
        $(
            #[doc = concat!("Returns a client of `", stringify!($client), "`.")]
            pub fn $name(&self) -> $client<Service> {
                $client::new(self.service.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
            }
        )*
    };
}

impl Fleet {
    /// Makes clients with what `fovea login` remembered. Nothing is sent yet.
    pub fn open() -> Result<Self> {
        Self::new(Credentials::load()?)
    }

    /// Makes clients with these credentials.
    pub fn new(credentials: Credentials) -> Result<Self> {
        let channel = Endpoint::from_str(&credentials.url)
            .with_context(|| format!("'{}' is not an address", credentials.url))?
            .connect_lazy();
        let bearer = format!("Bearer {}", credentials.key)
            .parse()
            .context("the key holds characters that a header can't carry")?;
        Ok(Self {
            service: InterceptedService::new(channel, Bearer(bearer)),
            http: reqwest::Client::new(),
            credentials,
        })
    }

    /// Returns the absolute form of an address that the fleet gave, and a client to use it with.
    pub fn address(&self, url: &str) -> String {
        if url.starts_with('/') {
            format!("{}{url}", self.credentials.url)
        } else {
            url.to_owned()
        }
    }

    /// Returns an HTTP request to the gateway with the key on it.
    pub fn http(&self, method: reqwest::Method, url: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, self.address(url))
            .bearer_auth(&self.credentials.key)
    }

    /// Returns an HTTP request that carries no key, for signed addresses.
    pub fn signed(&self, url: &str) -> reqwest::RequestBuilder {
        self.http.get(self.address(url))
    }

    clients! {
        accounts: AccountServiceClient,
        billing: BillingServiceClient,
        datasets: DatasetServiceClient,
        endpoints: EndpointServiceClient,
        events: EventServiceClient,
        fleet: FleetServiceClient,
        jobs: JobServiceClient,
        models: ModelServiceClient,
        projects: ProjectServiceClient,
        runs: RunServiceClient,
    }
}

//! `fovea up`: a supervisor that makes one machine behave like a fleet. It starts `nats-server` and one process for
//! each service from this same binary, starts again what ends, and stops all of them with itself.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kit::config::{Config, SERVICES};
use kit::process::{Nats, supervise};
use kit::service::{Tasks, shutdown_on_signal};
use proto::fovea::accounts::v1::CreateSignInTokenRequest;
use proto::fovea::fleet::v1::ListWorkersRequest;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::cli;
use crate::client::{Credentials, Fleet};
use crate::output::{line, remark};
use crate::serve;

/// How long the fleet may take to answer for the first time.
const READY_POLLS_MAX: u32 = 600;
const READY_POLL: Duration = Duration::from_millis(100);
/// The pause before `nats-server` is started again, doubled while it keeps ending.
const NATS_PAUSE: Duration = Duration::from_millis(200);
const NATS_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Runs the fleet until the process is asked to stop.
pub async fn run(config_file: Option<&Path>, command: cli::Up) -> Result<()> {
    let mut overrides = Vec::new();
    if let Some(data) = &command.data {
        let data = std::path::absolute(data)?;
        overrides.push(("FOVEA_FLEET__DATA".to_owned(), data.display().to_string()));
    }
    let config = Config::load_with(config_file, overrides.clone())?;
    serve::settings(&config)?;
    let data = std::path::absolute(&config.fleet().data)?;
    std::fs::create_dir_all(&data).with_context(|| data.display().to_string())?;
    let telemetry = kit::telemetry::start(config.fleet(), "supervisor")?;
    let shutdown = CancellationToken::new();
    shutdown_on_signal(&shutdown)?;
    let services: Vec<&'static str> = SERVICES
        .into_iter()
        .filter(|service| !(command.no_worker && *service == worker::NAME))
        .collect();
    require_free_ports(&config, &services)?;

    let mut tasks = Tasks::new(&shutdown);
    if config.is_default("fleet.nats_url") || nats_is_ours(&config) {
        let nats = start_nats(&config, &data).await?;
        let (config, data, stop) = (config.clone(), data.clone(), shutdown.clone());
        tasks.spawn("nats", keep_nats(nats, config, data, stop));
    }
    let binary = std::env::current_exe()?;
    for service in services {
        let child = Child {
            binary: binary.clone(),
            service,
            config_file: config_file.map(Path::to_path_buf),
            overrides: overrides.clone(),
        };
        let stop = shutdown.clone();
        tasks.spawn(service, async move {
            supervise(service, || child.command(), |_| {}, stop).await
        });
    }
    let has_worker = !command.no_worker;
    tasks.spawn(
        "greeting",
        greet(config, data, has_worker, shutdown.clone()),
    );
    let outcome = tasks.run().await;
    telemetry.stop().await;
    Ok(outcome?)
}

struct Child {
    binary: PathBuf,
    service: &'static str,
    config_file: Option<PathBuf>,
    overrides: Vec<(String, String)>,
}

impl Child {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .arg("serve")
            .arg(self.service)
            .envs(self.overrides.clone());
        if let Some(file) = &self.config_file {
            command.arg("--config").arg(file);
        }
        command
    }
}

/// A port that is taken is told before anything starts, with the key that changes it.
fn require_free_ports(config: &Config, services: &[&'static str]) -> Result<()> {
    let fleet = config.fleet();
    let mut taken = Vec::new();
    for service in services {
        let ports = [
            ("listen", fleet.listen.get(service)),
            ("metrics", fleet.metrics.get(service)),
        ];
        for (kind, address) in ports {
            // A worker is never called.
            let is_used = kind == "metrics" || *service != worker::NAME;
            let Some(address) = address.filter(|_| is_used) else {
                continue;
            };
            if let Err(error) = TcpListener::bind(address) {
                taken.push(format!(
                    "{address}: {error}; `fleet.{kind}.{service}` (or FOVEA_FLEET__{}__{}) chooses another",
                    kind.to_uppercase(),
                    service.to_uppercase()
                ));
            }
        }
    }
    if !taken.is_empty() {
        bail!("can't listen:\n  {}", taken.join("\n  "));
    }
    Ok(())
}

/// An address on loopback that was set for `fovea up` names the port our own server takes.
fn nats_is_ours(config: &Config) -> bool {
    let url = &config.fleet().nats_url;
    let is_loopback = url.contains("//127.0.0.1:") || url.contains("//localhost:");
    let in_use =
        nats_port(config).is_ok_and(|port| TcpListener::bind(("127.0.0.1", port)).is_err());
    is_loopback && !in_use
}

fn nats_port(config: &Config) -> Result<u16> {
    let url = &config.fleet().nats_url;
    let port = url
        .rsplit(':')
        .next()
        .and_then(|port| port.trim_end_matches('/').parse().ok());
    port.with_context(|| format!("fleet.nats_url: '{url}' has no port"))
}

async fn start_nats(config: &Config, data: &Path) -> Result<Nats> {
    let port = nats_port(config)?;
    Ok(Nats::start(data, &config.fleet().run_folder(), port).await?)
}

/// Starts `nats-server` again whenever it ends; clients find it on the same port.
async fn keep_nats(
    nats: Nats,
    config: Config,
    data: PathBuf,
    shutdown: CancellationToken,
) -> Result<(), kit::Fault> {
    let mut running = Some(nats);
    let mut pause = NATS_PAUSE;
    loop {
        if let Some(mut nats) = running.take() {
            tokio::select! {
                status = nats.wait() => {
                    let status = status?;
                    tracing::warn!(%status, "nats-server ended and starts again");
                }
                () = shutdown.cancelled() => {
                    nats.stop().await;
                    return Ok(());
                }
            }
        }
        if shutdown
            .run_until_cancelled(tokio::time::sleep(pause))
            .await
            .is_none()
        {
            return Ok(());
        }
        match start_nats(&config, &data).await {
            Ok(nats) => {
                running = Some(nats);
                pause = NATS_PAUSE;
            }
            Err(error) => {
                tracing::error!("nats-server doesn't start: {error:#}");
                pause = Ord::min(pause * 2, NATS_PAUSE_MAX);
            }
        }
    }
}

/// Says where the fleet is once it answers and can train.
async fn greet(
    config: Config,
    data: PathBuf,
    has_worker: bool,
    shutdown: CancellationToken,
) -> Result<(), kit::Fault> {
    let url = config
        .fleet()
        .service_url(gateway::NAME)
        .unwrap_or_default();
    let asked = shutdown
        .run_until_cancelled(sign_in_link(&url, &data, has_worker))
        .await;
    match asked {
        Some(Ok(link)) => {
            line(format!("fovea is up at {url}"));
            line(format!("  in a browser, once:  {link}"));
            line(format!(
                "  on the command line: FOVEA_FLEET__DATA={} fovea login --url {url}",
                data.display()
            ));
            line("  Ctrl-C stops everything");
        }
        Some(Err(error)) => remark(format!("the fleet doesn't answer yet: {error:#}")),
        None => {}
    }
    shutdown.cancelled().await;
    Ok(())
}

async fn sign_in_link(url: &str, data: &Path, has_worker: bool) -> Result<String> {
    let mut last = None;
    let mut polls = 0..READY_POLLS_MAX;
    while polls.next().is_some() {
        tokio::time::sleep(READY_POLL).await;
        let Ok(key) = std::fs::read_to_string(data.join("admin.key")) else {
            continue;
        };
        let credentials = Credentials {
            url: url.to_owned(),
            key: key.trim().to_owned(),
        };
        let fleet = Fleet::new(credentials)?;
        match fleet
            .accounts()
            .create_sign_in_token(CreateSignInTokenRequest {})
            .await
        {
            Ok(answer) => {
                if has_worker {
                    wait_for_worker(&fleet, polls).await;
                }
                return Ok(format!("{url}/sign-in?token={}", answer.into_inner().token));
            }
            Err(status) => last = Some(status),
        }
    }
    match last {
        Some(status) => Err(status.into()),
        None => bail!("there is no {}", data.join("admin.key").display()),
    }
}

/// Waits until the worker has measured its device and registered: a run started before would be refused because
/// nobody offers the device.
async fn wait_for_worker(fleet: &Fleet, polls: std::ops::Range<u32>) {
    for _ in polls {
        if let Ok(answer) = fleet.fleet().list_workers(ListWorkersRequest {}).await {
            let workers = answer.into_inner().workers;
            if workers
                .iter()
                .any(|worker| ["idle", "busy"].contains(&worker.state.as_str()))
            {
                return;
            }
        }
        tokio::time::sleep(READY_POLL).await;
    }
    remark("no worker has registered yet; runs can't be started until one does");
}

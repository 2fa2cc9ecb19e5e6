//! A NATS server as a child: found, checked, started on its port, and known to be ready.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use super::Child;
use crate::bus::{NATS_VERSION_MIN, version};
use crate::config::environment;
use crate::fault::{Fault, Kind};

/// How long a server may take until it answers with JetStream.
const READY_TIMEOUT: Duration = Duration::from_secs(20);
const READY_POLL: Duration = Duration::from_millis(20);
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
const BINARY: &str = "nats-server";
/// The largest message: above the largest fact and sample.
const MAX_PAYLOAD: &str = "4MB";

/// A running server; stopped by [`Nats::stop`], killed when dropped.
pub struct Nats {
    child: Child,
    url: String,
}

impl Nats {
    /// Starts a server on this port of loopback, where clients find it again after a restart. It keeps its
    /// streams in `<data>/nats`; returns when it is ready.
    /// `run` is a folder for its port file, see [`Fleet::run_folder`](crate::config::Fleet).
    pub async fn start(data: &Path, run: &Path, port: u16) -> Result<Self, Fault> {
        let binary = find_nats_server(data).await?;
        let folder_failed = |error: std::io::Error| Fault::internal(error);
        // A server that was killed leaves its file behind: a folder of its own has none.
        std::fs::create_dir_all(run).map_err(folder_failed)?;
        let run = tempfile::Builder::new()
            .prefix("nats-")
            .tempdir_in(run)
            .map_err(folder_failed)?;
        require_free(port)?;
        let config = write_config(run.path()).map_err(folder_failed)?;
        let mut command = Command::new(&binary);
        command
            .args([
                "-a",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-m",
                "-1",
                "-js",
                "-c",
            ])
            .arg(config)
            .arg("--ports_file_dir")
            .arg(run.path())
            .arg("-sd")
            .arg(data.join("nats"));
        let child = Child::spawn(command, BINARY)?;
        let mut nats = Self {
            child,
            url: String::new(),
        };
        nats.url = nats.wait_until_ready(run.path()).await?;
        tracing::info!(url = nats.url, binary = %binary.display(), "started nats-server");
        Ok(nats)
    }

    /// Returns where clients connect.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits until the server ends, which it should not.
    pub async fn wait(&mut self) -> Result<std::process::ExitStatus, Fault> {
        self.child.wait().await
    }

    /// Asks the server to end and waits for it.
    pub async fn stop(self) {
        self.child.stop().await;
    }

    /// Kills the server.
    pub async fn kill(mut self) {
        self.child.kill().await;
    }

    async fn wait_until_ready(&mut self, run: &Path) -> Result<String, Fault> {
        let ready = async {
            loop {
                tokio::select! {
                    status = self.child.wait() => {
                        let message = format!("nats-server ended at its start: {}", status?);
                        return Err(Fault::new(Kind::Internal, "NATS_NOT_STARTED", "kit", message));
                    }
                    () = tokio::time::sleep(READY_POLL) => {}
                }
                if let Some((url, monitor)) = read_ports(run)
                    && is_ready(&monitor).await
                {
                    return Ok(url);
                }
            }
        };
        tokio::time::timeout(READY_TIMEOUT, ready)
            .await
            .map_err(|_| {
                let message = format!("nats-server was not ready within {READY_TIMEOUT:?}");
                Fault::new(Kind::Timeout, "NATS_NOT_STARTED", "kit", message)
            })?
    }
}

/// Returns a server that is new enough: `$FOVEA_NATS_SERVER`, `<data>/bin`, where
/// `scripts/setup.sh` puts it, `PATH`, or `/usr/sbin`.
pub async fn find_nats_server(data: &Path) -> Result<PathBuf, Fault> {
    let mut too_old = None;
    for candidate in candidates(data) {
        if !candidate.is_file() {
            continue;
        }
        match version_of(&candidate).await {
            Some(found) if version(&found) >= version(NATS_VERSION_MIN) => return Ok(candidate),
            Some(found) => too_old = Some(format!("{} is {found}", candidate.display())),
            None => tracing::debug!(path = %candidate.display(), "is no nats-server"),
        }
    }
    let found = too_old.map_or_else(|| "none was found".to_owned(), |old| format!("only {old}"));
    let message = format!(
        "nats-server {NATS_VERSION_MIN} or newer is needed, {found}: run scripts/setup.sh, which \
         installs it, or name one in FOVEA_NATS_SERVER"
    );
    Err(Fault::new(
        Kind::Precondition,
        "NATS_SERVER_MISSING",
        "kit",
        message,
    ))
}

fn candidates(data: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    paths.extend(environment("FOVEA_NATS_SERVER").map(PathBuf::from));
    paths.push(data.join("bin").join(BINARY));
    let installed = environment("FOVEA_BIN")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(environment("HOME")?).join(".cache/fovea/bin")));
    paths.extend(installed.map(|folder| folder.join(BINARY)));
    let path = environment("PATH").unwrap_or_default();
    paths.extend(std::env::split_paths(&path).map(|folder| folder.join(BINARY)));
    // Debian's place, which is not on everybody's PATH.
    paths.push(Path::new("/usr/sbin").join(BINARY));
    paths
}

/// Returns `2.15.1` of `nats-server: v2.15.1`.
async fn version_of(binary: &Path) -> Option<String> {
    let asked = Command::new(binary)
        .arg("--version")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, asked)
        .await
        .ok()?
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, version) = text.trim().rsplit_once('v')?;
    version
        .starts_with(|c: char| c.is_ascii_digit())
        .then(|| version.to_owned())
}

fn require_free(port: u16) -> Result<(), Fault> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    TcpListener::bind(address)
        .map(drop)
        .map_err(|error| crate::service::port_fault(&error, address, "fleet.nats_url"))
}

/// Writes what has no flag.
fn write_config(run: &Path) -> std::io::Result<PathBuf> {
    let path = run.join("nats.conf");
    let mut file = std::fs::File::create(&path)?;
    writeln!(file, "max_payload: {MAX_PAYLOAD}")?;
    Ok(path)
}

/// Reads the addresses that the server wrote, once they are there.
fn read_ports(run: &Path) -> Option<(String, String)> {
    #[derive(serde::Deserialize)]
    struct Ports {
        nats: Vec<String>,
        monitoring: Vec<String>,
    }
    let file = std::fs::read_dir(run)
        .ok()?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| {
            path.extension()
                .is_some_and(|extension| extension == "ports")
        })?;
    let ports: Ports = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    Some((
        ports.nats.into_iter().next()?,
        ports.monitoring.into_iter().next()?,
    ))
}

async fn is_ready(monitor: &str) -> bool {
    let address = monitor.trim_start_matches("http://").to_owned();
    let asked = async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(&address).await?;
        let request =
            format!("GET /healthz?js-enabled-only=true HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(VERSION_TIMEOUT, asked).await {
        Ok(Ok(answer)) => answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"),
        Ok(Err(_)) | Err(_) => false,
    }
}

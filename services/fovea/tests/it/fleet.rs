//! A whole fleet of a test's own: the real binary, its own folder, free ports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use engine::clock::Stopwatch;
use kit::testing::free_port;
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(50);
const SERVICES: [&str; 8] = [
    "gateway",
    "accounts",
    "datasets",
    "projects",
    "billing",
    "scheduler",
    "inference",
    "worker",
];

/// A running fleet and a user who is logged in to it.
pub struct Fleet {
    folder: TempDir,
    environment: BTreeMap<String, String>,
    supervisor: Option<Child>,
    pub url: String,
}

impl Fleet {
    /// Starts `fovea up` and logs in.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts `fovea up` with more configuration, and logs in.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let mut fleet = Self::prepare(settings);
        fleet.up();
        fleet
    }

    /// Returns a fleet that isn't started.
    pub fn prepare(settings: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = BTreeMap::new();
        let mut url = String::new();
        for kind in ["LISTEN", "METRICS"] {
            for service in SERVICES {
                let address = format!("127.0.0.1:{}", free_port());
                if (kind, service) == ("LISTEN", "gateway") {
                    url = format!("http://{address}");
                }
                environment.insert(
                    format!("FOVEA_FLEET__{kind}__{}", service.to_uppercase()),
                    address,
                );
            }
        }
        let nats = format!("nats://127.0.0.1:{}", free_port());
        environment.insert("FOVEA_FLEET__NATS_URL".into(), nats);
        let data = folder.path().join("data").display().to_string();
        environment.insert("FOVEA_FLEET__DATA".into(), data);
        let home = folder.path().join("config").display().to_string();
        environment.insert("XDG_CONFIG_HOME".into(), home);
        for (name, value) in settings {
            environment.insert((*name).to_owned(), (*value).to_owned());
        }
        Self {
            folder,
            environment,
            supervisor: None,
            url,
        }
    }

    fn up(&mut self) {
        let log = std::fs::File::create(self.path("fleet.log")).unwrap();
        let mut command = self.command(&["up"]);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.supervisor = Some(command.spawn().unwrap());
        // From that word on a run can be started.
        self.wait_for("the fleet says that it is up", || {
            let log = std::fs::read_to_string(self.path("fleet.log")).unwrap();
            log.contains("fovea is up").then_some(())
        });
        self.log_in();
    }

    /// Waits until the fleet answers and logs in with the key it wrote.
    pub fn log_in(&self) {
        let url = self.url.clone();
        self.wait_for("the fleet answers", || {
            let output = self.run(&["login", "--url", &url]);
            output.status.success().then_some(())
        });
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        PathBuf::from(&self.environment["FOVEA_FLEET__DATA"])
    }

    pub fn setting(&self, name: &str) -> &str {
        &self.environment[name]
    }

    pub fn has_setting(&self, name: &str) -> bool {
        self.environment.contains_key(name)
    }

    /// Returns the binary with arguments and this fleet's environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fovea"));
        command
            .args(arguments)
            .envs(&self.environment)
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that has to succeed, and returns what it printed as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{arguments:?}: {text}{}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.log_tail()
        );
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Runs a command that has to fail, and returns its exit code and the reason it gave.
    pub fn refused(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(&[&["--json"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{arguments:?} succeeded: {text}");
        let last = text.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(last).unwrap_or_default();
        let reason = value["error"]["reason"].as_str().unwrap_or_default();
        (output.status.code().unwrap_or(-1), reason.to_owned())
    }

    /// Makes a sample dataset, imports it and returns the import.
    pub fn import_sample(&self, name: &str, images: usize, size: usize) -> Value {
        let zip = self.path(&format!("{name}.zip"));
        let zip = zip.to_str().unwrap();
        let (images, size) = (images.to_string(), size.to_string());
        let made = self.run(&[
            "datasets", "sample", zip, "--images", &images, "--size", &size,
        ]);
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        self.json(&["datasets", "import", zip, "--name", name])
    }

    /// Waits until a worker has registered.
    pub fn wait_for_worker(&self, dataset: &str) {
        self.wait_for("a worker registers", || {
            let estimate = self.json(&["estimate", "--dataset", dataset, "--gpu", "cpu"]);
            (estimate["devices"][0]["is_offered"] == true).then_some(())
        });
    }

    /// Waits until a run is in one of these states, and returns it.
    pub fn run_in(&self, run: &str, states: &[&str]) -> Value {
        self.wait_for(&format!("{run} is {states:?}"), || {
            let run = self.json(&["runs", "show", run]);
            let state = run["state"].as_str().unwrap_or_default();
            states
                .iter()
                .any(|wanted| state == format!("RUN_STATE_{wanted}"))
                .then_some(run)
        })
    }

    /// Waits until the last charge of a run is posted, and returns it.
    pub fn settled(&self, run: &str) -> Value {
        self.wait_for("the run is settled", || {
            let charge = self.json(&["billing", "charge", run]);
            (charge["is_settled"] == true).then_some(charge)
        })
    }

    pub fn wait_for<T>(&self, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let waited = Stopwatch::start();
        loop {
            if let Some(value) = condition() {
                return value;
            }
            assert!(
                waited.elapsed() < PATIENCE,
                "waited too long until {what}\n{}",
                self.log_tail()
            );
            std::thread::sleep(POLL);
        }
    }

    /// Returns the process ids of a service's process, or of `nats-server`.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let marker = match name {
            "nats-server" => self.data().join("nats").display().to_string(),
            _ => self.environment["FOVEA_FLEET__DATA"].clone(),
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            let is_it = if name == "nats-server" {
                arguments.contains("nats-server") && arguments.contains(&marker)
            } else {
                let environment = String::from_utf8_lossy(&read("environ")).into_owned();
                arguments.contains(&format!("serve {name}")) && environment.contains(&marker)
            };
            if is_it {
                found.push(pid);
            }
        }
        found
    }

    /// Kills a process of the fleet at once, and waits until another has taken its place.
    pub fn kill(&self, name: &str) {
        let before = self.wait_for(&format!("{name} runs"), || {
            let pids = self.processes(name);
            (!pids.is_empty()).then_some(pids)
        });
        for pid in &before {
            let killed = Command::new("kill")
                .args(["-9", &pid.to_string()])
                .status()
                .unwrap();
            assert!(killed.success(), "{name} was gone before it was killed");
        }
        self.wait_for(&format!("{name} runs again"), || {
            self.processes(name)
                .iter()
                .any(|pid| !before.contains(pid))
                .then_some(())
        });
    }

    /// Returns the end of the fleet's log, for failures.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(self.path("fleet.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if let Some(mut supervisor) = self.supervisor.take() {
            // A failure here leaves processes that end with the supervisor anyway.
            let _ = Command::new("kill")
                .arg(supervisor.id().to_string())
                .status();
            let _ = supervisor.wait();
        }
    }
}

/// Returns a span of the contract's JSON, such as `12.5s`, in seconds.
pub fn seconds(value: &Value) -> f64 {
    let text = value.as_str().unwrap_or("0s");
    text.trim_end_matches('s').parse().unwrap()
}

/// Returns a 64-bit number of the contract's JSON, which is a text there.
pub fn number(value: &Value) -> i64 {
    value
        .as_str()
        .map_or_else(|| value.as_i64().unwrap(), |text| text.parse().unwrap())
}

/// Returns the repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

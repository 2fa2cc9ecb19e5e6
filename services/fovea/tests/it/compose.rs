//! The compose file's command lines, run for real: one process for each service on PostgreSQL and Redis.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};

use kit::testing::{TestDatabase, TestNats};
use serde_yaml::Value;

use crate::fleet::{Fleet, root};

#[test]
fn every_service_of_the_compose_file_runs_and_together_they_train() {
    let file = std::fs::read_to_string(root().join("docker-compose.yml")).unwrap();
    let compose: Value = serde_yaml::from_str(&file).unwrap();
    let services = services(&compose);
    assert_eq!(services.len(), 8, "{:?}", services.keys());

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (nats, database, redis) = runtime.block_on(async {
        let postgres = TestDatabase::postgres().await;
        (
            TestNats::start().await,
            postgres,
            kit::testing::redis().await,
        )
    });
    let (Some(database), Some(redis)) = (database, redis) else {
        return;
    };
    let fleet = Fleet::prepare(&[
        ("FOVEA_FLEET__NATS_URL", &nats.url()),
        ("FOVEA_FLEET__DATABASE_URL", database.url()),
        ("FOVEA_FLEET__REDIS_URL", &redis),
    ]);
    let children: Vec<Process> = services
        .iter()
        .map(|(name, service)| {
            let arguments: Vec<&str> = service.command.iter().map(String::as_str).collect();
            let mut command = fleet.command(&arguments);
            // The file's keys, with this machine's values; a key that doesn't exist stops the process.
            for (key, value) in &service.environment {
                let is_local = key.contains("__ADDRESS__")
                    || key.ends_with("__OTLP_ENDPOINT")
                    || key.ends_with("__FOLDER");
                if !is_local && !fleet.has_setting(key) {
                    command.env(key, value);
                }
            }
            let log = std::fs::File::create(fleet.path(&format!("{name}.log"))).unwrap();
            command.stdout(Stdio::null()).stderr(log);
            Process(command.spawn().unwrap())
        })
        .collect();
    assert_eq!(children.len(), 8);
    fleet.log_in();
    fleet.json(&["billing", "top-up", "5"]);
    fleet.import_sample("shapes", 24, 64);
    fleet.wait_for_worker("shapes");
    let trained = fleet.run(&[
        "train",
        "--dataset",
        "shapes",
        "--epochs",
        "1",
        "--imgsz",
        "64",
        "--batch",
        "8",
        "--name",
        "run",
    ]);
    assert!(
        trained.status.success(),
        "{}",
        String::from_utf8_lossy(&trained.stderr)
    );
    fleet.settled("run");
    fleet.json(&["billing", "check"]);
    drop(children);
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Service {
    command: Vec<String>,
    environment: BTreeMap<String, String>,
}

/// Returns the services that run our image, with merge keys resolved.
fn services(compose: &Value) -> BTreeMap<String, Service> {
    let mut found = BTreeMap::new();
    for (name, service) in compose["services"].as_mapping().unwrap() {
        let get = |key: &str| merged(service, key);
        let is_ours = get("image").is_some_and(|image| image.as_str() == Some("fovea:latest"));
        if !is_ours {
            continue;
        }
        let command = get("command").unwrap();
        let command = command.as_sequence().unwrap().iter().map(text).collect();
        let mut environment = BTreeMap::new();
        collect(&get("environment").unwrap(), &mut environment);
        found.insert(
            text(name),
            Service {
                command,
                environment,
            },
        );
    }
    found
}

fn merged(value: &Value, key: &str) -> Option<Value> {
    let own = value.get(key).cloned();
    own.or_else(|| value.get("<<").and_then(|base| merged(base, key)))
}

fn collect(value: &Value, into: &mut BTreeMap<String, String>) {
    for (key, value) in value.as_mapping().unwrap() {
        if text(key) == "<<" {
            collect(value, into);
        } else {
            into.insert(text(key), text(value));
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => serde_yaml::to_string(other).unwrap().trim().to_owned(),
    }
}

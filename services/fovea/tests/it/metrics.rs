//! Every query of the dashboard and of the alerts names metrics that live processes really serve.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fleet::{Fleet, root};

#[test]
fn every_query_of_the_dashboard_names_a_live_metric() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fleet = Fleet::start();
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
    fleet.json(&["deploy", "last", "--name", "shapes"]);
    let picture = fleet.path("grey.png");
    std::fs::write(&picture, grey()).unwrap();
    fleet.json(&["predict", "shapes", picture.to_str().unwrap()]);

    let wanted = wanted();
    assert!(wanted.len() > 8, "{wanted:?}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // Periodic tasks record theirs within seconds.
    let missing = std::cell::RefCell::new(wanted.clone());
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        fleet.wait_for("every metric is served", || {
            let served = runtime.block_on(served(&fleet));
            missing.borrow_mut().retain(|name| !served.contains(name));
            missing.borrow().is_empty().then_some(())
        });
    }));
    assert!(found.is_ok(), "no process serves {:?}", missing.borrow());
}

fn grey() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::DynamicImage::new_rgb8(64, 64)
        .write_to(&mut bytes, image::ImageFormat::Png)
        .unwrap();
    bytes.into_inner()
}

/// Returns the names of metrics in the dashboard's and the alerts' expressions.
fn wanted() -> BTreeSet<String> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let dashboard: Value =
        serde_json::from_str(&read("infra/grafana/dashboards/fovea.json")).unwrap();
    let mut expressions = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{} has no query", panel["title"]);
        expressions.extend(
            targets
                .iter()
                .map(|target| target["expr"].as_str().unwrap().to_owned()),
        );
    }
    let rules = read("infra/prometheus/rules.yml");
    expressions.extend(
        rules
            .lines()
            .filter_map(|line| line.trim().strip_prefix("expr: "))
            .map(str::to_owned),
    );
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expressions
        .iter()
        .flat_map(|expression| expression.split(|c| !is_name(c)))
        .filter(|word| word.starts_with("fovea_") || word.starts_with("rpc_server_"))
        .map(str::to_owned)
        .collect()
}

/// Returns the names of all metrics that the processes serve now.
async fn served(fleet: &Fleet) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for service in [
        "gateway",
        "accounts",
        "datasets",
        "projects",
        "billing",
        "scheduler",
        "inference",
        "worker",
    ] {
        let address = fleet.setting(&format!("FOVEA_FLEET__METRICS__{}", service.to_uppercase()));
        let answer = reqwest::get(format!("http://{address}/metrics"))
            .await
            .unwrap();
        assert!(answer.status().is_success(), "{service}");
        let text = answer.text().await.unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            names.extend(line.split(['{', ' ']).next().map(str::to_owned));
        }
    }
    names
}

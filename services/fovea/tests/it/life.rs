//! The main job, end to end: a dataset in; priced, trained, paid, deployed, exported out.

use crate::fleet::{Fleet, number, seconds};

#[test]
fn a_newcomer_goes_from_pictures_to_a_deployed_model() {
    let fleet = Fleet::start();
    fleet.json(&["billing", "top-up", "5"]);
    let import = fleet.import_sample("shapes", 40, 96);
    let version = import["version_id"].as_str().unwrap();
    fleet.wait_for_worker("shapes");

    let spec = [
        "--dataset",
        "shapes",
        "--epochs",
        "2",
        "--imgsz",
        "96",
        "--batch",
        "8",
    ];
    let estimate = fleet.json(&[&["estimate"], &spec[..]].concat());
    let devices = estimate["devices"].as_array().unwrap();
    assert_eq!(
        devices.len(),
        27,
        "26 GPUs of the catalogue and this machine's processor"
    );
    let cpu = &devices[0];
    assert_eq!(cpu["gpu_type"], "cpu");
    assert!(
        cpu["is_recommended"] == true && cpu["fits"] == true,
        "{cpu}"
    );
    let elsewhere = devices
        .iter()
        .filter(|device| device["is_offered"] == false);
    assert_eq!(elsewhere.count(), 26);

    let trained = fleet.run(&[&["train", "--name", "first"], &spec[..]].concat());
    assert!(
        trained.status.success(),
        "{}",
        String::from_utf8_lossy(&trained.stderr)
    );
    let run = fleet.run_in("first", &["COMPLETED"]);
    assert_eq!(run["epochs_done"], 2);
    assert!(
        run["metrics"]["metrics/mAP50(B)"].as_f64().is_some(),
        "{run}"
    );
    assert_eq!(run["attempts"].as_array().unwrap().len(), 1);

    let charge = fleet.settled("first");
    let committed = seconds(&charge["committed"]);
    let price = number(&charge["price_per_hour_micros"]);
    assert!(price > 0 && committed > 0.0);
    // To the micro-credit: price × committed time, rounded once.
    let micros = (committed * 1e6).round() as i128;
    let exact = (i128::from(price) * micros + 1_800_000_000) / 3_600_000_000;
    assert_eq!(
        i128::from(number(&charge["charged_micros"])),
        exact,
        "{charge}"
    );
    assert_eq!(number(&charge["held_micros"]), 0);
    let checked = fleet.json(&["billing", "check"]);
    assert_eq!(number(&checked["entry_sum_micros"]), 0);

    let endpoint = fleet.json(&["deploy", "last", "--name", "shapes"]);
    assert_eq!(endpoint["state"], "ENDPOINT_STATE_READY");
    let picture = fleet.json(&[
        "datasets", "images", version, "--split", "test", "--limit", "1",
    ]);
    let file = fleet.path("picture.jpg");
    let url = format!(
        "{}{}",
        fleet.url,
        picture["images"][0]["url"].as_str().unwrap()
    );
    let bytes = fetch(&url);
    std::fs::write(&file, &bytes).unwrap();
    let saved = fleet.path("boxes.jpg");
    let found = fleet.json(&[
        "predict",
        "shapes",
        file.to_str().unwrap(),
        "--conf",
        "0.001",
        "--save",
        saved.to_str().unwrap(),
    ]);
    assert_eq!(
        (found["width"].as_i64(), found["height"].as_i64()),
        (Some(96), Some(96))
    );
    assert!(!found["detections"].as_array().unwrap().is_empty());
    assert!(std::fs::metadata(&saved).unwrap().len() > 500);

    let onnx = fleet.path("model.onnx");
    fleet.json(&[
        "models",
        "export",
        "last",
        "--output",
        onnx.to_str().unwrap(),
    ]);
    assert!(std::fs::metadata(&onnx).unwrap().len() > 5_000_000);

    refusals(&fleet);
    stop_and_compare(&fleet);
}

fn fetch(url: &str) -> Vec<u8> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    runtime.block_on(async {
        reqwest::get(url)
            .await
            .unwrap()
            .error_for_status()
            .unwrap()
            .bytes()
            .await
            .unwrap()
            .to_vec()
    })
}

/// What can't be done says why, by reason and exit code.
fn refusals(fleet: &Fleet) {
    let train = |arguments: &[&str]| {
        let base = ["train", "--detach", "--dataset", "shapes", "--imgsz", "96"];
        fleet.refused(&[&base[..], arguments].concat())
    };
    assert_eq!(
        train(&["--model", "yolo99n"]),
        (2, "TRAIN_SPEC_INVALID".into())
    );
    assert_eq!(
        train(&["--set", "mosiac=0.5"]),
        (2, "TRAIN_SPEC_INVALID".into())
    );
    let big = [
        "train",
        "--detach",
        "--dataset",
        "shapes",
        "--imgsz",
        "1280",
        "--batch",
        "4096",
    ];
    assert_eq!(fleet.refused(&big), (5, "BATCH_DOES_NOT_FIT".into()));
    assert_eq!(train(&["--gpu", "rtx-4090"]).1, "GPU_NOT_OFFERED");
    assert_eq!(train(&["--gpu", "gtx-1"]), (2, "UNKNOWN_GPU_TYPE".into()));
    assert_eq!(
        fleet
            .refused(&["runs", "show", "run_00000000000000000000000000"])
            .0,
        3
    );
    let dear = [
        "train",
        "--detach",
        "--dataset",
        "shapes",
        "--imgsz",
        "1280",
        "--batch",
        "1",
        "--epochs",
        "10000",
    ];
    let (code, reason) = fleet.refused(&dear);
    assert_eq!((code, reason.as_str()), (5, "BALANCE_TOO_LOW"));

    let key = ["--epochs", "1", "--batch", "8", "--idempotency-key", "k"];
    let base = [
        "--json",
        "train",
        "--detach",
        "--dataset",
        "shapes",
        "--imgsz",
        "64",
    ];
    let first = fleet.json(&[&base[1..], &key[..]].concat());
    let again = fleet.json(&[&base[1..], &key[..]].concat());
    assert_eq!(first["id"], again["id"]);
    let other = [&base[1..], &["--seed", "7"], &key[..]].concat();
    assert_eq!(fleet.refused(&other).1, "IDEMPOTENCY_KEY_REUSED");
    fleet.run_in(first["id"].as_str().unwrap(), &["COMPLETED"]);
}

/// A run can be paused, resumed and ended, and runs stand side by side.
fn stop_and_compare(fleet: &Fleet) {
    let long = [
        "train",
        "--detach",
        "--dataset",
        "shapes",
        "--imgsz",
        "96",
        "--batch",
        "8",
    ];
    fleet.json(
        &[
            &long[..],
            &["--name", "long", "--epochs", "400", "--cap", "1"],
        ]
        .concat(),
    );
    fleet.run_in("long", &["TRAINING"]);
    fleet.json(&["runs", "stop", "long", "--pause"]);
    let paused = fleet.run_in("long", &["PAUSED"]);
    fleet.json(&["runs", "resume", "long"]);
    fleet.run_in("long", &["TRAINING"]);
    fleet.json(&["runs", "stop", "long"]);
    let ended = fleet.run_in("long", &["CANCELLED"]);
    assert!(seconds(&ended["committed"]) >= seconds(&paused["committed"]));
    assert_eq!(ended["attempts"].as_array().unwrap().len(), 2);
    fleet.settled("long");

    let compared = fleet.json(&["runs", "compare", "first", "long"]);
    let names: Vec<_> = compared["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| &field["name"])
        .collect();
    assert!(
        names
            .iter()
            .any(|name| name.as_str().unwrap().contains("epochs")),
        "{names:?}"
    );
    fleet.json(&["billing", "check"]);
}

//! Any process can be killed at any moment: runs complete, and nothing is counted twice.

use std::time::Duration;

use engine::clock::Stopwatch;

use crate::fleet::{Fleet, number, seconds};

/// How long after its last checkpoint a worker is killed.
const LOST: Duration = Duration::from_secs(10);

#[test]
fn a_killed_worker_costs_only_time_and_changes_no_bit_of_the_model() {
    let fleet = Fleet::start();
    fleet.json(&["billing", "top-up", "5"]);
    fleet.import_sample("shapes", 420, 256);
    fleet.wait_for_worker("shapes");
    let train = |name: &str| {
        fleet.json(&[
            "train",
            "--detach",
            "--dataset",
            "shapes",
            "--imgsz",
            "256",
            "--batch",
            "16",
            "--epochs",
            "2",
            "--cap",
            "1",
            "--name",
            name,
        ]);
    };
    train("whole");
    fleet.run_in("whole", &["COMPLETED"]);
    let whole = fleet.settled("whole");

    train("killed");
    let began = Stopwatch::start();
    let after_first_epoch = fleet.wait_for("the first epoch's checkpoint", || {
        let run = fleet.json(&["runs", "show", "killed"]);
        (run["epochs_done"] == 1).then_some(run)
    });
    let checkpointed = Stopwatch::start();
    fleet.wait_for("ten seconds of the second epoch pass", || {
        let run = fleet.json(&["runs", "show", "killed"]);
        assert_eq!(
            run["state"], "RUN_STATE_TRAINING",
            "the epoch is too short for this test"
        );
        assert_eq!(
            run["epochs_done"], 1,
            "the epoch is too short for this test"
        );
        (checkpointed.elapsed() >= LOST).then_some(())
    });
    fleet.kill("worker");
    let run = fleet.run_in("killed", &["COMPLETED"]);
    let wall = began.elapsed().as_secs_f64();
    let attempts = run["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 2, "{run}");
    assert_eq!(run["is_bit_exact"], true);

    let weights = |name: &str| {
        let run = fleet.json(&["runs", "show", name]);
        let model = run["model_id"].as_str().unwrap().to_owned();
        let target = fleet.path(&format!("{name}.fovea"));
        let target = target.to_str().unwrap();
        fleet.json(&[
            "models", "export", &model, "--format", "weights", "--output", target,
        ]);
        engine::checkpoint::files::read(std::path::Path::new(target))
            .unwrap()
            .state
    };
    let (of_whole, of_killed) = (weights("whole"), weights("killed"));
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    assert!(
        bits(&of_whole.parameters) == bits(&of_killed.parameters),
        "parameters differ"
    );
    assert!(
        bits(&of_whole.buffers) == bits(&of_killed.buffers),
        "statistics differ"
    );

    let charge = fleet.settled("killed");
    let committed = seconds(&charge["committed"]);
    assert!(committed >= seconds(&after_first_epoch["committed"]));
    assert!(
        committed <= wall - LOST.as_secs_f64(),
        "charged {committed} s of {wall} s, of which {LOST:?} were lost"
    );
    assert!(number(&whole["charged_micros"]) > 0);
    let checked = fleet.json(&["billing", "check"]);
    assert_eq!(number(&checked["entry_sum_micros"]), 0);
}

#[test]
fn every_other_process_can_be_killed_in_mid_run() {
    let fleet = Fleet::start();
    fleet.json(&["billing", "top-up", "5"]);
    fleet.import_sample("shapes", 60, 96);
    fleet.wait_for_worker("shapes");
    fleet.json(&[
        "train",
        "--detach",
        "--dataset",
        "shapes",
        "--imgsz",
        "96",
        "--batch",
        "8",
        "--epochs",
        "60",
        "--cap",
        "1",
        "--name",
        "hardy",
    ]);
    fleet.run_in("hardy", &["TRAINING"]);
    let killed = [
        "gateway",
        "accounts",
        "datasets",
        "projects",
        "billing",
        "scheduler",
        "inference",
        "nats-server",
    ];
    for process in killed {
        fleet.kill(process);
        // It goes on: another checkpoint is recorded after the kill.
        let before = epochs_done(&fleet);
        fleet.wait_for(
            &format!("the run goes on after {process} was killed"),
            || {
                epochs_done(&fleet)
                    .filter(|done| Some(*done) > before || *done == 60)
                    .map(|_| ())
            },
        );
    }
    let run = fleet.run_in("hardy", &["COMPLETED"]);
    assert_eq!(run["epochs_done"], 60);
    assert_eq!(run["attempts"].as_array().unwrap().len(), 1, "{run}");
    let charge = fleet.settled("hardy");
    let micros = (seconds(&charge["committed"]) * 1e6).round() as i128;
    let price = i128::from(number(&charge["price_per_hour_micros"]));
    let exact = (price * micros + 1_800_000_000) / 3_600_000_000;
    assert_eq!(i128::from(number(&charge["charged_micros"])), exact);
    assert_eq!(
        fleet.json(&["models", "ls"])["models"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    fleet.json(&["billing", "check"]);
}

fn epochs_done(fleet: &Fleet) -> Option<i64> {
    let output = fleet.run(&["--json", "runs", "show", "hardy"]);
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    run["epochs_done"].as_i64()
}

//! Child processes: they start again, and none outlives us.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use kit::process::{Child, Nats, Supervised, find_nats_server, supervise};
use kit::testing::wait_for;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

fn is_running(id: u32) -> bool {
    // A process that ended and was not waited for is a zombie: gone for all but its parent.
    let status = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[tokio::test]
async fn a_dropped_child_is_killed() {
    let child = Child::spawn(shell("exec sleep 1000"), "sleeper").unwrap();
    let id = child.id().unwrap();
    assert!(is_running(id));
    drop(child);
    wait_for("the child is gone", || async {
        (!is_running(id)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_child_dies_with_its_parent() {
    // The parent is this test's own binary, started again to run the test below.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let exe = std::env::current_exe().unwrap();
    let mut parent = std::process::Command::new(exe)
        .args(["--exact", "process::parent_of_a_sleeper", "--ignored"])
        .env("FOVEA_TEST_PID_FILE", &file)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let id: u32 = wait_for("the child is started", || async {
        std::fs::read_to_string(&file).ok()?.trim().parse().ok()
    })
    .await;
    assert!(is_running(id));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_for("the grandchild is gone", || async {
        (!is_running(id)).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "is the parent in a_child_dies_with_its_parent"]
async fn parent_of_a_sleeper() {
    let file = kit::config::environment("FOVEA_TEST_PID_FILE").expect("run by the other test");
    let mut child = Child::spawn(shell("exec sleep 1000"), "sleeper").unwrap();
    let draft = format!("{file}.new");
    std::fs::write(&draft, child.id().unwrap().to_string()).unwrap();
    std::fs::rename(draft, file).unwrap();
    child.wait().await.unwrap();
}

#[tokio::test]
async fn a_child_that_ends_starts_again_until_told_to_stop() {
    let stop = CancellationToken::new();
    let starts = AtomicU32::new(0);
    let events = Mutex::new(Vec::new());
    let observe = |event| {
        events.lock().unwrap().push(event);
        if starts.load(Ordering::SeqCst) == 3 {
            stop.cancel();
        }
    };
    let command = || {
        starts.fetch_add(1, Ordering::SeqCst);
        shell("exit 3")
    };
    supervise("quitter", command, observe, stop.clone())
        .await
        .unwrap();
    let events = events.lock().unwrap();
    let pauses: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Supervised::Ended(pause) => Some(*pause),
            Supervised::Started(_) => None,
        })
        .collect();
    assert!(pauses.len() >= 2 && pauses[1] > pauses[0], "{events:?}");
}

#[tokio::test]
async fn a_nats_server_starts_on_a_port_and_says_when_the_port_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let port = kit::testing::free_port();
    let nats = Nats::start(folder.path(), &run, port).await.unwrap();
    let other = tempfile::tempdir().unwrap();
    let taken = Nats::start(other.path(), &run, port).await;
    let fault = taken.err().unwrap();
    assert!(fault.is("PORT_UNAVAILABLE"));
    assert!(fault.message.contains(&port.to_string()) && fault.message.contains("fleet.nats_url"));
    nats.stop().await;
    let again = Nats::start(folder.path(), &run, port).await.unwrap();
    assert!(again.url().ends_with(&format!(":{port}")));
    again.stop().await;
}

#[tokio::test]
async fn an_old_nats_server_is_passed_over() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let old = bin.join("nats-server");
    std::fs::write(&old, "#!/bin/sh\necho 'nats-server: v2.9.10'\n").unwrap();
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).unwrap();
    match find_nats_server(folder.path()).await {
        Ok(found) => assert_ne!(found, old),
        Err(fault) => assert!(fault.message.contains("scripts/setup.sh"), "{fault}"),
    }
}

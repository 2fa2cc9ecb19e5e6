//! Every way a machine can lack a usable GPU gets its own sentence. A driver is loaded once in a process, so each way
//! is a child of this test.

use std::path::Path;
use std::process::Command;

use engine::device::cuda::{GpuError, cuda, probe_library};
use engine_emulator::{Flavour, build};

/// Returns what a process says that finds its driver in `folder`.
fn said(folder: &Path, environment: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args([
            "probe::says_what_it_finds",
            "--exact",
            "--ignored",
            "--nocapture",
        ])
        .env("LD_LIBRARY_PATH", folder)
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("probe: "));
    line.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

#[test]
#[ignore = "a child of the other tests here"]
fn says_what_it_finds() {
    println!("\nprobe: {}", cuda());
}

#[test]
fn each_lack_is_named_with_what_to_do() {
    let fake = build(&Flavour::default());
    let cases: [(&[(&str, &str)], &str); 6] = [
        (
            &[],
            "Fovea emulator, 4.3 GB, compute capability 9.0, driver for CUDA 13.0",
        ),
        (
            &[("FOVEA_FAKE_DEVICES", "0")],
            "an NVIDIA driver but no GPU: check nvidia-smi",
        ),
        (
            &[("FOVEA_FAKE_DRIVER", "11040")],
            "supports CUDA 11.4 and 12.0 is needed",
        ),
        (
            &[("FOVEA_FAKE_INIT", "803")],
            "the NVIDIA driver refuses to start",
        ),
        (
            &[("FOVEA_FAKE_COMPUTE", "75")],
            "compute capability 7.5 and 8.0 is needed",
        ),
        (&[("FOVEA_FAKE_COMPUTE", "103")], "compute capability 10.3"),
    ];
    for (environment, expected) in cases {
        let said = said(&fake, environment);
        assert!(said.contains(expected), "{environment:?}: {said}");
    }
}

#[test]
fn a_machine_without_a_driver_trains_on_the_processor() {
    let nowhere = std::env::temp_dir().join("no-driver-here");
    assert_eq!(
        probe_library(&[nowhere.to_str().unwrap()]),
        Err(GpuError::NoLibrary)
    );
    assert!(GpuError::NoLibrary.to_string().contains("on the processor"));
}

#[test]
fn a_driver_without_graphs_is_too_old() {
    let folder = build(&Flavour {
        defines: vec!["FOVEA_FAKE_WITHOUT_GRAPHS".into()],
        sanitized: false,
    });
    let said = said(&folder, &[]);
    assert!(said.contains("lacks 'cuStreamBeginCapture_v2'"), "{said}");
}

#[test]
fn a_broken_library_is_not_a_missing_one() {
    let path = std::env::temp_dir().join(format!("broken-{}-libcuda.so", std::process::id()));
    std::fs::write(&path, "no library").unwrap();
    let answer = probe_library(&[path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    assert!(
        matches!(answer, Err(GpuError::LibraryBroken { .. })),
        "{answer:?}"
    );
}

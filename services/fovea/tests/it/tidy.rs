//! House rules that neither the formatter nor the linter can check.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::fleet::root;

/// Crates that know nothing of ours but each other's absence.
const BASE: [&str; 3] = ["kit", "proto", "engine"];
const SERVICES: [&str; 8] = [
    "gateway",
    "accounts",
    "datasets",
    "projects",
    "billing",
    "scheduler",
    "worker",
    "inference",
];
/// The engine's own part, which is no house: only the engine opens it.
const ENGINE_OPS: &str = "engine-ops";
/// For tests of kernels; nothing that ships may depend on it.
const EMULATOR: &str = "engine-emulator";
/// Who may use the engine.
const ENGINE_USERS: [&str; 4] = ["worker", "inference", "scheduler", "fovea"];

fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![
        root().join("services"),
        root().join("proto"),
        root().join("scripts"),
    ];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|known| known == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn dependencies_point_one_way() {
    for name in SERVICES.iter().chain(&BASE).chain(&[ENGINE_OPS]) {
        let manifest = match *name {
            "proto" => root().join("proto/Cargo.toml"),
            ENGINE_OPS => root().join("services/engine/ops/Cargo.toml"),
            other => root().join(format!("services/{other}/Cargo.toml")),
        };
        let manifest: toml::Table = read(&manifest).parse().unwrap();
        let dependencies: BTreeSet<String> = manifest["dependencies"]
            .as_table()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        let ours = SERVICES
            .iter()
            .chain(&BASE)
            .chain(&["fovea", ENGINE_OPS, EMULATOR]);
        for other in ours.filter(|other| dependencies.contains(**other)) {
            let is_service = SERVICES.contains(name);
            let is_allowed = match *other {
                ENGINE_OPS => *name == "engine",
                EMULATOR => false,
                "engine" => ENGINE_USERS.contains(name),
                _ => is_service && BASE.contains(other),
            };
            assert!(is_allowed, "{name} must not depend on {other}");
        }
    }
}

#[test]
fn every_source_file_begins_with_what_it_is() {
    for path in files("rs") {
        let text = read(&path);
        assert!(text.starts_with("//!"), "{}: no //! header", path.display());
    }
}

#[test]
fn nothing_unfinished_is_left_behind() {
    let words = ["TODO", "FIXME", "todo!(", "unimplemented!(", "dbg!("];
    for path in files("rs")
        .into_iter()
        .chain(files("proto"))
        .chain(files("sh"))
    {
        if path.ends_with("tidy.rs") {
            continue;
        }
        let text = read(&path);
        for (number, line) in text.lines().enumerate() {
            let found = words.iter().find(|word| line.contains(*word));
            assert!(
                found.is_none(),
                "{}:{}: {}",
                path.display(),
                number + 1,
                line.trim()
            );
        }
    }
}

/// Each reason a service gives has a heading in its `errors.md`, which the gateway serves.
#[test]
fn every_reason_is_explained() {
    for service in SERVICES {
        let folder = root().join(format!("services/{service}"));
        if !folder.join("errors.md").exists() {
            // The worker is never called: it has no answers to explain.
            assert_eq!(service, "worker");
            continue;
        }
        let explained: BTreeSet<String> = read(&folder.join("errors.md"))
            .lines()
            .filter_map(|line| line.strip_prefix("## ").map(str::to_owned))
            .collect();
        let error = folder.join("src/error.rs");
        for reason in reasons(&read(&error)) {
            assert!(
                explained.contains(&reason),
                "{service}/errors.md doesn't explain {reason}"
            );
        }
    }
}

fn reasons(source: &str) -> BTreeSet<String> {
    let is_reason = |word: &&str| {
        word.contains('_')
            && word
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    };
    source
        .split('"')
        .skip(1)
        .step_by(2)
        .filter(is_reason)
        .map(str::to_owned)
        .collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    let mut documents: Vec<PathBuf> = files("md");
    documents.extend(
        std::fs::read_dir(root())
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "md")),
    );
    for path in documents {
        let text = read(&path);
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let place = path.parent().unwrap().join(target);
            assert!(place.exists(), "{}: {link} leads nowhere", path.display());
        }
    }
}

#[test]
fn migrations_are_numbered_without_gaps() {
    for service in SERVICES {
        for folder in ["migrations", "src/migrations"] {
            let folder = root().join(format!("services/{service}/{folder}"));
            let Ok(entries) = std::fs::read_dir(&folder) else {
                continue;
            };
            let mut numbers: Vec<u32> = entries
                .flatten()
                .filter_map(|entry| entry.file_name().to_string_lossy()[..4].parse().ok())
                .collect();
            numbers.sort_unstable();
            let expected: Vec<u32> = (1..=u32::try_from(numbers.len()).unwrap()).collect();
            assert_eq!(numbers, expected, "{}", folder.display());
        }
    }
}

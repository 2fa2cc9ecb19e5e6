//! `fovea doctor`: looks at this machine and the fleet and says what is missing, and how to mend it.

use std::net::TcpListener;
use std::path::Path;

use anyhow::{Result, bail};
use kit::config::{Config, SERVICES};
use proto::fovea::accounts::v1::GetSelfRequest;
use proto::fovea::fleet::v1::ListGpuTypesRequest;
use serde::Serialize;

use crate::client::Fleet;
use crate::output::line;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Problem,
}

#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    verdict: Verdict,
    text: String,
}

/// Runs every check; fails when one found a problem.
pub async fn run(config_file: Option<&Path>, is_json: bool) -> Result<()> {
    let mut checks = Vec::new();
    let config = match Config::load(config_file) {
        Ok(config) => config,
        Err(problems) => bail!("{problems}"),
    };
    checks.push(match crate::serve::settings(&config) {
        Ok(settings) => ok("configuration", format!("{} values", settings.len())),
        Err(problems) => problem("configuration", problems.to_string()),
    });
    checks.push(
        match kit::process::find_nats_server(&config.fleet().data).await {
            Ok(path) => ok("nats-server", path.display().to_string()),
            Err(fault) => problem("nats-server", fault.to_string()),
        },
    );
    checks.push(data_folder(&config));
    let is_up = fleet_checks(&mut checks).await;
    if !is_up {
        checks.push(ports(&config));
    }
    checks.push(device().await?);
    checks.push(cuda());

    if is_json {
        line(serde_json::to_string_pretty(&checks)?);
    } else {
        for check in &checks {
            let mark = match check.verdict {
                Verdict::Ok => "ok     ",
                Verdict::Warning => "note   ",
                Verdict::Problem => "PROBLEM",
            };
            line(format!("{mark}  {:<14} {}", check.what, check.text));
        }
    }
    let problems = checks
        .iter()
        .filter(|check| check.verdict == Verdict::Problem)
        .count();
    if problems > 0 {
        bail!("{problems} of {} checks found a problem", checks.len());
    }
    Ok(())
}

fn ok(what: &'static str, text: impl Into<String>) -> Check {
    Check {
        what,
        verdict: Verdict::Ok,
        text: text.into(),
    }
}

fn note(what: &'static str, text: impl Into<String>) -> Check {
    Check {
        what,
        verdict: Verdict::Warning,
        text: text.into(),
    }
}

fn problem(what: &'static str, text: impl Into<String>) -> Check {
    Check {
        what,
        verdict: Verdict::Problem,
        text: text.into(),
    }
}

fn data_folder(config: &Config) -> Check {
    let folder = &config.fleet().data;
    let tried = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    match tried {
        Ok(_) => ok("data folder", folder.display().to_string()),
        Err(error) => problem(
            "data folder",
            format!(
                "{}: {error}; `fleet.data` chooses another",
                folder.display()
            ),
        ),
    }
}

fn ports(config: &Config) -> Check {
    let fleet = config.fleet();
    let taken: Vec<String> = SERVICES
        .into_iter()
        .filter_map(|service| {
            let address = fleet.listen.get(service)?;
            let is_free = TcpListener::bind(address).is_ok();
            (!is_free).then(|| format!("{address} (fleet.listen.{service})"))
        })
        .collect();
    if taken.is_empty() {
        ok("ports", "all free for `fovea up`")
    } else {
        note("ports", format!("taken: {}", taken.join(", ")))
    }
}

/// Looks at the fleet that this user is logged in to, if any, and tells whether it answers.
async fn fleet_checks(checks: &mut Vec<Check>) -> bool {
    let fleet = match Fleet::open() {
        Ok(fleet) => fleet,
        Err(error) => {
            checks.push(note("login", format!("{error:#}")));
            return false;
        }
    };
    match fleet.accounts().get_self(GetSelfRequest {}).await {
        Ok(answer) => {
            let workspace = answer.into_inner().workspace.unwrap_or_default();
            checks.push(ok(
                "fleet",
                format!("{}, workspace {}", fleet.address("/"), workspace.slug),
            ));
        }
        Err(status) => {
            let text = format!(
                "{} doesn't answer: {}",
                fleet.address("/"),
                status.message()
            );
            checks.push(note("fleet", text));
            return false;
        }
    }
    if let Ok(answer) = fleet.fleet().list_gpu_types(ListGpuTypesRequest {}).await {
        let types = answer.into_inner().gpu_types;
        let here: Vec<String> = types
            .iter()
            .filter(|gpu_type| gpu_type.worker_count > 0)
            .map(|gpu_type| format!("{} × {}", gpu_type.worker_count, gpu_type.id))
            .collect();
        checks.push(if here.is_empty() {
            problem("workers", "none: runs wait until one registers")
        } else {
            ok("workers", here.join(", "))
        });
    }
    true
}

async fn device() -> Result<Check> {
    let report = tokio::task::spawn_blocking(|| -> engine::Result<_> {
        Ok(engine::device::probe(
            &engine::parallel::Threads::available()?,
        ))
    })
    .await??;
    let memory = report.memory_bytes.unwrap_or(report.available_memory_bytes) as f64 / 1e9;
    Ok(ok(
        "processor",
        format!(
            "{}, {} threads, {}, {memory:.0} GB, {:.0} GFLOP/s, {:.0} GB/s",
            report.cpu_model,
            report.threads,
            report.level,
            report.speed.flops_per_second / 1e9,
            report.speed.bytes_per_second / 1e9
        ),
    ))
}

fn cuda() -> Check {
    note("CUDA", engine::device::cuda().to_string())
}

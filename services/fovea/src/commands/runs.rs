//! `fovea runs …`: list, show, watch, stop, resume, compare.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use indicatif::ProgressBar;
use proto::fovea::billing::v1::GetRunChargeRequest;
use proto::fovea::runs::v1::{
    CompareRunsRequest, CompareRunsResponse, FollowRunRequest, GetRunRequest, ListLogsRequest,
    ListRunsRequest, LogLine, ResumeRunRequest, Run, RunState, StopRunRequest,
    follow_run_response::Content,
};
use proto::fovea::telemetry::v1::{MetricBatch, Progress};

use super::{NAME_SEARCH_PAGE, Session, is_id};
use crate::cli::Runs;
use crate::output::{self, Table, credits, line, proto_span, remark};

/// Lines of one page of a log.
const LOG_PAGE: i32 = 1000;
/// The two numbers that people look for first.
const MAP50: &str = "metrics/mAP50(B)";
const MAP50_95: &str = "metrics/mAP50-95(B)";

/// Runs one of the commands.
pub async fn run(session: &Session, command: Runs) -> Result<()> {
    let mut runs = session.fleet.runs();
    match command {
        Runs::Ls { limit } => list(session, limit).await,
        Runs::Show { run } => {
            let run = find(session, &run).await?;
            session.show(&run, print)
        }
        Runs::Watch { run } => {
            let run = find(session, &run).await?;
            let ended = watch(session, &run.id).await?;
            session.show(&ended, print)?;
            refuse_unsuccessful(&ended)
        }
        Runs::Stop { run, pause } => {
            let run_id = find(session, &run).await?.id;
            let response = runs
                .stop_run(StopRunRequest { run_id, pause })
                .await?
                .into_inner();
            session.show(&response, |response| print_state(response.run.as_ref()))
        }
        Runs::Resume { run, cap } => {
            let run_id = find(session, &run).await?.id;
            let request = ResumeRunRequest {
                run_id,
                cost_cap_micros: cap.unwrap_or(0),
            };
            let response = runs.resume_run(request).await?.into_inner();
            session.show(&response, |response| print_state(response.run.as_ref()))
        }
        Runs::Compare { runs: named } => compare(session, &named).await,
        Runs::Logs { run } => logs(session, &run).await,
    }
}

async fn list(session: &Session, limit: i32) -> Result<()> {
    let request = ListRunsRequest {
        page_size: limit,
        ..Default::default()
    };
    let response = session.fleet.runs().list_runs(request).await?.into_inner();
    session.show(&response, |response| {
        let mut table = Table::new([
            "ID", "NAME", "STATE", "EPOCHS", "MAP50", "MAP50-95", "COMPUTE", "STARTED",
        ]);
        for run in &response.runs {
            let spec = run.spec.clone().unwrap_or_default();
            table.row([
                run.id.clone(),
                run.name.clone(),
                state(run),
                format!("{}/{}", run.epochs_done, spec.epochs),
                metric(&run.metrics, MAP50),
                metric(&run.metrics, MAP50_95),
                proto_span(run.committed.as_ref()),
                instant(run.started_at.as_ref()),
            ]);
        }
        table.print();
    })
}

async fn logs(session: &Session, run: &str) -> Result<()> {
    let run_id = find(session, run).await?.id;
    let mut after_sequence = 0;
    loop {
        let request = ListLogsRequest {
            run_id: run_id.clone(),
            after_sequence,
            page_size: LOG_PAGE,
        };
        let response = session.fleet.runs().list_logs(request).await?.into_inner();
        let Some(last) = response.lines.last() else {
            return Ok(());
        };
        after_sequence = last.sequence;
        session.show(&response, |response| {
            response.lines.iter().for_each(print_log)
        })?;
    }
}

fn print_log(entry: &LogLine) {
    line(format!(
        "{}  {:<5}  {}",
        instant(entry.at.as_ref()),
        entry.level,
        entry.message
    ));
}

/// Returns the run with this id or name; `last` is the newest.
pub async fn find(session: &Session, text: &str) -> Result<Run> {
    let mut runs = session.fleet.runs();
    if is_id(text, "run") {
        return get(session, text).await;
    }
    let request = ListRunsRequest {
        page_size: NAME_SEARCH_PAGE,
        ..Default::default()
    };
    let listed = runs.list_runs(request).await?.into_inner();
    let found = listed
        .runs
        .into_iter()
        .find(|run| text == "last" || run.name == text);
    let found =
        found.with_context(|| format!("there is no run '{text}': `fovea runs ls` lists them"))?;
    get(session, &found.id).await
}

/// Returns a run by its id, with its attempts.
pub async fn get(session: &Session, run_id: &str) -> Result<Run> {
    let request = GetRunRequest {
        run_id: run_id.to_owned(),
    };
    Ok(session
        .fleet
        .runs()
        .get_run(request)
        .await?
        .into_inner()
        .run
        .unwrap_or_default())
}

/// Follows a run live until it ends and returns it; a broken stream is taken up where it was.
pub async fn watch(session: &Session, run_id: &str) -> Result<Run> {
    let bar = output::bar(0, "queued", false, session.is_json);
    let mut cursor = 0;
    loop {
        let ended = follow(session, run_id, &mut cursor, &bar).await;
        let run = get(session, run_id).await;
        match (ended, run) {
            (_, Ok(run)) if is_over(&run) => {
                bar.finish_and_clear();
                return Ok(run);
            }
            (Ok(()), _) => {}
            (Err(error), _) if is_passing(&error) => bar.set_message("the fleet is out of reach"),
            (Err(error), _) => return Err(error),
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// The pause before a broken stream is taken up again.
const RECONNECT_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

fn is_passing(error: &anyhow::Error) -> bool {
    error.downcast_ref::<tonic::Status>().is_some_and(|status| {
        matches!(
            status.code(),
            tonic::Code::Unavailable
                | tonic::Code::Unknown
                | tonic::Code::Cancelled
                | tonic::Code::DeadlineExceeded
                | tonic::Code::Internal
        )
    })
}

async fn follow(
    session: &Session,
    run_id: &str,
    cursor: &mut i64,
    bar: &ProgressBar,
) -> Result<()> {
    let request = FollowRunRequest {
        run_id: run_id.to_owned(),
        cursor: *cursor,
    };
    let mut pieces = session.fleet.runs().follow_run(request).await?.into_inner();
    while let Some(piece) = pieces.message().await? {
        *cursor = piece.cursor;
        if session.is_json {
            line(output::value(&piece)?.to_string());
        }
        match piece.content {
            Some(Content::Progress(progress)) => show_progress(bar, &progress),
            Some(Content::Metrics(batch)) => show_metrics(session, bar, &batch),
            Some(Content::Log(entry)) if !session.is_json => bar.suspend(|| print_log(&entry)),
            Some(Content::Run(run)) => {
                bar.set_prefix(state(&run));
                if is_over(&run) {
                    return Ok(());
                }
            }
            Some(Content::Log(_) | Content::Sample(_)) | None => {}
        }
    }
    Ok(())
}

fn show_progress(bar: &ProgressBar, progress: &Progress) {
    let count = |value: i32| u64::from(value.max(0).unsigned_abs());
    bar.set_length(count(progress.epochs) * count(progress.batch_count));
    bar.set_position(
        count(progress.epoch) * count(progress.batch_count) + count(progress.batch_index),
    );
    bar.set_message(format!(
        "epoch {}/{} · {:.1} images/s · {} left",
        progress.epoch + 1,
        progress.epochs,
        progress.images_per_second,
        output::span(std::time::Duration::from_secs(
            progress.remaining_seconds.max(0).unsigned_abs()
        ))
    ));
}

fn show_metrics(session: &Session, bar: &ProgressBar, batch: &MetricBatch) {
    let Some(map50) = batch.values.get(MAP50) else {
        return;
    };
    if session.is_json {
        return;
    }
    let value = |name: &str| metric(&batch.values, name);
    bar.suspend(|| {
        line(format!(
            "epoch {:>3}  box {}  cls {}  dfl {}  mAP50 {map50:.3}  mAP50-95 {}",
            batch.epoch + 1,
            value("train/box_loss"),
            value("train/cls_loss"),
            value("train/dfl_loss"),
            value(MAP50_95)
        ));
    });
}

async fn compare(session: &Session, named: &[String]) -> Result<()> {
    let mut run_ids = Vec::with_capacity(named.len());
    for name in named {
        run_ids.push(find(session, name).await?.id);
    }
    let response = session
        .fleet
        .runs()
        .compare_runs(CompareRunsRequest { run_ids })
        .await?
        .into_inner();
    session.show(&response, print_comparison)
}

fn print_comparison(response: &CompareRunsResponse) {
    let heading = std::iter::once(String::new());
    let mut table = Table::default();
    table.row_of(
        heading
            .chain(response.runs.iter().map(|run| run.name.clone()))
            .collect(),
    );
    for field in &response.differences {
        let cells = std::iter::once(field.name.clone());
        table.row_of(cells.chain(field.values.iter().cloned()).collect());
    }
    for metric in &response.metrics {
        let number = |value: f64| {
            if value.is_nan() {
                "–".to_owned()
            } else {
                format!("{value:.4}")
            }
        };
        let best = metric.best.iter().zip(&metric.last);
        let values = best.map(|(best, last)| format!("{} (last {})", number(*best), number(*last)));
        table.row_of(std::iter::once(metric.name.clone()).chain(values).collect());
    }
    table.print();
}

/// Returns an error when a run that ended didn't complete, so that scripts notice.
pub fn refuse_unsuccessful(run: &Run) -> Result<()> {
    match run.state() {
        RunState::Failed => anyhow::bail!("run {} failed: {}", run.name, run.cause),
        RunState::Cancelled => anyhow::bail!("run {} was cancelled", run.name),
        RunState::Paused => {
            remark(format!(
                "run {} is paused ({}); `fovea runs resume` goes on",
                run.name, run.cause
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns whether a run has nothing more to tell.
pub fn is_over(run: &Run) -> bool {
    matches!(
        run.state(),
        RunState::Completed | RunState::Cancelled | RunState::Failed | RunState::Paused
    )
}

/// Prints a run for people.
pub fn print(run: &Run) {
    let spec = run.spec.clone().unwrap_or_default();
    line(format!("{}  {}  {}", run.name, run.id, state(run)));
    if !run.cause.is_empty() {
        line(format!("  cause      {}", run.cause));
    }
    line(format!(
        "  trains     {} · {} epochs · batch {} · {} px on {}",
        spec.model, spec.epochs, spec.batch, spec.image_size, run.gpu_type
    ));
    line(format!(
        "  done       {} epochs · mAP50 {} · mAP50-95 {}",
        run.epochs_done,
        metric(&run.metrics, MAP50),
        metric(&run.metrics, MAP50_95)
    ));
    if let Some(estimate) = &run.estimate {
        line(format!(
            "  estimated  {} to {} · {} to {} credits ({})",
            proto_span(estimate.time_low.as_ref()),
            proto_span(estimate.time_high.as_ref()),
            credits(estimate.cost_low_micros),
            credits(estimate.cost_high_micros),
            estimate.basis
        ));
    }
    line(format!(
        "  compute    {} committed at {} credits an hour",
        proto_span(run.committed.as_ref()),
        credits(run.price_per_hour_micros)
    ));
    for attempt in &run.attempts {
        line(format!(
            "  attempt {}  {} on {} {}",
            attempt.fence,
            if attempt.outcome.is_empty() {
                "running"
            } else {
                &attempt.outcome
            },
            attempt.device,
            attempt.cause
        ));
    }
    if !run.model_id.is_empty() {
        line(format!("  model      {}", run.model_id));
    }
}

/// Returns what a run was charged so far.
pub async fn charge(
    session: &Session,
    run_id: &str,
) -> Result<proto::fovea::billing::v1::RunCharge> {
    let request = GetRunChargeRequest {
        run_id: run_id.to_owned(),
    };
    let response = session
        .fleet
        .billing()
        .get_run_charge(request)
        .await?
        .into_inner();
    Ok(response.charge.unwrap_or_default())
}

fn print_state(run: Option<&Run>) {
    if let Some(run) = run {
        line(format!("{} is {}", run.name, state(run)));
    }
}

/// Returns a run's state as a word.
pub fn state(run: &Run) -> String {
    run.state()
        .as_str_name()
        .trim_start_matches("RUN_STATE_")
        .to_lowercase()
}

/// Returns a metric with three decimals, or a dash.
pub fn metric(metrics: &HashMap<String, f64>, name: &str) -> String {
    metrics
        .get(name)
        .map_or_else(|| "–".to_owned(), |value| format!("{value:.3}"))
}

/// Returns an instant to the second, or a dash.
pub fn instant(at: Option<&prost_types::Timestamp>) -> String {
    let instant = at.copied().and_then(|at| kit::Timestamp::try_from(at).ok());
    instant.map_or_else(
        || "–".to_owned(),
        |at| at.to_string().chars().take(19).collect(),
    )
}

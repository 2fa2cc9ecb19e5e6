//! `fovea estimate` and `fovea train`.

use anyhow::Result;
use proto::fovea::jobs::v1::{DeviceEstimate, EstimateRunRequest, EstimateRunResponse};
use proto::fovea::projects::v1::{CreateProjectRequest, ListProjectsRequest};
use proto::fovea::runs::v1::{Run, StartRunRequest, TrainSpec};

use super::{NAME_SEARCH_PAGE, Session, datasets, is_id, runs};
use crate::cli::{Estimate, Spec, Train};
use crate::output::{Table, credits, line, proto_span, remark};

/// Shows what a training takes on every device type.
pub async fn estimate(session: &Session, command: Estimate) -> Result<()> {
    let version_id = datasets::find_version(session, &command.spec.dataset).await?;
    let response = estimates(
        session,
        &command.spec,
        version_id,
        command.gpu.unwrap_or_default(),
    )
    .await?;
    session.show(&response, print_estimates)
}

/// Asks what a training takes.
pub async fn estimates(
    session: &Session,
    spec: &Spec,
    version_id: String,
    gpu_type: String,
) -> Result<EstimateRunResponse> {
    let request = EstimateRunRequest {
        version_id,
        spec: Some(train_spec(spec)),
        gpu_type,
    };
    Ok(session
        .fleet
        .jobs()
        .estimate_run(request)
        .await?
        .into_inner())
}

/// Prints the table that people choose from.
pub fn print_estimates(response: &EstimateRunResponse) {
    line(format!(
        "{} training and {} validation images",
        response.train_image_count, response.val_image_count
    ));
    let mut table = Table::new([
        "DEVICE",
        "MEMORY",
        "FITS",
        "TIME",
        "CREDITS",
        "CREDITS/H",
        "",
    ]);
    for device in &response.devices {
        let estimate = device.estimate.clone().unwrap_or_default();
        table.row([
            device.gpu_type.clone(),
            format!("{:.0} GB", device.memory_bytes as f64 / 1e9),
            fit(device),
            format!(
                "{} – {}",
                proto_span(estimate.time_low.as_ref()),
                proto_span(estimate.time_high.as_ref())
            ),
            format!(
                "{} – {}",
                credits(estimate.cost_low_micros),
                credits(estimate.cost_high_micros)
            ),
            credits(device.price_per_hour_micros),
            marks(device),
        ]);
    }
    table.print();
}

fn fit(device: &DeviceEstimate) -> String {
    if device.fits {
        format!("yes, {:.1} GB", device.needed_bytes as f64 / 1e9)
    } else {
        format!("batch ≤ {}", device.largest_batch)
    }
}

fn marks(device: &DeviceEstimate) -> String {
    let marks = [
        (device.is_recommended, "recommended"),
        (device.is_cheapest, "cheapest"),
        (device.is_fastest, "fastest"),
        (!device.is_offered, "no provider here"),
        (!device.is_allowed, "not in your plan"),
    ];
    let mut words: Vec<&str> = marks
        .iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, word)| *word)
        .collect();
    if device.is_offered && !device.remark.is_empty() {
        words.push(&device.remark);
    }
    words.join(", ")
}

/// Starts a training and, unless detached, watches it to its end.
pub async fn train(session: &Session, command: Train) -> Result<()> {
    let is_detached = command.detach;
    let run = start(session, command).await?;
    if is_detached {
        return session.show(&run, runs::print);
    }
    if !session.is_json {
        let name = run.name.clone();
        remark(format!(
            "run {name} ({}) is queued; Ctrl-C stops watching, not the run",
            run.id
        ));
    }
    let ended = runs::watch(session, &run.id).await?;
    session.show(&ended, runs::print)?;
    runs::refuse_unsuccessful(&ended)
}

/// Starts a training.
pub async fn start(session: &Session, command: Train) -> Result<Run> {
    let version_id = datasets::find_version(session, &command.spec.dataset).await?;
    let project_id = match &command.project {
        Some(project) => project_id(session, project).await?,
        None => String::new(),
    };
    let request = StartRunRequest {
        project_id,
        name: command.name.unwrap_or_default(),
        version_id,
        spec: Some(train_spec(&command.spec)),
        gpu_type: command.gpu.unwrap_or_default(),
        cost_cap_micros: command.cap.unwrap_or(0),
        idempotency_key: command.idempotency_key.unwrap_or_default(),
    };
    let response = session.fleet.runs().start_run(request).await?.into_inner();
    Ok(response.run.unwrap_or_default())
}

async fn project_id(session: &Session, text: &str) -> Result<String> {
    if is_id(text, "prj") {
        return Ok(text.to_owned());
    }
    let mut projects = session.fleet.projects();
    let request = ListProjectsRequest {
        page_size: NAME_SEARCH_PAGE,
        ..Default::default()
    };
    let listed = projects.list_projects(request).await?.into_inner();
    if let Some(project) = listed
        .projects
        .into_iter()
        .find(|project| project.name == text)
    {
        return Ok(project.id);
    }
    let request = CreateProjectRequest {
        name: text.to_owned(),
        ..Default::default()
    };
    let created = projects.create_project(request).await?.into_inner();
    Ok(created.project.unwrap_or_default().id)
}

fn train_spec(spec: &Spec) -> TrainSpec {
    TrainSpec {
        model: spec.model.clone(),
        epochs: spec.epochs,
        batch: spec.batch,
        image_size: spec.imgsz,
        seed: spec.seed,
        optimizer: spec.optimizer.clone(),
        arguments: spec.arguments.iter().cloned().collect(),
    }
}

//! `fovea models …`: what was trained, and its files.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use proto::fovea::models::v1::{
    ExportModelRequest, ExportModelResponse, GetModelRequest, ListModelsRequest, Model,
};

use super::{NAME_SEARCH_PAGE, Session, is_id};
use crate::cli::Models;
use crate::output::{self, Table, line};

/// Runs one of the commands.
pub async fn run(session: &Session, command: Models) -> Result<()> {
    match command {
        Models::Ls => list(session).await,
        Models::Export {
            model,
            format,
            output,
        } => {
            let model = find(session, &model).await?;
            let (file, response) = export(session, &model.id, &format, output.as_deref()).await?;
            session.show(&response, |response| {
                line(format!(
                    "{} ({})",
                    file.display(),
                    output::bytes(response.size_bytes)
                ));
            })
        }
    }
}

async fn list(session: &Session) -> Result<()> {
    let request = ListModelsRequest {
        page_size: NAME_SEARCH_PAGE,
        ..Default::default()
    };
    let response = session
        .fleet
        .models()
        .list_models(request)
        .await?
        .into_inner();
    session.show(&response, |response| {
        let mut table = Table::new([
            "ID", "NAME", "MODEL", "CLASSES", "MAP50", "MAP50-95", "MADE",
        ]);
        for model in &response.models {
            table.row([
                model.id.clone(),
                model.name.clone(),
                model.architecture.clone(),
                model.class_names.len().to_string(),
                super::runs::metric(&model.metrics, "metrics/mAP50(B)"),
                super::runs::metric(&model.metrics, "metrics/mAP50-95(B)"),
                super::runs::instant(model.created_at.as_ref()),
            ]);
        }
        table.print();
    })
}

/// Returns the model with this id or name; `last` is the newest.
pub async fn find(session: &Session, text: &str) -> Result<Model> {
    let mut models = session.fleet.models();
    if is_id(text, "mdl") {
        let request = GetModelRequest {
            model_id: text.to_owned(),
        };
        return Ok(models
            .get_model(request)
            .await?
            .into_inner()
            .model
            .unwrap_or_default());
    }
    let request = ListModelsRequest {
        page_size: NAME_SEARCH_PAGE,
        ..Default::default()
    };
    let response = models.list_models(request).await?.into_inner();
    response
        .models
        .into_iter()
        .find(|model| text == "last" || model.name == text)
        .with_context(|| format!("there is no model '{text}': `fovea models ls` lists them"))
}

/// Saves one of a model's files, checks its digest and returns where it is.
pub async fn export(
    session: &Session,
    model_id: &str,
    format: &str,
    output: Option<&Path>,
) -> Result<(PathBuf, ExportModelResponse)> {
    let request = ExportModelRequest {
        model_id: model_id.to_owned(),
        format: format.to_owned(),
    };
    let response = session
        .fleet
        .models()
        .export_model(request)
        .await?
        .into_inner();
    let target = output.map_or_else(|| PathBuf::from(&response.file_name), Path::to_path_buf);
    let mut body = session
        .fleet
        .signed(&response.url)
        .send()
        .await?
        .error_for_status()?;
    let size = u64::try_from(response.size_bytes)?;
    let bar = output::bar(size, "downloading", true, session.is_json);
    let mut file = std::fs::File::create(&target).with_context(|| target.display().to_string())?;
    while let Some(chunk) = body.chunk().await? {
        file.write_all(&chunk)
            .with_context(|| target.display().to_string())?;
        bar.inc(chunk.len() as u64);
    }
    bar.finish_and_clear();
    let written = file.metadata()?.len();
    anyhow::ensure!(
        written == size,
        "{}: {written} of {size} bytes arrived",
        target.display()
    );
    Ok((target, response))
}

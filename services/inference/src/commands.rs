//! What inference can be asked: load, decide, save with the facts, commit.

use kit::auth::Caller;
use kit::id::{Endpoint, Id, Workspace};
use kit::store::{Sql, Store, Tx};
use proto::fovea::endpoints::v1::{
    CreateEndpointRequest, CreateEndpointResponse, EndpointDeleted, EndpointDeployed,
    EndpointFailed,
};
use proto::fovea::models::v1::Model;

use crate::error::Error;
use crate::grpc::proto_endpoint;
use crate::store::{self, EndpointRow, RevisionRow, State};

const NAME_LENGTH: std::ops::RangeInclusive<usize> = 3..=40;

/// The weights of a model, copied to this service.
#[derive(Debug, Clone)]
pub struct Weights {
    pub digest: String,
    pub size_bytes: i64,
}

/// Records a deployment: a new endpoint, or the next revision of the one with this name.
pub async fn create_endpoint(
    store: &Store,
    caller: &Caller,
    request: &CreateEndpointRequest,
    model: &Model,
    weights: &Weights,
) -> Result<CreateEndpointResponse, Error> {
    let workspace_id = caller.workspace()?;
    let name = &endpoint_name(&request.name, &model.name)?;
    let scope = &format!("CreateEndpoint/{workspace_id}");
    store
        .write(|tx| async move {
            let key = &request.idempotency_key;
            if let Some(answer) = tx.recall(scope, key, request).await? {
                return Ok(answer);
            }
            let endpoint = match store::endpoint_named(&tx, workspace_id, name).await? {
                Some(endpoint) => endpoint,
                None => {
                    let endpoint = EndpointRow {
                        id: Id::new(tx.now()),
                        workspace_id,
                        name: name.clone(),
                        created_at: tx.now(),
                        request_count: 0,
                        error_count: 0,
                    };
                    store::insert_endpoint(&tx, &endpoint).await?;
                    endpoint
                }
            };
            let latest = store::latest_revision(&tx, endpoint.id).await?;
            let revision = RevisionRow {
                id: Id::new(tx.now()),
                endpoint_id: endpoint.id,
                number: latest.map_or(0, |latest| latest.number) + 1,
                model_id: Id::parse_field("model_id", &model.id)?,
                digest: weights.digest.clone(),
                size_bytes: weights.size_bytes,
                class_names: model.class_names.clone(),
                image_size: model.image_size.into(),
                state: State::Deploying,
                cause: String::new(),
            };
            store::insert_revision(&tx, &revision, tx.now()).await?;
            let endpoint = Some(proto_endpoint(&endpoint, Some(&revision)));
            let answer = CreateEndpointResponse { endpoint };
            tx.remember(scope, key, request, &answer).await?;
            Ok(answer)
        })
        .await
}

/// Checks a given name, or makes one from the model's.
fn endpoint_name(given: &str, model: &str) -> Result<String, Error> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !given.is_empty() {
        let is_good = NAME_LENGTH.contains(&given.len())
            && given.chars().all(is_plain)
            && !given.starts_with('-')
            && !given.ends_with('-');
        if !is_good {
            let rule = "3 to 40 lower-case letters, digits and dashes inside".to_owned();
            return Err(Error::Invalid {
                field: "name",
                rule,
            });
        }
        return Ok(given.to_owned());
    }
    let plain: String = model
        .to_lowercase()
        .chars()
        .map(|c| if is_plain(c) { c } else { '-' })
        .take(*NAME_LENGTH.end())
        .collect();
    let trimmed = plain.trim_matches('-');
    let name = if trimmed.len() < *NAME_LENGTH.start() {
        format!("model-{trimmed}")
    } else {
        trimmed.to_owned()
    };
    Ok(name.trim_matches('-').to_owned())
}

/// Ends a deployment, well or not.
pub async fn end_deployment(
    store: &Store,
    revision: &RevisionRow,
    failure: Option<&str>,
) -> Result<(), Error> {
    store
        .write(|tx| async move {
            let state = if failure.is_none() {
                State::Ready
            } else {
                State::Failed
            };
            let cause = failure.unwrap_or_default();
            if !store::end_deployment(&tx, revision.id, state, cause).await? {
                return Ok(());
            }
            let Some(endpoint) = store::endpoint(&tx, revision.endpoint_id).await? else {
                return Ok(());
            };
            tell_ending(&tx, &endpoint, revision, failure).await
        })
        .await
}

async fn tell_ending(
    tx: &Tx,
    endpoint: &EndpointRow,
    revision: &RevisionRow,
    failure: Option<&str>,
) -> Result<(), Error> {
    let (endpoint_id, model_id) = (endpoint.id.to_string(), revision.model_id.to_string());
    let workspace = Some(endpoint.workspace_id);
    match failure {
        None => {
            let number = i32::try_from(revision.number).unwrap_or(i32::MAX);
            let fact = EndpointDeployed {
                endpoint_id,
                model_id,
                revision: number,
            };
            tx.tell(workspace, endpoint.id, &fact).await?;
        }
        Some(cause) => {
            let fact = EndpointFailed {
                endpoint_id,
                model_id,
                cause: cause.to_owned(),
            };
            tx.tell(workspace, endpoint.id, &fact).await?;
        }
    }
    Ok(())
}

/// Takes an endpoint down.
pub async fn delete_endpoint(
    store: &Store,
    caller: &Caller,
    id: Id<Endpoint>,
) -> Result<(), Error> {
    store
        .write(|tx| async move {
            let endpoint = store::endpoint(&tx, id).await?;
            let endpoint = endpoint.filter(|endpoint| caller.owns(endpoint.workspace_id));
            let endpoint = endpoint.ok_or_else(|| Error::NotFound(id.to_string()))?;
            store::delete_endpoint(&tx, id, tx.now()).await?;
            let fact = EndpointDeleted {
                endpoint_id: id.to_string(),
            };
            tx.tell(Some(endpoint.workspace_id), id, &fact).await?;
            Ok(())
        })
        .await
}

/// Returns an endpoint of a workspace by its id or name.
pub async fn find_endpoint(
    sql: &Sql,
    workspace_id: Id<Workspace>,
    text: &str,
) -> Result<EndpointRow, Error> {
    let found = match text.parse::<Id<Endpoint>>() {
        Ok(id) => store::endpoint(sql, id).await?,
        Err(_) => store::endpoint_named(sql, workspace_id, text).await?,
    };
    let owned = found.filter(|endpoint| endpoint.workspace_id == workspace_id);
    owned.ok_or_else(|| Error::NotFound(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_or_made() {
        assert_eq!(endpoint_name("cells-1", "x").unwrap(), "cells-1");
        for wrong in ["ab", "Cells", "a_b", "-ab", "ab-", &"x".repeat(41)] {
            assert!(endpoint_name(wrong, "x").is_err(), "{wrong}");
        }
        assert_eq!(endpoint_name("", "My Run #3").unwrap(), "my-run--3");
        assert_eq!(endpoint_name("", "a").unwrap(), "model-a");
        assert_eq!(endpoint_name("", "###").unwrap(), "model");
    }
}

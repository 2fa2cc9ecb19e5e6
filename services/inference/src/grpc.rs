//! The contract's side of inference.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use engine::clock::Stopwatch;
use engine::predict::{PredictOptions, Shape};
use kit::auth::{Caller, Role, act_for, caller};
use kit::blobs::{BlobKey, BlobRef, Blobs};
use kit::fault::Fault;
use kit::id::{Endpoint as EndpointMarker, Id};
use kit::service::Channel;
use kit::store::Store;
use proto::fovea::endpoints::v1 as api;
use proto::fovea::models::v1::model_service_client::ModelServiceClient;
use proto::fovea::models::v1::{GetModelRequest, Model};
use tokio::sync::{Mutex, Notify};
use tonic::{Request, Response, Status};

use crate::commands::{self, Weights};
use crate::config::Config;
use crate::error::Error;
use crate::instruments;
use crate::models::Models;
use crate::store::{self, EndpointRow, RevisionRow, State};

/// Things on a page.
const PAGE_DEFAULT: i64 = 50;
const PAGE_MAX: i64 = 1000;
/// The most objects that may be asked for.
const DETECTIONS_MAX: i32 = 1000;
/// Whose blobs models are.
const MODELS_OWNER: &str = "projects";
/// The artifact that is deployed.
const WEIGHTS_KIND: &str = "weights";

/// Requests and errors since they were last written.
pub type Counts = Arc<Mutex<HashMap<Id<EndpointMarker>, (i64, i64)>>>;

/// Answers `fovea.endpoints.v1.EndpointService`.
pub struct Endpoints {
    pub store: Store,
    pub blobs: Blobs,
    pub config: Config,
    pub models: Arc<Models>,
    pub registry: ModelServiceClient<Channel>,
    /// Wakes the background when something is to be deployed.
    pub asked: Arc<Notify>,
    pub counts: Counts,
}

#[tonic::async_trait]
impl api::endpoint_service_server::EndpointService for Endpoints {
    async fn create_endpoint(
        &self,
        request: Request<api::CreateEndpointRequest>,
    ) -> Result<Response<api::CreateEndpointResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Editor)?;
        let request = request.into_inner();
        let model = self.model(&caller, &request.model_id).await?;
        let weights = self.take_weights(&caller, &model).await?;
        let answer =
            commands::create_endpoint(&self.store, &caller, &request, &model, &weights).await?;
        self.asked.notify_one();
        Ok(Response::new(answer))
    }

    async fn get_endpoint(
        &self,
        request: Request<api::GetEndpointRequest>,
    ) -> Result<Response<api::GetEndpointResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Viewer)?;
        let text = request.into_inner().endpoint_id;
        let endpoint = self.find(&caller, &text).await?;
        let endpoint = Some(self.proto(&endpoint).await?);
        Ok(Response::new(api::GetEndpointResponse { endpoint }))
    }

    async fn list_endpoints(
        &self,
        request: Request<api::ListEndpointsRequest>,
    ) -> Result<Response<api::ListEndpointsResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Viewer)?;
        let workspace_id = caller.workspace()?;
        let request = request.into_inner();
        let before = Id::parse_optional("page_token", &request.page_token)?;
        let size = match i64::from(request.page_size) {
            0 => PAGE_DEFAULT,
            size => size.clamp(1, PAGE_MAX),
        };
        let mut rows = store::endpoints(self.store.read(), workspace_id, before, size + 1)
            .await
            .map_err(Error::from)?;
        let has_more = i64::try_from(rows.len()).is_ok_and(|count| count > size);
        if has_more {
            rows.pop();
        }
        let next_page_token = match rows.last() {
            Some(last) if has_more => last.id.to_string(),
            _ => String::new(),
        };
        let mut endpoints = Vec::with_capacity(rows.len());
        for row in &rows {
            endpoints.push(self.proto(row).await?);
        }
        Ok(Response::new(api::ListEndpointsResponse {
            endpoints,
            next_page_token,
        }))
    }

    async fn delete_endpoint(
        &self,
        request: Request<api::DeleteEndpointRequest>,
    ) -> Result<Response<api::DeleteEndpointResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Editor)?;
        let endpoint = self.find(&caller, &request.get_ref().endpoint_id).await?;
        commands::delete_endpoint(&self.store, &caller, endpoint.id).await?;
        Ok(Response::new(api::DeleteEndpointResponse {}))
    }

    async fn predict(
        &self,
        request: Request<api::PredictRequest>,
    ) -> Result<Response<api::PredictResponse>, Status> {
        let caller = caller(&request)?;
        caller.require(Role::Viewer)?;
        let request = request.into_inner();
        let endpoint = self.find(&caller, &request.endpoint_id).await?;
        let stopwatch = Stopwatch::start();
        let answer = self.answer(&endpoint, request).await;
        instruments::predicted(stopwatch.elapsed(), answer.is_err());
        let mut counts = self.counts.lock().await;
        let (requests, errors) = counts.entry(endpoint.id).or_default();
        *requests += 1;
        *errors += i64::from(answer.is_err());
        Ok(Response::new(answer?))
    }
}

impl Endpoints {
    async fn answer(
        &self,
        endpoint: &EndpointRow,
        request: api::PredictRequest,
    ) -> Result<api::PredictResponse, Error> {
        let options = options(&request)?;
        let size = request.image.len() as u64;
        if size == 0 || size > self.config.image_bytes_max {
            let rule = format!("a picture has 1 to {} bytes", self.config.image_bytes_max);
            return Err(Error::Invalid {
                field: "image",
                rule,
            });
        }
        let revision = self.ready(endpoint).await?;
        let image_size = usize::try_from(revision.image_size).unwrap_or(0);
        let model = self
            .models
            .load(endpoint.workspace_id, &revision.digest, image_size)
            .await?;
        let predicted = self.models.predict(model, request.image, options).await?;
        let detections = predicted.found.into_iter().map(|found| {
            let [x_min, y_min, x_max, y_max] = found.bounds;
            api::Detection {
                class_id: i32::try_from(found.class).unwrap_or(i32::MAX),
                class_name: found.name,
                score: found.score,
                x_min,
                y_min,
                x_max,
                y_max,
                shape: found.shape.map(proto_shape),
            }
        });
        let milliseconds = |span: Duration| span.as_secs_f32() * 1e3;
        Ok(api::PredictResponse {
            detections: detections.collect(),
            width: i32::try_from(predicted.width).unwrap_or(i32::MAX),
            height: i32::try_from(predicted.height).unwrap_or(i32::MAX),
            model_id: revision.model_id.to_string(),
            revision: i32::try_from(revision.number).unwrap_or(i32::MAX),
            decode_ms: milliseconds(predicted.decode),
            infer_ms: milliseconds(predicted.infer),
        })
    }

    async fn ready(&self, endpoint: &EndpointRow) -> Result<RevisionRow, Error> {
        if let Some(ready) = store::ready_revision(self.store.read(), endpoint.id).await? {
            return Ok(ready);
        }
        let why = match store::latest_revision(self.store.read(), endpoint.id).await? {
            Some(latest) if latest.state == State::Failed => latest.cause,
            _ => "it is being deployed".to_owned(),
        };
        Err(Error::NotReady {
            name: endpoint.name.clone(),
            why,
        })
    }

    async fn find(&self, caller: &Caller, text: &str) -> Result<EndpointRow, Error> {
        commands::find_endpoint(self.store.read(), caller.workspace()?, text).await
    }

    async fn proto(&self, endpoint: &EndpointRow) -> Result<api::Endpoint, Error> {
        let latest = store::latest_revision(self.store.read(), endpoint.id).await?;
        Ok(proto_endpoint(endpoint, latest.as_ref()))
    }

    async fn model(&self, caller: &Caller, model_id: &str) -> Result<Model, Fault> {
        let request = GetModelRequest {
            model_id: model_id.to_owned(),
        };
        let answer = self
            .registry
            .clone()
            .get_model(act_for(caller, request))
            .await;
        let answer = answer.map_err(|status| Fault::from_status(&status))?;
        Ok(answer.into_inner().model.unwrap_or_default())
    }

    /// Copies a model's weights to this service, so that they outlive the run they came from.
    async fn take_weights(&self, caller: &Caller, model: &Model) -> Result<Weights, Error> {
        let workspace_id = caller.workspace()?;
        let weights = model
            .artifacts
            .iter()
            .find(|artifact| artifact.kind == WEIGHTS_KIND);
        let weights = weights.ok_or_else(|| Error::NoWeights {
            model_id: model.id.clone(),
        })?;
        let hash = blake3::Hash::from_hex(&weights.digest).map_err(Fault::internal)?;
        let source = BlobRef {
            key: BlobKey::new(MODELS_OWNER, workspace_id, hash),
            size_bytes: u64::try_from(weights.size_bytes).unwrap_or(0),
        };
        self.blobs.copy(&source, workspace_id).await?;
        Ok(Weights {
            digest: weights.digest.clone(),
            size_bytes: weights.size_bytes,
        })
    }
}

/// Reads the thresholds; zero means the default.
fn options(request: &api::PredictRequest) -> Result<PredictOptions, Error> {
    let defaults = PredictOptions::default();
    let or = |value: f32, default: f32| if value == 0.0 { default } else { value };
    let most = request.max_detections;
    if !(0..=DETECTIONS_MAX).contains(&most) {
        let rule = format!("{most} is not between 0 and {DETECTIONS_MAX}");
        return Err(Error::Invalid {
            field: "max_detections",
            rule,
        });
    }
    Ok(PredictOptions {
        conf: or(request.confidence, defaults.conf),
        iou: or(request.iou, defaults.iou),
        max_det: match usize::try_from(most) {
            Ok(0) | Err(_) => defaults.max_det,
            Ok(most) => most,
        },
        ..defaults
    })
}

/// Returns what a task tells beside a box as the contract shows it.
fn proto_shape(shape: Shape) -> api::detection::Shape {
    let point = |[x, y]: [f32; 2]| api::Point { x, y };
    match shape {
        Shape::Mask { outline, area } => api::detection::Shape::Mask(api::Mask {
            outline: outline.into_iter().map(point).collect(),
            area: i32::try_from(area).unwrap_or(i32::MAX),
        }),
        Shape::Keypoints(points) => api::detection::Shape::Pose(api::Pose {
            keypoints: points
                .into_iter()
                .map(|[x, y, confidence]| api::Keypoint { x, y, confidence })
                .collect(),
        }),
        Shape::Turned { corners, angle } => api::detection::Shape::Turned(api::TurnedBox {
            corners: corners.into_iter().map(point).collect(),
            angle,
        }),
    }
}

/// Returns an endpoint with its newest revision as the contract shows it.
pub fn proto_endpoint(endpoint: &EndpointRow, latest: Option<&RevisionRow>) -> api::Endpoint {
    let state = match latest.map(|latest| latest.state) {
        Some(State::Ready) => api::EndpointState::Ready,
        Some(State::Failed) => api::EndpointState::Failed,
        Some(State::Deploying) | None => api::EndpointState::Deploying,
    };
    let number = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
    api::Endpoint {
        id: endpoint.id.to_string(),
        name: endpoint.name.clone(),
        model_id: latest
            .map(|latest| latest.model_id.to_string())
            .unwrap_or_default(),
        state: state.into(),
        cause: latest
            .map(|latest| latest.cause.clone())
            .unwrap_or_default(),
        created_at: Some(endpoint.created_at.into()),
        request_count: endpoint.request_count,
        error_count: endpoint.error_count,
        class_names: latest
            .map(|latest| latest.class_names.clone())
            .unwrap_or_default(),
        image_size: latest.map_or(0, |latest| number(latest.image_size)),
        revision: latest.map_or(0, |latest| number(latest.number)),
    }
}

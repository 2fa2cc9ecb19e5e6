//! `fovea deploy` and `fovea predict`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use engine::data::decode;
use engine::predict::draw::{self, ImageKind};
use engine::predict::{Found, Shape};
use proto::fovea::endpoints::v1::{
    CreateEndpointRequest, Endpoint, EndpointState, GetEndpointRequest, Point, PredictRequest,
    PredictResponse, detection,
};

use super::{Session, models};
use crate::cli::{Deploy, Predict};
use crate::output::{Table, line};

/// The pause between looks at a deployment, and how long it may take.
const DEPLOY_POLL: Duration = Duration::from_millis(200);
const DEPLOY_POLLS_MAX: u32 = 600;

/// Deploys a model and waits until it answers.
pub async fn deploy(session: &Session, command: Deploy) -> Result<()> {
    let model = models::find(session, &command.model).await?;
    let endpoint = create(session, &model.id, command.name.unwrap_or_default()).await?;
    session.show(&endpoint, |endpoint| {
        line(format!(
            "{} ({}) answers, revision {}",
            endpoint.name, endpoint.id, endpoint.revision
        ));
    })
}

/// Deploys a model and returns the endpoint once it is ready.
pub async fn create(session: &Session, model_id: &str, name: String) -> Result<Endpoint> {
    let mut endpoints = session.fleet.endpoints();
    let request = CreateEndpointRequest {
        model_id: model_id.to_owned(),
        name,
        idempotency_key: String::new(),
    };
    let response = endpoints.create_endpoint(request).await?.into_inner();
    let mut endpoint = response.endpoint.unwrap_or_default();
    for _ in 0..DEPLOY_POLLS_MAX {
        match endpoint.state() {
            EndpointState::Ready => return Ok(endpoint),
            EndpointState::Failed => bail!("the deployment failed: {}", endpoint.cause),
            EndpointState::Deleted => bail!("the endpoint was deleted meanwhile"),
            EndpointState::Deploying | EndpointState::Unspecified => {}
        }
        tokio::time::sleep(DEPLOY_POLL).await;
        let request = GetEndpointRequest {
            endpoint_id: endpoint.id.clone(),
        };
        endpoint = endpoints
            .get_endpoint(request)
            .await?
            .into_inner()
            .endpoint
            .unwrap_or_default();
    }
    bail!(
        "the endpoint is still deploying after {:?}",
        DEPLOY_POLL * DEPLOY_POLLS_MAX
    )
}

/// Finds the objects in a picture; saves it with the boxes where that is asked for.
pub async fn predict(session: &Session, command: Predict) -> Result<()> {
    let image =
        std::fs::read(&command.image).with_context(|| command.image.display().to_string())?;
    let request = PredictRequest {
        endpoint_id: command.endpoint.clone(),
        image: image.clone().into(),
        confidence: command.conf,
        iou: command.iou,
        max_detections: 0,
    };
    let response = session
        .fleet
        .endpoints()
        .predict(request)
        .await?
        .into_inner();
    if let Some(target) = &command.save {
        let drawn = draw(&command.image, &image, &response)?;
        std::fs::write(target, drawn).with_context(|| target.display().to_string())?;
    }
    session.show(&response, |response| {
        let mut table = Table::new(["CLASS", "SCORE", "X MIN", "Y MIN", "X MAX", "Y MAX"]);
        for found in &response.detections {
            let number = |value: f32| format!("{value:.1}");
            table.row([
                found.class_name.clone(),
                format!("{:.3}", found.score),
                number(found.x_min),
                number(found.y_min),
                number(found.x_max),
                number(found.y_max),
            ]);
        }
        table.print();
        line(format!(
            "{} objects in {}×{}; decode {:.1} ms, network {:.1} ms",
            response.detections.len(),
            response.width,
            response.height,
            response.decode_ms,
            response.infer_ms
        ));
        if let Some(target) = &command.save {
            line(format!("saved {}", target.display()));
        }
    })
}

/// Returns what the contract tells beside a box as the engine draws it.
fn shape(shape: detection::Shape) -> Option<Shape> {
    let point = |point: Point| [point.x, point.y];
    match shape {
        detection::Shape::Mask(mask) => Some(Shape::Mask {
            outline: mask.outline.into_iter().map(point).collect(),
            area: usize::try_from(mask.area).unwrap_or(0),
        }),
        detection::Shape::Pose(pose) => {
            let keypoints = pose.keypoints.into_iter();
            let points = keypoints.map(|point| [point.x, point.y, point.confidence]);
            Some(Shape::Keypoints(points.collect()))
        }
        detection::Shape::Turned(turned) => {
            let corners: Vec<_> = turned.corners.into_iter().map(point).collect();
            let angle = turned.angle;
            let corners = corners.try_into().ok()?;
            Some(Shape::Turned { corners, angle })
        }
    }
}

/// Returns the picture with the objects drawn in, as JPEG.
fn draw(path: &Path, image: &[u8], response: &PredictResponse) -> Result<Vec<u8>> {
    let mut picture = decode::decode(&path.display().to_string(), image)?;
    let found: Vec<Found> = response
        .detections
        .iter()
        .map(|found| Found {
            class: found.class_id.max(0).unsigned_abs(),
            name: found.class_name.clone(),
            score: found.score,
            bounds: [found.x_min, found.y_min, found.x_max, found.y_max],
            shape: found.shape.clone().and_then(shape),
        })
        .collect();
    draw::draw(&mut picture, &found);
    Ok(draw::encode(&picture, ImageKind::Jpeg)?)
}

//! The RPCs of runs: for people, and for workers.

use std::collections::BTreeSet;

use kit::Amount;
use kit::auth::{Role, caller};
use kit::id::{self, Id};
use prost::Message;
use proto::fovea::runs::v1::run_service_server::RunService;
use proto::fovea::runs::v1::*;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use super::wire::{
    artifact_value, checkpoint_message, line_message, run_message, span_message, span_value,
    spec_value, state_value,
};
use super::{Answer, Server, answer, open, open_worker, page_after, page_cut, page_size};
use crate::commands::{BlobAnnounced, FinishAttempt, RecordCheckpoint, SignedBlob, StartRun};
use crate::domain::{self, Begin, Outcome, StopKind};
use crate::error::Error;
use crate::{follow, store};

/// Points of a series where the caller doesn't say.
const POINTS_DEFAULT: i32 = 1_000;
/// The most points of a series.
const POINTS_MAX: i32 = 10_000;
const NAMES_MAX: usize = 200;
const COMPARED_MIN: usize = 2;
const COMPARED_MAX: usize = 10;

impl Server {
    async fn full_run(&self, run: &domain::Run) -> Result<Run, Error> {
        let attempts = store::attempts(self.projects.store.read(), run.id).await?;
        Ok(run_message(run, &attempts))
    }

    async fn run_of(&self, workspace: Id<id::Workspace>, id: &str) -> Result<domain::Run, Error> {
        let id = Id::parse_field("run_id", id)?;
        Ok(self.projects.run_of(workspace, id).await?.run)
    }
}

#[tonic::async_trait]
impl RunService for Server {
    async fn start_run(&self, request: Request<StartRunRequest>) -> Answer<StartRunResponse> {
        let caller = caller(&request)?;
        caller.require(Role::Editor)?;
        let request = request.into_inner();
        let request_digest = blake3::hash(&stable_bytes(&request)).as_bytes().to_vec();
        let spec = request
            .spec
            .ok_or_else(|| Error::field("spec", "says what to train"))?;
        let start = StartRun {
            project_id: Id::parse_optional("project_id", &request.project_id)?,
            name: request.name,
            version_id: Id::parse_field("version_id", &request.version_id)?,
            spec: spec_value(spec),
            gpu_type: request.gpu_type,
            cost_cap: Amount::from_micros(request.cost_cap_micros),
            idempotency_key: request.idempotency_key,
            request_digest,
        };
        let run = self.projects.start_run(&caller, start).await?;
        answer(StartRunResponse {
            run: Some(self.full_run(&run).await?),
        })
    }

    async fn get_run(&self, request: Request<GetRunRequest>) -> Answer<GetRunResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let run = self.run_of(workspace, &request.run_id).await?;
        answer(GetRunResponse {
            run: Some(self.full_run(&run).await?),
        })
    }

    async fn list_runs(&self, request: Request<ListRunsRequest>) -> Answer<ListRunsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let project = Id::parse_optional("project_id", &request.project_id)?;
        let size = page_size(request.page_size)?;
        let after = page_after(&request.page_token)?;
        let sql = self.projects.store.read();
        let mut page = store::list_runs(sql, workspace, project, after, size + 1).await?;
        let next_page_token = page_cut(&mut page, size, |run| run.id);
        let runs = page.iter().map(|run| run_message(run, &[])).collect();
        answer(ListRunsResponse {
            runs,
            next_page_token,
        })
    }

    async fn stop_run(&self, request: Request<StopRunRequest>) -> Answer<StopRunResponse> {
        let (workspace, request) = open(request, Role::Editor)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let kind = if request.pause {
            StopKind::Pause
        } else {
            StopKind::Cancel
        };
        let run = self.projects.stop_run(workspace, id, kind).await?;
        answer(StopRunResponse {
            run: Some(self.full_run(&run).await?),
        })
    }

    async fn resume_run(&self, request: Request<ResumeRunRequest>) -> Answer<ResumeRunResponse> {
        let (workspace, request) = open(request, Role::Editor)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let cost_cap = Amount::from_micros(request.cost_cap_micros);
        let run = self.projects.resume_run(workspace, id, cost_cap).await?;
        answer(ResumeRunResponse {
            run: Some(self.full_run(&run).await?),
        })
    }

    async fn compare_runs(
        &self,
        request: Request<CompareRunsRequest>,
    ) -> Answer<CompareRunsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let ids = request.run_ids;
        let distinct: BTreeSet<_> = ids.iter().collect();
        if !(COMPARED_MIN..=COMPARED_MAX).contains(&ids.len()) || distinct.len() != ids.len() {
            let rule = format!("names {COMPARED_MIN} to {COMPARED_MAX} different runs");
            return Err(Error::field("run_ids", rule).into());
        }
        let mut runs = Vec::with_capacity(ids.len());
        for (place, id) in ids.iter().enumerate() {
            let id = Id::parse_field(&format!("run_ids[{place}]"), id)?;
            runs.push(self.projects.run_of(workspace, id).await?.run);
        }
        let comparison = self.projects.comparison(&runs).await?;
        let differences = comparison.differences.into_iter();
        let metrics = comparison.metrics.into_iter();
        answer(CompareRunsResponse {
            runs: runs.iter().map(|run| run_message(run, &[])).collect(),
            differences: differences
                .map(|(name, values)| ComparedField { name, values })
                .collect(),
            metrics: metrics
                .map(|metric| ComparedMetric {
                    name: metric.name,
                    higher_is_better: metric.higher_is_better,
                    best: metric.best,
                    last: metric.last,
                })
                .collect(),
        })
    }

    async fn list_metrics(
        &self,
        request: Request<ListMetricsRequest>,
    ) -> Answer<ListMetricsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let run = self.run_of(workspace, &request.run_id).await?;
        let limit = match request.point_limit {
            0 => POINTS_DEFAULT,
            limit @ 1..=POINTS_MAX => limit,
            other => {
                let rule = format!("is 0 to {POINTS_MAX}, not {other}");
                return Err(Error::field("point_limit", rule).into());
            }
        };
        if request.names.len() > NAMES_MAX {
            return Err(Error::field("names", format!("has at most {NAMES_MAX}")).into());
        }
        let series = self
            .projects
            .metrics(&run, &request.names, limit as usize)
            .await?;
        let series = series.into_iter().map(|(name, points)| {
            let (steps, values) = points.into_iter().unzip();
            MetricSeries {
                name,
                steps,
                values,
            }
        });
        answer(ListMetricsResponse {
            series: series.collect(),
        })
    }

    async fn list_logs(&self, request: Request<ListLogsRequest>) -> Answer<ListLogsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let run = self.run_of(workspace, &request.run_id).await?;
        let size = page_size(request.page_size)? as usize;
        let lines = self
            .projects
            .log_page(&run, request.after_sequence, size)
            .await?;
        answer(ListLogsResponse {
            lines: lines.into_iter().map(line_message).collect(),
        })
    }

    async fn list_checkpoints(
        &self,
        request: Request<ListCheckpointsRequest>,
    ) -> Answer<ListCheckpointsResponse> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let run = self.run_of(workspace, &request.run_id).await?;
        let checkpoints = store::checkpoints(self.projects.store.read(), run.id).await?;
        let checkpoints = checkpoints.into_iter().map(checkpoint_message).collect();
        answer(ListCheckpointsResponse { checkpoints })
    }

    type FollowRunStream = ReceiverStream<Result<FollowRunResponse, Status>>;

    async fn follow_run(
        &self,
        request: Request<FollowRunRequest>,
    ) -> Answer<Self::FollowRunStream> {
        let (workspace, request) = open(request, Role::Viewer)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let (projects, stop) = (&self.projects, self.stop.clone());
        let pieces = follow::follow(projects, workspace, id, request.cursor, stop).await?;
        answer(ReceiverStream::new(pieces))
    }

    async fn begin_attempt(
        &self,
        request: Request<BeginAttemptRequest>,
    ) -> Answer<BeginAttemptResponse> {
        let request = open_worker(request)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let beginning = Begin {
            attempt_id: Id::new(self.projects.clock.now()),
            fence: request.fence,
            worker_id: Id::parse_field("worker_id", &request.worker_id)?,
            device: request.device,
            device_kind: request.device_kind,
        };
        let begun = self.projects.begin_attempt(id, beginning).await?;
        answer(BeginAttemptResponse {
            workspace_id: begun.run.workspace_id.to_string(),
            resume_from: begun.resume_from.map(checkpoint_message),
            resume_url: begun.resume_url,
            best_checkpoint: begun.best.map(checkpoint_message),
            best_url: begun.best_url,
            checkpoint_interval: Some(span_message(self.projects.config.checkpoint_interval)),
            next_log_sequence: begun.next_log_sequence,
            run: Some(self.full_run(&begun.run).await?),
        })
    }

    async fn report_phase(
        &self,
        request: Request<ReportPhaseRequest>,
    ) -> Answer<ReportPhaseResponse> {
        let request = open_worker(request)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let phase = state_value(request.phase).and_then(domain::State::phase);
        let phase =
            phase.ok_or_else(|| Error::field("phase", "is PREPARING, TRAINING or VALIDATING"))?;
        self.projects.report_phase(id, request.fence, phase).await?;
        answer(ReportPhaseResponse {})
    }

    async fn sign_blob(&self, request: Request<SignBlobRequest>) -> Answer<SignBlobResponse> {
        let request = open_worker(request)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let SignBlobRequest {
            fence,
            digest,
            size_bytes,
            ..
        } = request;
        let announced = BlobAnnounced {
            fence,
            digest,
            size_bytes,
        };
        answer(match self.projects.sign_blob(id, &announced).await? {
            SignedBlob::Put(url) => SignBlobResponse { url, exists: false },
            SignedBlob::Exists => SignBlobResponse {
                url: String::new(),
                exists: true,
            },
        })
    }

    async fn record_checkpoint(
        &self,
        request: Request<RecordCheckpointRequest>,
    ) -> Answer<RecordCheckpointResponse> {
        let request = open_worker(request)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let command = RecordCheckpoint {
            fence: request.fence,
            epoch: request.epoch,
            step: request.step,
            digest: request.digest,
            size_bytes: request.size_bytes,
            committed: span_value("committed", request.committed)?,
            metrics: request.metrics.into_iter().collect(),
            is_best: request.is_best,
        };
        let checkpoint_id = self
            .projects
            .record_checkpoint(id, command)
            .await?
            .to_string();
        answer(RecordCheckpointResponse { checkpoint_id })
    }

    async fn finish_attempt(
        &self,
        request: Request<FinishAttemptRequest>,
    ) -> Answer<FinishAttemptResponse> {
        let request = open_worker(request)?;
        let id = Id::parse_field("run_id", &request.run_id)?;
        let command = FinishAttempt {
            fence: request.fence,
            outcome: Outcome::of_worker(&request.outcome)?,
            cause: request.cause,
            committed: span_value("committed", request.committed)?,
            metrics: request.metrics.into_iter().collect(),
            artifacts: request.artifacts.into_iter().map(artifact_value).collect(),
            epochs_done: request.epochs_done,
        };
        let run = self.projects.finish_attempt(id, command).await?;
        answer(FinishAttemptResponse {
            run: Some(self.full_run(&run).await?),
        })
    }
}

/// Returns a request's bytes, the same for equal requests: a map has no order of its own.
fn stable_bytes(request: &StartRunRequest) -> Vec<u8> {
    let mut request = request.clone();
    let arguments = request
        .spec
        .as_mut()
        .map(|spec| std::mem::take(&mut spec.arguments));
    let mut bytes = request.encode_to_vec();
    let mut arguments: Vec<_> = arguments.into_iter().flatten().collect();
    arguments.sort();
    for text in arguments.iter().flat_map(|(name, value)| [name, value]) {
        bytes.extend((text.len() as u64).to_be_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

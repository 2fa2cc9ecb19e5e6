//! A fleet in which `projects` is real and a test plays everybody else.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kit::auth::{Identity, Principal, Role, SignLayer};
use kit::bus::{Cursor, Envelope, Fact};
use kit::fault::Fault;
use kit::id::{self, Id};
use kit::service::{Channel, Context};
use kit::store::Store;
use kit::testing::{TestDatabase, TestFleet, TestNats, wait_for};
use kit::time::Timestamp;
use proto::fovea::jobs::v1::{JobLeased, JobRequeued};
use proto::fovea::models::v1::model_service_client::ModelServiceClient;
use proto::fovea::projects::v1::ListProjectsRequest;
use proto::fovea::projects::v1::project_service_client::ProjectServiceClient;
use proto::fovea::runs::v1::run_service_client::RunServiceClient;
use proto::fovea::runs::v1::*;
use tokio::task::JoinHandle;
use tonic::service::Routes;

use crate::neighbours::{Billing, Datasets, Jobs, Neighbours};

/// Sweeps at once, lingers not at all.
const SECTION: &str = "[projects]
sweep_interval = '50ms'
created_timeout = '10s'
follow_linger = '0s'
blob_grace = '1m'
log_segment_size = '2KiB'
";

/// What a test has.
pub struct World {
    pub fleet: TestFleet,
    pub neighbours: Neighbours,
    pub workspace: Id<id::Workspace>,
    pub version: String,
    pub context: Context,
    pub told: Arc<Mutex<Vec<Envelope>>>,
    pub nats: TestNats,
    scheduler: (Context, Store),
    billing: (Context, Store),
    service: JoinHandle<Result<(), Fault>>,
    _database: Option<TestDatabase>,
    _tasks: Vec<JoinHandle<()>>,
}

/// Returns a world on each database.
pub async fn worlds() -> Vec<World> {
    let mut worlds = Vec::new();
    for database in TestDatabase::all().await {
        worlds.push(Box::pin(World::start(Some(database))).await);
    }
    worlds
}

impl World {
    /// Starts a fleet in this database, or in files.
    pub async fn start(database: Option<TestDatabase>) -> Self {
        let nats = TestNats::start().await;
        let url = database.as_ref().map_or("sqlite", TestDatabase::url);
        let fleet = TestFleet::with(&nats, url, SECTION);
        kit::bus::install_descriptors(proto::pool().clone());
        let neighbours = Neighbours::default();
        let workspace = Id::new(fleet.clock().now());
        let version = Id::<id::Version>::new(fleet.clock().now()).to_string();
        neighbours.with(|state| state.versions.insert(version.clone(), workspace));

        let mut tasks = Vec::new();
        let datasets = fleet.context("datasets").await;
        tasks.push(play(datasets, Routes::new(Datasets(neighbours.clone()))));
        let scheduler = fleet.context("scheduler").await;
        tasks.push(play(
            scheduler.clone(),
            Routes::new(Jobs(neighbours.clone())),
        ));
        let billing = fleet.context("billing").await;
        tasks.push(play(
            billing.clone(),
            Routes::new(Billing(neighbours.clone())),
        ));
        let scheduler_store = scheduler.open_store(&[]).await.unwrap();
        let billing_store = billing.open_store(&[]).await.unwrap();

        let told = Arc::new(Mutex::new(Vec::new()));
        let mut facts = scheduler.bus().follow_facts(Some(workspace), Cursor::Start);
        tasks.push(tokio::spawn({
            let told = told.clone();
            async move {
                while let Some(fact) = facts.next().await {
                    told.lock()
                        .unwrap()
                        .push(Envelope::from_slice(&fact.payload).unwrap());
                }
            }
        }));

        let context = fleet.context("projects").await;
        let service = tokio::spawn(projects::serve(context.clone()));
        let world = Self {
            fleet,
            neighbours,
            workspace,
            version,
            context,
            told,
            nats,
            scheduler: (scheduler, scheduler_store),
            billing: (billing, billing_store),
            service,
            _database: database,
            _tasks: tasks,
        };
        world.ready().await;
        world
    }

    async fn ready(&self) {
        wait_for("projects answers", || async {
            self.projects()
                .list_projects(ListProjectsRequest::default())
                .await
                .ok()
        })
        .await;
    }

    /// Kills the service as it stands, in the middle of whatever it does, and starts it again.
    pub async fn kill_and_restart(&mut self) {
        self.service.abort();
        let _ = (&mut self.service).await;
        self.context = self.fleet.context("projects").await;
        self.service = tokio::spawn(projects::serve(self.context.clone()));
        self.ready().await;
    }

    /// Moves the clock that everybody shares.
    pub fn pass(&self, seconds: u64) {
        self.fleet.clock().advance(Duration::from_secs(seconds));
    }

    pub fn now(&self) -> Timestamp {
        self.fleet.clock().now()
    }

    /// Returns a channel on which an identity calls the service.
    pub fn channel(&self, identity: Identity) -> Channel {
        let address = self.fleet.config().fleet().service_url("projects").unwrap();
        let sign = SignLayer::with_identity(self.context.signer().clone(), identity);
        Channel::to(&address, &sign).unwrap()
    }

    pub fn member(&self, workspace: Id<id::Workspace>, role: Role) -> Channel {
        let user = Principal::User(Id::new(self.now()));
        self.channel(Identity::member(workspace, user, role))
    }

    pub fn runs(&self) -> RunServiceClient<Channel> {
        RunServiceClient::new(self.member(self.workspace, Role::Editor))
    }

    pub fn projects(&self) -> ProjectServiceClient<Channel> {
        ProjectServiceClient::new(self.member(self.workspace, Role::Editor))
    }

    pub fn models(&self) -> ModelServiceClient<Channel> {
        ModelServiceClient::new(self.member(self.workspace, Role::Editor))
    }

    /// Returns a client with the identity of a machine that trains.
    pub fn worker(&self) -> RunServiceClient<Channel> {
        let principal = Principal::Worker(worker_id());
        let service = Identity::service("worker");
        let identity = Identity {
            principal,
            role: Role::Worker,
            ..service
        };
        RunServiceClient::new(self.channel(identity))
    }

    pub fn start_request(&self) -> StartRunRequest {
        StartRunRequest {
            version_id: self.version.clone(),
            spec: Some(TrainSpec {
                model: "yolo11n".into(),
                epochs: 3,
                batch: 16,
                image_size: 320,
                ..TrainSpec::default()
            }),
            gpu_type: "cpu".into(),
            ..StartRunRequest::default()
        }
    }

    pub async fn start_run(&self) -> Run {
        let started = self.runs().start_run(self.start_request()).await.unwrap();
        started.into_inner().run.unwrap()
    }

    pub async fn run(&self, id: &str) -> Run {
        let request = GetRunRequest {
            run_id: id.to_owned(),
        };
        self.runs()
            .get_run(request)
            .await
            .unwrap()
            .into_inner()
            .run
            .unwrap()
    }

    pub async fn wait_for_state(&self, id: &str, state: RunState) -> Run {
        wait_for(state.as_str_name(), || async {
            Some(self.run(id).await).filter(|run| run.state() == state)
        })
        .await
    }

    /// Tells a fact as the scheduler.
    pub async fn tell_scheduler<M: Fact>(&self, entity: &str, fact: &M) {
        tell(&self.scheduler, self.workspace, entity, fact).await;
    }

    /// Tells a fact as billing.
    pub async fn tell_billing<M: Fact>(&self, entity: &str, fact: &M) {
        tell(&self.billing, self.workspace, entity, fact).await;
    }

    pub async fn lease(&self, run: &str, fence: i64) {
        let fact = JobLeased {
            job_id: "job".into(),
            run_id: run.into(),
            worker_id: worker_id().to_string(),
            lease_id: "lease".into(),
            fence,
        };
        self.tell_scheduler(run, &fact).await;
    }

    pub async fn requeue(&self, run: &str, fence: i64) {
        let fact = JobRequeued {
            job_id: "job".into(),
            run_id: run.into(),
            fence,
            cause: "worker_lost".into(),
        };
        self.tell_scheduler(run, &fact).await;
    }

    pub fn begin_request(&self, run: &str, fence: i64) -> BeginAttemptRequest {
        BeginAttemptRequest {
            run_id: run.into(),
            fence,
            worker_id: worker_id().to_string(),
            device: "two threads".into(),
            device_kind: "cpu/f32".into(),
        }
    }

    pub async fn begin(&self, run: &str, fence: i64) -> BeginAttemptResponse {
        self.worker()
            .begin_attempt(self.begin_request(run, fence))
            .await
            .unwrap()
            .into_inner()
    }

    pub async fn phase(&self, run: &str, fence: i64, phase: RunState) {
        let request = ReportPhaseRequest {
            run_id: run.into(),
            fence,
            phase: phase.into(),
        };
        self.worker().report_phase(request).await.unwrap();
    }

    /// Stores bytes as a worker does: in the blobs of `projects`.
    pub async fn put(&self, text: &str) -> (String, i64) {
        let blobs = self.context.blobs().of("projects");
        let bytes = bytes::Bytes::copy_from_slice(text.as_bytes());
        let blob = blobs.put(self.workspace, bytes).await.unwrap();
        (blob.key.hash().to_hex().to_string(), blob.size_bytes as i64)
    }

    pub async fn has_blob(&self, digest: &str) -> bool {
        let hash = blake3::Hash::from_hex(digest).unwrap();
        let key = kit::blobs::BlobKey::new("projects", self.workspace, hash);
        self.context.blobs().exists(&key).await.unwrap()
    }

    pub async fn checkpoint_request(
        &self,
        run: &str,
        fence: i64,
        step: i64,
        committed_seconds: i64,
    ) -> RecordCheckpointRequest {
        let (digest, size_bytes) = self.put(&format!("checkpoint of {run} at {step}")).await;
        RecordCheckpointRequest {
            run_id: run.into(),
            fence,
            epoch: 1,
            step,
            digest,
            size_bytes,
            committed: seconds(committed_seconds),
            metrics: [("metrics/mAP50(B)".to_owned(), 0.5)].into(),
            is_best: false,
        }
    }

    pub async fn checkpoint(&self, run: &str, fence: i64, step: i64, committed: i64) -> String {
        let request = self.checkpoint_request(run, fence, step, committed).await;
        self.worker()
            .record_checkpoint(request)
            .await
            .unwrap()
            .into_inner()
            .checkpoint_id
    }

    pub async fn finish_request(
        &self,
        run: &str,
        fence: i64,
        outcome: &str,
        committed_seconds: i64,
    ) -> FinishAttemptRequest {
        let mut artifacts = Vec::new();
        for (kind, file_name) in [("weights", "best.safetensors"), ("onnx", "best.onnx")] {
            let (digest, size_bytes) = self.put(&format!("{kind} of {run}")).await;
            let (kind, file_name) = (kind.into(), file_name.into());
            artifacts.push(Artifact {
                kind,
                file_name,
                digest,
                size_bytes,
            });
        }
        FinishAttemptRequest {
            run_id: run.into(),
            fence,
            outcome: outcome.into(),
            cause: String::new(),
            committed: seconds(committed_seconds),
            metrics: [("metrics/mAP50(B)".to_owned(), 0.75)].into(),
            artifacts,
            epochs_done: 3,
        }
    }

    pub async fn finish(&self, run: &str, fence: i64, outcome: &str, committed: i64) -> Run {
        let request = self.finish_request(run, fence, outcome, committed).await;
        self.worker()
            .finish_attempt(request)
            .await
            .unwrap()
            .into_inner()
            .run
            .unwrap()
    }

    /// Starts a run and brings it to training under fence 1.
    pub async fn train(&self) -> Run {
        let run = self.start_run().await;
        self.begin(&run.id, 1).await;
        self.phase(&run.id, 1, RunState::Training).await;
        run
    }

    /// Returns the short names of the facts that `projects` has told, in order.
    pub fn facts(&self) -> Vec<String> {
        let told = self.told.lock().unwrap();
        let own = told.iter().filter(|fact| fact.source == "/fovea/projects");
        own.map(|fact| fact.name.rsplit('.').next().unwrap().to_owned())
            .collect()
    }

    /// Waits until `projects` has told just these facts.
    pub async fn wait_for_facts(&self, expected: &[&str]) {
        let what = format!("the facts {expected:?}");
        let told = wait_for(&what, || async {
            Some(self.facts()).filter(|facts| facts.len() >= expected.len())
        })
        .await;
        assert_eq!(told, expected);
    }

    /// Returns the newest fact of this kind.
    pub async fn fact<M: Fact>(&self) -> M {
        wait_for(&M::full_name(), || async {
            let told = self.told.lock().unwrap();
            told.iter()
                .rev()
                .find(|fact| fact.is::<M>())
                .map(|fact| fact.decode().unwrap())
        })
        .await
    }

    /// Returns the newest fact of this kind once it is the one that is waited for.
    pub async fn fact_where<M: Fact>(&self, is_wanted: impl Fn(&M) -> bool) -> M {
        wait_for(&M::full_name(), || async {
            let told = self.told.lock().unwrap();
            let newest = told.iter().rev().find(|fact| fact.is::<M>());
            newest
                .map(|fact| fact.decode::<M>().unwrap())
                .filter(|fact| is_wanted(fact))
        })
        .await
    }

    /// Publishes telemetry as a worker does.
    pub async fn publish(&self, noun: &str, run: &str, message: &impl prost::Message) {
        let bus = self.scheduler.0.bus();
        let sent = bus
            .publish_telemetry(self.workspace, noun, run, message)
            .await;
        assert!(sent, "{noun}");
    }
}

async fn tell<M: Fact>(
    (context, store): &(Context, Store),
    workspace: Id<id::Workspace>,
    entity: &str,
    fact: &M,
) {
    store
        .write(|tx| async move { tx.tell(Some(workspace), entity, fact).await.map(drop) })
        .await
        .unwrap_or_else(|error: kit::store::Error| panic!("{error:?}"));
    kit::bus::relay_once(context.bus(), store).await.unwrap();
}

fn play(context: Context, routes: Routes) -> JoinHandle<()> {
    tokio::spawn(async move {
        kit::service::serve_grpc(&context, routes, &[])
            .await
            .unwrap();
    })
}

pub fn worker_id() -> Id<id::Worker> {
    Id::from_bytes([7; 16])
}

pub fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

/// Returns the reason of a refusal.
pub fn reason<T: std::fmt::Debug>(outcome: Result<T, tonic::Status>) -> String {
    Fault::from(outcome.unwrap_err()).reason.to_string()
}

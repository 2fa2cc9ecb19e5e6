//! A workspace can neither see nor infer another's runs, projects and models.

use std::collections::BTreeSet;

use kit::Id;
use kit::auth::Role;
use kit::fault::Fault;
use proto::fovea::models::v1::model_service_client::ModelServiceClient;
use proto::fovea::models::v1::*;
use proto::fovea::projects::v1::project_service_client::ProjectServiceClient;
use proto::fovea::projects::v1::*;
use proto::fovea::runs::v1::run_service_client::RunServiceClient;
use proto::fovea::runs::v1::*;

use crate::world::{reason, worlds};

const SERVICES: [&str; 3] = [
    "fovea.projects.v1.ProjectService",
    "fovea.runs.v1.RunService",
    "fovea.models.v1.ModelService",
];

/// Returns the methods of our services with this access.
fn methods(access: proto::Access) -> BTreeSet<String> {
    let services = proto::pool()
        .services()
        .filter(|it| SERVICES.contains(&it.full_name()));
    let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
    let methods = methods.filter(|method| proto::access(method) == access);
    methods.map(|method| method.name().to_owned()).collect()
}

#[tokio::test]
async fn another_workspace_sees_not_found_on_every_rpc() {
    for world in worlds().await {
        let run = world.train().await;
        let done = world.finish(&run.id, 1, "completed", 0).await;
        let (run_id, project_id, model_id) = (run.id, run.project_id, done.model_id);
        let stranger = world.member(Id::from_bytes([9; 16]), Role::Owner);
        let mut runs = RunServiceClient::new(stranger.clone());
        let mut projects = ProjectServiceClient::new(stranger.clone());
        let mut models = ModelServiceClient::new(stranger);
        let mut tried = BTreeSet::new();
        macro_rules! refused {
            ($client:ident $method:ident $name:literal $reason:literal $request:expr) => {
                let outcome = $client.$method($request).await.map(drop);
                assert_eq!(reason(outcome), $reason, $name);
                tried.insert($name.to_owned());
            };
        }
        let id = || run_id.clone();
        refused!(runs get_run "GetRun" "RUN_NOT_FOUND" GetRunRequest { run_id: id() });
        let request = StopRunRequest {
            run_id: id(),
            pause: false,
        };
        refused!(runs stop_run "StopRun" "RUN_NOT_FOUND" request);
        let request = ResumeRunRequest {
            run_id: id(),
            cost_cap_micros: 0,
        };
        refused!(runs resume_run "ResumeRun" "RUN_NOT_FOUND" request);
        let absent = Id::<kit::id::Run>::from_bytes([3; 16]).to_string();
        let request = CompareRunsRequest {
            run_ids: vec![id(), absent],
        };
        refused!(runs compare_runs "CompareRuns" "RUN_NOT_FOUND" request);
        let request = ListMetricsRequest {
            run_id: id(),
            ..Default::default()
        };
        refused!(runs list_metrics "ListMetrics" "RUN_NOT_FOUND" request);
        let request = ListLogsRequest {
            run_id: id(),
            ..Default::default()
        };
        refused!(runs list_logs "ListLogs" "RUN_NOT_FOUND" request);
        let request = ListCheckpointsRequest { run_id: id() };
        refused!(runs list_checkpoints "ListCheckpoints" "RUN_NOT_FOUND" request);
        let request = FollowRunRequest {
            run_id: id(),
            cursor: 0,
        };
        refused!(runs follow_run "FollowRun" "RUN_NOT_FOUND" request);
        refused!(runs start_run "StartRun" "VERSION_NOT_FOUND" world.start_request());
        let request = GetProjectRequest {
            project_id: project_id.clone(),
        };
        refused!(projects get_project "GetProject" "PROJECT_NOT_FOUND" request);
        let request = GetModelRequest {
            model_id: model_id.clone(),
        };
        refused!(models get_model "GetModel" "MODEL_NOT_FOUND" request);
        let request = ExportModelRequest {
            model_id,
            format: "onnx".into(),
        };
        refused!(models export_model "ExportModel" "MODEL_NOT_FOUND" request);

        // Lists are empty, also of a project whose id was guessed; a name can be used again.
        let request = ListRunsRequest {
            project_id: project_id.clone(),
            ..Default::default()
        };
        assert_eq!(runs.list_runs(request).await.unwrap().into_inner().runs, []);
        let request = ListRunsRequest::default();
        assert_eq!(runs.list_runs(request).await.unwrap().into_inner().runs, []);
        let request = ListModelsRequest {
            project_id,
            ..Default::default()
        };
        assert_eq!(
            models
                .list_models(request)
                .await
                .unwrap()
                .into_inner()
                .models,
            []
        );
        let request = ListProjectsRequest::default();
        assert_eq!(
            projects
                .list_projects(request)
                .await
                .unwrap()
                .into_inner()
                .projects,
            []
        );
        let request = CreateProjectRequest {
            name: "default".into(),
            ..Default::default()
        };
        projects.create_project(request).await.unwrap();
        tried.extend(["ListRuns", "ListModels", "ListProjects", "CreateProject"].map(String::from));
        assert_eq!(
            tried,
            methods(proto::Access::Public),
            "every public RPC is tried"
        );

        // What is not there and what is another's is the same refusal.
        let mine = runs
            .get_run(GetRunRequest {
                run_id: run_id.clone(),
            })
            .await
            .unwrap_err();
        let other = Id::<kit::id::Run>::from_bytes([3; 16]).to_string();
        let none = runs
            .get_run(GetRunRequest {
                run_id: other.clone(),
            })
            .await
            .unwrap_err();
        assert_eq!(
            mine.message().replace(&run_id, ""),
            none.message().replace(&other, "")
        );
        assert_eq!(Fault::from(mine).metadata, Fault::from(none).metadata);
    }
}

#[tokio::test]
async fn a_project_of_another_workspace_takes_no_runs() {
    for world in worlds().await {
        let run = world.start_run().await;
        let other = Id::from_bytes([9; 16]);
        let version = Id::<kit::id::Version>::from_bytes([4; 16]).to_string();
        world
            .neighbours
            .with(|state| state.versions.insert(version.clone(), other));
        let mut runs = RunServiceClient::new(world.member(other, Role::Owner));
        let mut request = world.start_request();
        (request.version_id, request.project_id) = (version, run.project_id);
        assert_eq!(reason(runs.start_run(request).await), "PROJECT_NOT_FOUND");
    }
}

#[tokio::test]
async fn members_are_no_workers_and_viewers_change_nothing() {
    for world in worlds().await {
        let run = world.train().await;
        let id = || run.id.clone();
        let mut owner = RunServiceClient::new(world.member(world.workspace, Role::Owner));
        let mut tried = BTreeSet::new();
        macro_rules! denied {
            ($client:ident $method:ident $name:literal $request:expr) => {
                let outcome = $client.$method($request).await.map(drop);
                assert_eq!(reason(outcome), "ROLE_TOO_LOW", $name);
                tried.insert($name.to_owned());
            };
        }
        denied!(owner begin_attempt "BeginAttempt" world.begin_request(&run.id, 2));
        let request = ReportPhaseRequest {
            run_id: id(),
            fence: 1,
            phase: 5,
        };
        denied!(owner report_phase "ReportPhase" request);
        let request = SignBlobRequest {
            run_id: id(),
            fence: 1,
            ..Default::default()
        };
        denied!(owner sign_blob "SignBlob" request);
        let request = world.checkpoint_request(&run.id, 1, 1, 0).await;
        denied!(owner record_checkpoint "RecordCheckpoint" request);
        let request = world.finish_request(&run.id, 1, "completed", 0).await;
        denied!(owner finish_attempt "FinishAttempt" request);
        assert_eq!(
            tried,
            methods(proto::Access::Worker),
            "every worker RPC is tried"
        );

        let viewer = world.member(world.workspace, Role::Viewer);
        let mut viewers = RunServiceClient::new(viewer.clone());
        viewers
            .get_run(GetRunRequest { run_id: id() })
            .await
            .unwrap();
        denied!(viewers start_run "StartRun" world.start_request());
        denied!(viewers stop_run "StopRun" StopRunRequest { run_id: id(), pause: true });
        let request = ResumeRunRequest {
            run_id: id(),
            cost_cap_micros: 0,
        };
        denied!(viewers resume_run "ResumeRun" request);
        let mut viewers = ProjectServiceClient::new(viewer);
        let request = CreateProjectRequest {
            name: "x".into(),
            ..Default::default()
        };
        denied!(viewers create_project "CreateProject" request);
        let mut worker = world.worker();
        assert!(
            worker
                .get_run(GetRunRequest { run_id: id() })
                .await
                .is_err()
        );
    }
}

//! The whole life of a run, through gRPC and facts.

use kit::bus::Envelope;
use kit::testing::wait_for;
use proto::fovea::billing::v1::{CreditAdded, HoldExhausted};
use proto::fovea::models::v1::*;
use proto::fovea::projects::v1::*;
use proto::fovea::runs::v1::*;

use crate::world::{World, reason, seconds, worlds};

#[tokio::test]
async fn a_run_lives_from_its_start_to_its_model() {
    for world in worlds().await {
        let run = world.start_run().await;
        assert_eq!(
            (run.state(), run.name.as_str()),
            (RunState::Queued, "yolo11n-1")
        );
        assert_eq!(run.price_per_hour_micros, 3_600_000);
        let hold = world.neighbours.with(|state| state.holds[&run.id].clone());
        assert_eq!((hold.amount_micros, hold.cap_micros), (2_000, 2_000));
        let queued: RunQueued = world.fact().await;
        assert_eq!((queued.cause.as_str(), queued.fence), ("start", 0));
        assert_eq!(queued.spec.unwrap().model, "yolo11n");

        world.lease(&run.id, 1).await;
        world.wait_for_state(&run.id, RunState::Provisioning).await;
        let begun = world.begin(&run.id, 1).await;
        assert_eq!(begun.workspace_id, world.workspace.to_string());
        assert_eq!((begun.resume_from, begun.next_log_sequence), (None, 1));
        assert_eq!(begun.checkpoint_interval, seconds(300));
        assert_eq!(world.run(&run.id).await.state(), RunState::Preparing);
        world.phase(&run.id, 1, RunState::Training).await;
        world.pass(30);
        world.checkpoint(&run.id, 1, 100, 12).await;
        let checkpointed: RunCheckpointed = world.fact().await;
        assert_eq!(
            (checkpointed.step, checkpointed.committed),
            (100, seconds(12))
        );
        world.phase(&run.id, 1, RunState::Validating).await;
        let done = world.finish(&run.id, 1, "completed", 20).await;
        assert_eq!(
            (done.state(), done.committed),
            (RunState::Completed, seconds(20))
        );
        assert!(done.is_bit_exact && done.finished_at.is_some());
        assert_eq!(done.attempts[0].outcome, "completed");
        let again = world.finish(&run.id, 1, "completed", 20).await;
        assert_eq!(again, done, "repeated");
        world
            .wait_for_facts(&[
                "ProjectCreated",
                "RunQueued",
                "RunStarted",
                "RunCheckpointed",
                "RunCompleted",
                "ModelCreated",
            ])
            .await;
        let completed: RunCompleted = world.fact().await;
        assert_eq!(
            (completed.committed, &completed.model_id),
            (seconds(20), &done.model_id)
        );
        check_model(&world, &done).await;
    }
}

async fn check_model(world: &World, run: &Run) {
    let model_id = run.model_id.clone();
    let request = GetModelRequest {
        model_id: model_id.clone(),
    };
    let model = world
        .models()
        .get_model(request)
        .await
        .unwrap()
        .into_inner()
        .model
        .unwrap();
    assert_eq!(
        (model.run_id.as_str(), model.architecture.as_str()),
        (&*run.id, "yolo11n")
    );
    assert_eq!(model.class_names, ["RBC", "WBC", "Platelets"]);
    assert_eq!(model.metrics["metrics/mAP50(B)"], 0.75);
    let request = ListModelsRequest {
        project_id: run.project_id.clone(),
        ..Default::default()
    };
    let listed = world
        .models()
        .list_models(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.models, [model]);

    let request = ExportModelRequest {
        model_id: model_id.clone(),
        format: "onnx".into(),
    };
    let file = world
        .models()
        .export_model(request)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(file.file_name, "best.onnx");
    let (path, query) = file.url.split_once('?').unwrap();
    let urls = world.context.blobs().urls();
    let (key, _) = urls
        .verify(&http::Method::GET, path, query, world.now())
        .unwrap();
    let bytes = world
        .context
        .blobs()
        .get_range(&key, 0..file.size_bytes as u64)
        .await
        .unwrap();
    assert_eq!(bytes, format!("onnx of {}", run.id));
    let request = ExportModelRequest {
        model_id,
        format: "tflite".into(),
    };
    let missing = world.models().export_model(request).await;
    assert_eq!(reason(missing), "MODEL_FILE_MISSING");

    let projects = world
        .projects()
        .list_projects(ListProjectsRequest::default())
        .await
        .unwrap();
    let projects = projects.into_inner().projects;
    assert_eq!(
        (projects[0].name.as_str(), projects[0].run_count),
        ("default", 1)
    );
}

#[tokio::test]
async fn a_run_without_a_worker_stops_at_once_and_one_with_a_worker_when_it_can() {
    for world in worlds().await {
        let stop = |run_id: &str, pause| StopRunRequest {
            run_id: run_id.into(),
            pause,
        };
        let queued = world.start_run().await;
        let stopped = world
            .runs()
            .stop_run(stop(&queued.id, false))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(stopped.run.unwrap().state(), RunState::Cancelled);
        let again = world
            .runs()
            .stop_run(stop(&queued.id, false))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(again.run.unwrap().state(), RunState::Cancelled, "repeated");
        let begun = world
            .worker()
            .begin_attempt(world.begin_request(&queued.id, 1))
            .await;
        assert_eq!(reason(begun), "RUN_ENDED");

        let run = world.train().await;
        let asked = world
            .runs()
            .stop_run(stop(&run.id, false))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(asked.run.unwrap().state(), RunState::Training);
        let _: RunCancelRequested = world.fact().await;
        world.pass(10);
        let done = world.finish(&run.id, 1, "cancelled", 5).await;
        assert_eq!(done.state(), RunState::Cancelled);
        let cancelled = world
            .fact_where(|fact: &RunCancelled| fact.run_id == run.id)
            .await;
        assert_eq!(cancelled.committed, seconds(5));
        assert_eq!(
            reason(world.runs().resume_run(resume(&queued.id, 0)).await),
            "RUN_ENDED"
        );
    }
}

#[tokio::test]
async fn a_run_pauses_for_want_of_credit_and_goes_on_when_some_comes_in() {
    for world in worlds().await {
        let run = world.train().await;
        let fact = HoldExhausted {
            run_id: run.id.clone(),
            cause: "balance".into(),
        };
        world.tell_billing(&run.id, &fact).await;
        let asked: RunPauseRequested = world.fact().await;
        assert_eq!(asked.cause, "balance");
        let paused = world.finish(&run.id, 1, "paused", 0).await;
        assert_eq!(
            (paused.state(), paused.cause.as_str()),
            (RunState::Paused, "balance")
        );

        // Too little for this run: it stays where it is, and the next credit asks again.
        world.neighbours.with(|state| state.balance_is_low = true);
        let calls = world.neighbours.with(|state| state.hold_calls);
        let credit = CreditAdded {
            amount_micros: 1,
            available_micros: 1,
        };
        world.tell_billing("ws", &credit).await;
        wait_for("a hold is tried", || async {
            world
                .neighbours
                .with(|state| (state.hold_calls > calls).then_some(()))
        })
        .await;
        assert_eq!(world.run(&run.id).await.state(), RunState::Paused);
        world.neighbours.with(|state| state.balance_is_low = false);
        world.tell_billing("ws", &credit).await;
        world.wait_for_state(&run.id, RunState::Queued).await;
        let queued = world
            .fact_where(|fact: &RunQueued| fact.cause != "start")
            .await;
        assert_eq!((queued.cause.as_str(), queued.fence), ("resume", 1));
        let begun = world
            .worker()
            .begin_attempt(world.begin_request(&run.id, 1))
            .await;
        assert_eq!(reason(begun), "STALE_FENCE");
        world.begin(&run.id, 2).await;
    }
}

#[tokio::test]
async fn a_run_at_its_cap_needs_a_higher_one() {
    for world in worlds().await {
        let run = world.start_run().await;
        let fact = HoldExhausted {
            run_id: run.id.clone(),
            cause: "cap".into(),
        };
        world.tell_billing(&run.id, &fact).await;
        world.wait_for_state(&run.id, RunState::Paused).await;
        let refused = world.runs().resume_run(resume(&run.id, 0)).await;
        assert_eq!(reason(refused), "COST_CAP_REACHED");
        let resumed = world
            .runs()
            .resume_run(resume(&run.id, 9_000))
            .await
            .unwrap();
        let resumed = resumed.into_inner().run.unwrap();
        assert_eq!(
            (resumed.state(), resumed.cost_cap_micros),
            (RunState::Queued, 9_000)
        );
        let hold = world.neighbours.with(|state| state.holds[&run.id].clone());
        assert_eq!(hold.cap_micros, 9_000);
    }
}

fn resume(run_id: &str, cost_cap_micros: i64) -> ResumeRunRequest {
    ResumeRunRequest {
        run_id: run_id.into(),
        cost_cap_micros,
    }
}

#[tokio::test]
async fn runs_are_compared_by_what_differs_and_what_they_came_to() {
    let world = Box::pin(World::start(None)).await;
    let one = world.train().await;
    world.checkpoint(&one.id, 1, 10, 0).await;
    let mut request = world.start_request();
    request.spec.as_mut().unwrap().batch = 32;
    let two = world
        .runs()
        .start_run(request)
        .await
        .unwrap()
        .into_inner()
        .run
        .unwrap();
    let run_ids = vec![one.id.clone(), two.id];
    let compared = world
        .runs()
        .compare_runs(CompareRunsRequest { run_ids })
        .await
        .unwrap();
    let compared = compared.into_inner();
    assert_eq!(compared.differences.len(), 1);
    assert_eq!(compared.differences[0].values, ["16", "32"]);
    let metric = &compared.metrics[0];
    assert!(metric.higher_is_better && metric.best[0] == 0.5 && metric.best[1].is_nan());
    let twice = CompareRunsRequest {
        run_ids: vec![one.id.clone(), one.id],
    };
    assert_eq!(
        reason(world.runs().compare_runs(twice).await),
        "FIELD_INVALID"
    );
}

#[tokio::test]
async fn pages_of_runs_follow_each_other_without_gap_or_overlap() {
    for world in worlds().await {
        let mut started = Vec::new();
        for _ in 0..5 {
            started.insert(0, world.start_run().await.id);
            world.pass(1);
        }
        let (mut listed, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = ListRunsRequest {
                page_size: 2,
                page_token,
                ..Default::default()
            };
            let page = world.runs().list_runs(request).await.unwrap().into_inner();
            listed.extend(page.runs.into_iter().map(|run| run.id));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(listed, started);
        let told: Vec<Envelope> = world.told.lock().unwrap().clone();
        let projects = told
            .iter()
            .filter(|fact| fact.is::<ProjectCreated>())
            .count();
        assert_eq!(projects, 1, "the default project is made once");
    }
}

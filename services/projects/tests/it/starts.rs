//! Starting: once, with reasons, and whatever happens in between.

use kit::testing::wait_for;
use proto::fovea::projects::v1::*;
use proto::fovea::runs::v1::*;

use crate::world::{World, reason, worlds};

async fn runs(world: &World) -> Vec<Run> {
    world
        .runs()
        .list_runs(ListRunsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .runs
}

#[tokio::test]
async fn a_start_that_is_refused_says_why_and_leaves_nothing() {
    for world in worlds().await {
        for (gpu_type, expected) in [
            ("nowhere", "GPU_NOT_OFFERED"),
            ("unheard-of", "GPU_NOT_OFFERED"),
            ("h200", "GPU_NOT_IN_PLAN"),
            ("small", "BATCH_DOES_NOT_FIT"),
        ] {
            let request = StartRunRequest {
                gpu_type: gpu_type.into(),
                ..world.start_request()
            };
            assert_eq!(reason(world.runs().start_run(request).await), expected);
        }
        let mut request = world.start_request();
        request.version_id = kit::Id::<kit::id::Version>::from_bytes([1; 16]).to_string();
        assert_eq!(
            reason(world.runs().start_run(request).await),
            "VERSION_NOT_FOUND"
        );
        let mut request = world.start_request();
        request.spec.as_mut().unwrap().image_size = 100;
        assert_eq!(
            reason(world.runs().start_run(request).await),
            "FIELD_INVALID"
        );
        world.neighbours.with(|state| state.balance_is_low = true);
        let refused = world.runs().start_run(world.start_request()).await;
        assert_eq!(reason(refused), "BALANCE_TOO_LOW");
        assert_eq!(runs(&world).await, []);
        world.neighbours.with(|state| state.balance_is_low = false);
        let cheapest = StartRunRequest {
            gpu_type: String::new(),
            ..world.start_request()
        };
        let run = world
            .runs()
            .start_run(cheapest)
            .await
            .unwrap()
            .into_inner()
            .run
            .unwrap();
        assert_eq!(run.gpu_type, "cpu");
        world.wait_for_facts(&["ProjectCreated", "RunQueued"]).await;
    }
}

#[tokio::test]
async fn the_same_key_starts_one_run_and_another_request_is_refused() {
    for world in worlds().await {
        let mut request = world.start_request();
        request.idempotency_key = "k".into();
        request.spec.as_mut().unwrap().arguments =
            (0..20).map(|n| (format!("a{n}"), n.to_string())).collect();
        let (mut one, mut two) = (world.runs(), world.runs());
        let (first, second) = tokio::join!(
            one.start_run(request.clone()),
            two.start_run(request.clone())
        );
        let first = first.unwrap().into_inner().run.unwrap();
        assert_eq!(second.unwrap().into_inner().run.unwrap().id, first.id);
        request.spec.as_mut().unwrap().epochs = 4;
        let other = world.runs().start_run(request).await;
        assert_eq!(reason(other), "IDEMPOTENCY_KEY_REUSED");
        assert_eq!(runs(&world).await.len(), 1);
        world.wait_for_facts(&["ProjectCreated", "RunQueued"]).await;
    }
}

#[tokio::test]
async fn an_interrupted_start_is_finished_with_a_key_and_failed_without() {
    for mut world in worlds().await {
        world.neighbours.with(|state| state.billing_is_away = true);
        let keyed = StartRunRequest {
            idempotency_key: "k".into(),
            ..world.start_request()
        };
        assert_eq!(
            reason(world.runs().start_run(keyed.clone()).await),
            "STORE_UNAVAILABLE"
        );
        world.pass(1);
        let refused = world.runs().start_run(world.start_request()).await;
        assert_eq!(reason(refused), "STORE_UNAVAILABLE");
        let states: Vec<_> = runs(&world).await.iter().map(|run| run.state()).collect();
        assert_eq!(states, [RunState::Created, RunState::Created]);
        world.kill_and_restart().await;
        world.neighbours.with(|state| state.billing_is_away = false);
        world.pass(11);
        let ended = wait_for("both starts are gone on with", || async {
            let runs = runs(&world).await;
            runs.iter()
                .all(|run| run.state() != RunState::Created)
                .then_some(runs)
        })
        .await;
        let (unkeyed, finished) = (&ended[0], &ended[1]);
        assert_eq!(finished.state(), RunState::Queued);
        assert_eq!(unkeyed.state(), RunState::Failed);
        assert_eq!(unkeyed.cause, "the start was interrupted");
        let released = world.neighbours.with(|state| state.released.clone());
        assert_eq!(released, std::slice::from_ref(&unkeyed.id));
        let again = world
            .runs()
            .start_run(keyed)
            .await
            .unwrap()
            .into_inner()
            .run
            .unwrap();
        assert_eq!(again.id, finished.id);
    }
}

#[tokio::test]
async fn a_project_has_a_name_of_its_own() {
    for world in worlds().await {
        let request = CreateProjectRequest {
            name: " cells ".into(),
            description: "blood".into(),
            idempotency_key: "k".into(),
        };
        let made = world
            .projects()
            .create_project(request.clone())
            .await
            .unwrap()
            .into_inner();
        let again = world
            .projects()
            .create_project(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(made, again);
        let project = made.project.unwrap();
        assert_eq!(project.name, "cells");
        let twin = CreateProjectRequest {
            idempotency_key: String::new(),
            ..request.clone()
        };
        assert_eq!(
            reason(world.projects().create_project(twin).await),
            "PROJECT_NAME_TAKEN"
        );
        let other = CreateProjectRequest {
            name: "other".into(),
            ..request
        };
        assert_eq!(
            reason(world.projects().create_project(other).await),
            "IDEMPOTENCY_KEY_REUSED"
        );
        let mut request = world.start_request();
        request.project_id = project.id.clone();
        let run = world
            .runs()
            .start_run(request)
            .await
            .unwrap()
            .into_inner()
            .run
            .unwrap();
        assert_eq!(run.project_id, project.id);
    }
}

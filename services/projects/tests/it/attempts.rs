//! Workers, fences, checkpoints.

use kit::testing::wait_for;
use proto::fovea::runs::v1::*;

use crate::world::{World, reason, seconds, worlds};

#[tokio::test]
async fn a_stale_fence_writes_nothing() {
    for world in worlds().await {
        let run = world.train().await;
        world.lease(&run.id, 2).await;
        let before = world.wait_for_state(&run.id, RunState::Provisioning).await;
        assert_eq!(before.attempts[0].outcome, "lost");
        refuses_all(&world, &run.id, 1, "STALE_FENCE").await;
        world.begin(&run.id, 3).await;
        refuses_all(&world, &run.id, 1, "STALE_FENCE").await;
        refuses_all(&world, &run.id, 2, "STALE_FENCE").await;
        refuses_all(&world, &run.id, 4, "ATTEMPT_NOT_BEGUN").await;
        let after = world.run(&run.id).await;
        assert_eq!(
            (after.state(), after.attempts.len()),
            (RunState::Preparing, 2)
        );
        assert_eq!(after.fence, 3);
    }
}

/// Tries all that a worker can do under a fence.
async fn refuses_all(world: &World, run: &str, fence: i64, expected: &str) {
    let mut worker = world.worker();
    if expected == "STALE_FENCE" {
        let begun = worker.begin_attempt(world.begin_request(run, fence)).await;
        assert_eq!(reason(begun), expected);
    }
    let phase = RunState::Training.into();
    let request = ReportPhaseRequest {
        run_id: run.into(),
        fence,
        phase,
    };
    assert_eq!(reason(worker.report_phase(request).await), expected);
    let digest = blake3::hash(b"x").to_hex().to_string();
    let request = SignBlobRequest {
        run_id: run.into(),
        fence,
        digest,
        size_bytes: 1,
    };
    assert_eq!(reason(worker.sign_blob(request).await), expected);
    let request = world.checkpoint_request(run, fence, 500, 0).await;
    assert_eq!(reason(worker.record_checkpoint(request).await), expected);
    let request = world.finish_request(run, fence, "completed", 0).await;
    assert_eq!(reason(worker.finish_attempt(request).await), expected);
}

#[tokio::test]
async fn a_lost_worker_is_replaced_from_the_last_checkpoint() {
    for world in worlds().await {
        let run = world.train().await;
        world.pass(60);
        let mut best = world.checkpoint_request(&run.id, 1, 100, 20).await;
        best.is_best = true;
        world
            .worker()
            .record_checkpoint(best.clone())
            .await
            .unwrap();
        let checkpoint = world.checkpoint(&run.id, 1, 200, 40).await;
        world.requeue(&run.id, 1).await;
        world.wait_for_state(&run.id, RunState::Queued).await;
        let queued = world
            .fact_where(|fact: &RunQueued| fact.cause != "start")
            .await;
        assert_eq!((queued.cause.as_str(), queued.fence), ("worker_lost", 1));
        world.requeue(&run.id, 1).await;

        let begun = world.begin(&run.id, 2).await;
        let resume = begun.resume_from.unwrap();
        assert_eq!((resume.id, resume.step), (checkpoint, 200));
        assert!(
            begun.resume_url.contains(&resume.digest),
            "{}",
            begun.resume_url
        );
        assert_eq!(begun.best_checkpoint.unwrap().digest, best.digest);
        assert!(begun.best_url.contains(&best.digest));
        world.phase(&run.id, 2, RunState::Training).await;
        world.pass(60);
        let backwards = world.checkpoint_request(&run.id, 2, 150, 5).await;
        assert_eq!(
            reason(world.worker().record_checkpoint(backwards).await),
            "FIELD_INVALID"
        );
        world.checkpoint(&run.id, 2, 300, 25).await;
        let third = |fact: &RunCheckpointed| fact.step == 300;
        let checkpointed = world.fact_where(third).await;
        assert_eq!(
            checkpointed.committed,
            seconds(65),
            "the sum over both attempts"
        );
        let run = world.run(&run.id).await;
        assert!(run.is_bit_exact);
        let committed: Vec<_> = run.attempts.iter().map(|it| it.committed).collect();
        assert_eq!(committed, [seconds(40), seconds(25)]);
        let expected = [
            "ProjectCreated",
            "RunQueued",
            "RunStarted",
            "RunCheckpointed",
            "RunCheckpointed",
            "RunQueued",
            "RunStarted",
            "RunCheckpointed",
        ];
        world.wait_for_facts(&expected).await;
    }
}

#[tokio::test]
async fn a_checkpoint_is_recorded_once_and_only_with_its_bytes() {
    for world in worlds().await {
        let run = world.train().await;
        world.pass(30);
        let mut request = world.checkpoint_request(&run.id, 1, 100, 20).await;
        let absent = blake3::hash(b"never stored").to_hex().to_string();
        let missing = RecordCheckpointRequest {
            digest: absent.clone(),
            ..request.clone()
        };
        assert_eq!(
            reason(world.worker().record_checkpoint(missing).await),
            "BLOB_MISSING"
        );
        let longer = RecordCheckpointRequest {
            size_bytes: 1,
            ..request.clone()
        };
        assert_eq!(
            reason(world.worker().record_checkpoint(longer).await),
            "BLOB_SIZE_DIFFERS"
        );
        let odd = RecordCheckpointRequest {
            digest: "../x".into(),
            ..request.clone()
        };
        assert_eq!(
            reason(world.worker().record_checkpoint(odd).await),
            "FIELD_INVALID"
        );

        let sign = |digest: &str, size_bytes| {
            let (run_id, digest) = (run.id.clone(), digest.to_owned());
            SignBlobRequest {
                run_id,
                fence: 1,
                digest,
                size_bytes,
            }
        };
        let signed = world
            .worker()
            .sign_blob(sign(&absent, 12))
            .await
            .unwrap()
            .into_inner();
        assert!(
            !signed.exists && signed.url.contains("max_bytes=12"),
            "{signed:?}"
        );
        let size_bytes = request.size_bytes;
        let signed = world
            .worker()
            .sign_blob(sign(&request.digest, size_bytes))
            .await
            .unwrap();
        assert!(signed.into_inner().exists);

        let first = world
            .worker()
            .record_checkpoint(request.clone())
            .await
            .unwrap()
            .into_inner();
        let again = world
            .worker()
            .record_checkpoint(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(first, again);
        (request.step, request.committed) = (101, seconds(19));
        let fell = world.worker().record_checkpoint(request.clone()).await;
        assert_eq!(reason(fell), "COMMITTED_TIME_FELL");
        request.committed = seconds(3_600);
        let too_long = world.worker().record_checkpoint(request).await;
        assert_eq!(reason(too_long), "COMMITTED_TIME_TOO_LONG");
        let expected = [
            "ProjectCreated",
            "RunQueued",
            "RunStarted",
            "RunCheckpointed",
        ];
        world.wait_for_facts(&expected).await;
        assert_eq!(world.run(&run.id).await.committed, seconds(20));
    }
}

#[tokio::test]
async fn needless_checkpoints_go_with_their_bytes_unless_others_need_them() {
    for world in worlds().await {
        let run = world.train().await;
        world.pass(60);
        let mut digests: Vec<String> = Vec::new();
        for step in 1..=6 {
            let mut request = world.checkpoint_request(&run.id, 1, step, step).await;
            request.is_best = step == 2;
            if step == 4 {
                // The same bytes as the first one, which is needless from now on.
                let first = world.checkpoint_request(&run.id, 1, 1, 1).await;
                (request.digest, request.size_bytes) = (first.digest, first.size_bytes);
            }
            digests.push(request.digest.clone());
            world.worker().record_checkpoint(request).await.unwrap();
        }
        let request = ListCheckpointsRequest {
            run_id: run.id.clone(),
        };
        let kept = world
            .runs()
            .list_checkpoints(request)
            .await
            .unwrap()
            .into_inner()
            .checkpoints;
        assert_eq!(
            kept.iter().map(|it| it.step).collect::<Vec<_>>(),
            [6, 5, 4, 2]
        );
        assert!(world.has_blob(&digests[2]).await, "within its grace");
        world.pass(61);
        wait_for("the needless bytes are removed", || async {
            (!world.has_blob(&digests[2]).await).then_some(())
        })
        .await;
        for step in [1, 2, 4, 5, 6] {
            assert!(world.has_blob(&digests[step - 1]).await, "{step}");
        }
        // What was removed can come again.
        world.pass(10);
        let request = world.checkpoint_request(&run.id, 1, 7, 7).await;
        world.worker().record_checkpoint(request).await.unwrap();
    }
}

#[tokio::test]
async fn a_completed_attempt_needs_stored_weights() {
    for world in worlds().await {
        let run = world.train().await;
        let mut request = world.finish_request(&run.id, 1, "completed", 0).await;
        request.artifacts.remove(0);
        assert_eq!(
            reason(world.worker().finish_attempt(request).await),
            "WEIGHTS_MISSING"
        );
        let mut request = world.finish_request(&run.id, 1, "completed", 0).await;
        request.artifacts[0].digest = blake3::hash(b"never stored").to_hex().to_string();
        assert_eq!(
            reason(world.worker().finish_attempt(request).await),
            "BLOB_MISSING"
        );
        let lost = world.finish_request(&run.id, 1, "lost", 0).await;
        assert_eq!(
            reason(world.worker().finish_attempt(lost).await),
            "FIELD_INVALID"
        );
        assert_eq!(world.run(&run.id).await.state(), RunState::Training);
        let drained = world.finish(&run.id, 1, "drained", 0).await;
        assert_eq!(drained.state(), RunState::Queued);
        let queued = world
            .fact_where(|fact: &RunQueued| fact.cause != "start")
            .await;
        assert_eq!((queued.cause.as_str(), queued.fence), ("drained", 1));
        let failed = world.begin(&run.id, 2).await.run.unwrap();
        assert_eq!(failed.state(), RunState::Preparing);
        let mut request = world.finish_request(&run.id, 2, "failed", 0).await;
        request.cause = "out of memory".into();
        world.worker().finish_attempt(request).await.unwrap();
        let failed: RunFailed = world.fact().await;
        assert_eq!(failed.cause, "out of memory");
    }
}

//! Any process can be killed at any moment and started again; nothing acknowledged is lost.

use proto::fovea::runs::v1::*;

use crate::world::{seconds, worlds};

#[tokio::test]
async fn the_service_can_be_killed_between_any_two_steps() {
    for mut world in worlds().await {
        let run = world.start_run().await;
        world.kill_and_restart().await;
        world.lease(&run.id, 1).await;
        world.kill_and_restart().await;
        world.wait_for_state(&run.id, RunState::Provisioning).await;
        let begun = world.begin(&run.id, 1).await;
        world.kill_and_restart().await;
        assert_eq!(
            world.begin(&run.id, 1).await,
            begun,
            "repeated after an answer was lost"
        );
        world.phase(&run.id, 1, RunState::Training).await;
        world.pass(30);
        let request = world.checkpoint_request(&run.id, 1, 100, 12).await;
        let recorded = world
            .worker()
            .record_checkpoint(request.clone())
            .await
            .unwrap();
        world.kill_and_restart().await;
        let again = world.worker().record_checkpoint(request).await.unwrap();
        assert_eq!(again.into_inner(), recorded.into_inner());
        world.phase(&run.id, 1, RunState::Validating).await;
        world.kill_and_restart().await;
        let done = world.finish(&run.id, 1, "completed", 20).await;
        world.kill_and_restart().await;
        assert_eq!(world.finish(&run.id, 1, "completed", 20).await, done);
        assert_eq!(
            (done.state(), done.committed),
            (RunState::Completed, seconds(20))
        );
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
    }
}

#[tokio::test]
async fn facts_wait_for_a_bus_that_is_away() {
    for mut world in worlds().await {
        let run = world.train().await;
        world
            .wait_for_facts(&["ProjectCreated", "RunQueued", "RunStarted"])
            .await;
        world.nats.kill().await;
        world.pass(30);
        world.checkpoint(&run.id, 1, 100, 12).await;
        world.nats.restart().await;
        let expected = [
            "ProjectCreated",
            "RunQueued",
            "RunStarted",
            "RunCheckpointed",
        ];
        world.wait_for_facts(&expected).await;
    }
}

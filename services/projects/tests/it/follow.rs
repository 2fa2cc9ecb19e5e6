//! Following a run: nothing is lost, nothing is repeated, whatever restarts.

use std::collections::BTreeSet;

use kit::testing::PATIENCE;
use proto::fovea::runs::v1::follow_run_response::Content;
use proto::fovea::runs::v1::*;
use proto::fovea::telemetry::v1::*;

use crate::world::{World, reason, worlds};

/// Returns the step of a piece with metrics.
pub fn step(piece: &FollowRunResponse) -> Option<i64> {
    match &piece.content {
        Some(Content::Metrics(batch)) => Some(batch.step),
        _ => None,
    }
}

fn state(piece: &FollowRunResponse) -> Option<RunState> {
    match &piece.content {
        Some(Content::Run(run)) => Some(run.state()),
        _ => None,
    }
}

/// Follows a run until there is enough, or the stream ends.
pub async fn read(
    world: &World,
    run: &str,
    cursor: i64,
    is_enough: impl Fn(&[FollowRunResponse]) -> bool,
) -> Vec<FollowRunResponse> {
    let request = FollowRunRequest {
        run_id: run.into(),
        cursor,
    };
    let mut stream = world.runs().follow_run(request).await.unwrap().into_inner();
    let mut pieces = Vec::new();
    let reading = async {
        while !is_enough(&pieces) {
            match stream.message().await {
                Ok(Some(piece)) => pieces.push(piece),
                Ok(None) | Err(_) => break,
            }
        }
    };
    let is_done = tokio::time::timeout(PATIENCE, reading).await.is_ok();
    assert!(is_done, "followed in vain: {pieces:?}");
    pieces
}

async fn measure(world: &World, run: &str, steps: std::ops::RangeInclusive<i64>) {
    for step in steps {
        let values = [("train/box_loss".to_owned(), step as f64)].into();
        let batch = MetricBatch {
            step,
            epoch: 0,
            at: None,
            values,
            fence: 1,
        };
        world.publish("metrics", run, &batch).await;
        let message = format!("step {step}");
        let (level, sequence) = ("warn".into(), step);
        let line = LogEntry {
            at: None,
            level,
            message,
            sequence,
            fence: 1,
        };
        world.publish("logs", run, &line).await;
    }
}

#[tokio::test]
async fn a_follower_loses_and_repeats_nothing_whatever_restarts() {
    for mut world in worlds().await {
        let run = world.train().await;
        measure(&world, &run.id, 1..=120).await;
        let has = |wanted| {
            move |pieces: &[FollowRunResponse]| {
                pieces.iter().filter_map(step).any(|step| step >= wanted)
            }
        };
        let mut pieces = read(&world, &run.id, 0, has(40)).await;
        // The reader goes away in the middle, and so does the service.
        let cursor = pieces.last().unwrap().cursor;
        world.kill_and_restart().await;
        measure(&world, &run.id, 121..=200).await;
        // What was on its way to the killed service is delivered again, but later.
        let known: BTreeSet<_> = pieces.iter().filter_map(step).collect();
        let more = read(&world, &run.id, cursor, |more| {
            let new: BTreeSet<_> = more.iter().filter_map(step).collect();
            known.union(&new).count() >= 200
        })
        .await;
        pieces.extend(more);
        let cursor = pieces.last().unwrap().cursor;
        world.pass(30);
        measure(&world, &run.id, 201..=210).await;
        world.finish(&run.id, 1, "completed", 10).await;
        let rest = read(&world, &run.id, cursor, |pieces| {
            let is_done = pieces
                .iter()
                .any(|piece| state(piece) == Some(RunState::Completed));
            is_done && has(210)(pieces)
        })
        .await;
        pieces.extend(rest);

        let mut steps: Vec<_> = pieces.iter().filter_map(step).collect();
        steps.sort_unstable();
        assert_eq!(steps, (1..=210).collect::<Vec<_>>());
        let lines = pieces.iter().filter_map(|piece| match &piece.content {
            Some(Content::Log(line)) => Some(line.sequence),
            _ => None,
        });
        let mut lines: Vec<_> = lines.collect();
        lines.sort_unstable();
        assert!(
            lines.windows(2).all(|pair| pair[0] + 1 == pair[1]),
            "{lines:?}"
        );
        assert!(
            pieces
                .windows(2)
                .all(|pair| pair[0].cursor < pair[1].cursor)
        );
    }
}

#[tokio::test]
async fn a_follower_sees_the_run_change_and_is_let_go_when_it_ends() {
    for world in worlds().await {
        let run = world.train().await;
        let follower = {
            let request = FollowRunRequest {
                run_id: run.id.clone(),
                cursor: 0,
            };
            let mut stream = world.runs().follow_run(request).await.unwrap().into_inner();
            tokio::spawn(async move {
                let mut pieces = Vec::new();
                while let Some(piece) = stream.message().await.unwrap() {
                    pieces.push(piece);
                }
                pieces
            })
        };
        let progress = Progress {
            epoch: 2,
            epochs: 3,
            fence: 1,
            ..Progress::default()
        };
        world.publish("progress", &run.id, &progress).await;
        let stale = Progress {
            epoch: 9,
            fence: 0,
            ..progress
        };
        world.publish("progress", &run.id, &stale).await;
        read(&world, &run.id, 0, |pieces| {
            pieces
                .iter()
                .any(|piece| matches!(&piece.content, Some(Content::Progress(_))))
        })
        .await;
        world.pass(30);
        world.checkpoint(&run.id, 1, 10, 5).await;
        world.finish(&run.id, 1, "completed", 10).await;
        let pieces = tokio::time::timeout(PATIENCE, follower)
            .await
            .unwrap()
            .unwrap();
        let last = pieces.iter().rev().find_map(state);
        assert_eq!(last, Some(RunState::Completed));
        let told: Vec<_> = pieces
            .iter()
            .filter_map(|piece| match &piece.content {
                Some(Content::Progress(progress)) => Some(progress.epoch),
                _ => None,
            })
            .collect();
        assert!(told.iter().all(|epoch| *epoch == 2), "{told:?}");
        // Who comes later gets the end as well, and then nothing.
        let cursor = pieces.last().unwrap().cursor;
        assert_eq!(read(&world, &run.id, cursor, |_| false).await, []);
        let request = FollowRunRequest {
            run_id: run.id.clone(),
            cursor: cursor + 1_000,
        };
        assert_eq!(
            reason(world.runs().follow_run(request).await.map(drop)),
            "FIELD_INVALID"
        );
    }
}

#[tokio::test]
async fn a_follower_reads_what_has_become_segments() {
    for world in worlds().await {
        let run = world.train().await;
        measure(&world, &run.id, 1..=400).await;
        let lines = |pieces: &[FollowRunResponse]| -> Vec<i64> {
            let line = |piece: &FollowRunResponse| match &piece.content {
                Some(Content::Log(line)) => Some(line.sequence),
                _ => None,
            };
            pieces.iter().filter_map(line).collect()
        };
        let pieces = read(&world, &run.id, 0, |pieces| lines(pieces).len() >= 400).await;
        assert_eq!(lines(&pieces), (1..=400).collect::<Vec<_>>());
        let again = read(&world, &run.id, 0, |pieces| lines(pieces).len() >= 400).await;
        assert_eq!(lines(&again), lines(&pieces));
    }
}

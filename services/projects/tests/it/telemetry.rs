//! Metrics, samples and logs: stored once, superseded, thinned, paged.

use std::collections::BTreeSet;

use kit::testing::wait_for;
use proto::fovea::runs::v1::*;
use proto::fovea::telemetry::v1::*;

use crate::world::{World, worlds};

async fn measure(world: &World, run: &str, fence: i64, steps: std::ops::RangeInclusive<i64>) {
    for step in steps {
        let values = [
            ("train/box_loss".to_owned(), (fence * 1_000 + step) as f64),
            ("lr/pg0".to_owned(), 0.01),
        ];
        let batch = MetricBatch {
            step,
            epoch: 1,
            at: None,
            values: values.into(),
            fence,
        };
        world.publish("metrics", run, &batch).await;
    }
}

async fn series(world: &World, run: &str, name: &str, point_limit: i32) -> MetricSeries {
    let request = ListMetricsRequest {
        run_id: run.into(),
        names: vec![name.into()],
        point_limit,
    };
    let mut found = world
        .runs()
        .list_metrics(request)
        .await
        .unwrap()
        .into_inner()
        .series;
    assert!(found.len() <= 1);
    found.pop().unwrap_or_default()
}

async fn wait_for_steps(world: &World, run: &str, count: usize) -> MetricSeries {
    wait_for("the metrics are stored", || async {
        Some(series(world, run, "train/box_loss", 10_000).await)
            .filter(|series| series.steps.len() >= count)
    })
    .await
}

#[tokio::test]
async fn metrics_are_stored_in_chunks_thinned_and_superseded() {
    for world in worlds().await {
        let run = world.train().await;
        measure(&world, &run.id, 1, 1..=1_200).await;
        let all = wait_for_steps(&world, &run.id, 1_200).await;
        assert_eq!(all.steps, (1..=1_200).collect::<Vec<_>>());
        let few = series(&world, &run.id, "train/box_loss", 50).await;
        assert_eq!(
            (few.steps.len(), few.steps[0], few.steps[49]),
            (50, 1, 1_200)
        );
        assert_eq!(world.run(&run.id).await.metrics["train/box_loss"], 2_200.0);

        world.checkpoint(&run.id, 1, 1_000, 0).await;
        world.requeue(&run.id, 1).await;
        world.wait_for_state(&run.id, RunState::Queued).await;
        world.begin(&run.id, 2).await;
        let cut = series(&world, &run.id, "train/box_loss", 10_000).await;
        assert_eq!(
            cut.steps.last(),
            Some(&1_000),
            "what the checkpoint doesn't hold is gone"
        );
        // A worker that doesn't know that it is lost.
        measure(&world, &run.id, 1, 1_201..=1_210).await;
        measure(&world, &run.id, 2, 1_001..=1_100).await;
        let merged = wait_for_steps(&world, &run.id, 1_100).await;
        assert_eq!(merged.steps, (1..=1_100).collect::<Vec<_>>());
        assert_eq!(
            (merged.values[999], merged.values[1_000]),
            (2_000.0, 3_001.0)
        );
    }
}

#[tokio::test]
async fn host_samples_are_a_series_over_seconds() {
    for world in worlds().await {
        let run = world.train().await;
        for second in 1..=3 {
            world.pass(1);
            let at = Some(world.now().into());
            let cpu_utilization = f64::from(second) / 10.0;
            let sample = HostSample {
                at,
                cpu_utilization,
                fence: 1,
                ..HostSample::default()
            };
            world.publish("samples", &run.id, &sample).await;
        }
        let found = wait_for("the samples are stored", || async {
            Some(series(&world, &run.id, "system/cpu_utilization", 0).await)
                .filter(|series| series.steps.len() == 3)
        })
        .await;
        assert_eq!(
            (found.steps, found.values),
            (vec![1, 2, 3], vec![0.1, 0.2, 0.3])
        );
        assert_eq!(world.run(&run.id).await.metrics.len(), 0);
    }
}

async fn log(world: &World, run: &str, fence: i64, sequences: std::ops::RangeInclusive<i64>) {
    for sequence in sequences {
        let message = format!("line {sequence} of the attempt with fence {fence}");
        let entry = LogEntry {
            at: None,
            level: "info".into(),
            message,
            sequence,
            fence,
        };
        world.publish("logs", run, &entry).await;
    }
}

async fn log_page(world: &World, run: &str, after_sequence: i64, page_size: i32) -> Vec<LogLine> {
    let request = ListLogsRequest {
        run_id: run.into(),
        after_sequence,
        page_size,
    };
    world
        .runs()
        .list_logs(request)
        .await
        .unwrap()
        .into_inner()
        .lines
}

#[tokio::test]
async fn a_log_reads_the_same_from_its_segments_and_its_tail() {
    for world in worlds().await {
        let run = world.train().await;
        log(&world, &run.id, 1, 1..=300).await;
        wait_for("the log is stored", || async {
            (log_page(&world, &run.id, 0, 1_000).await.len() == 300).then_some(())
        })
        .await;
        let (mut sequences, mut after) = (Vec::new(), 0);
        loop {
            let page = log_page(&world, &run.id, after, 70).await;
            let Some(last) = page.last() else { break };
            after = last.sequence;
            sequences.extend(page.iter().map(|line| line.sequence));
        }
        assert_eq!(sequences, (1..=300).collect::<Vec<_>>());
        let page = log_page(&world, &run.id, 150, 1).await;
        assert_eq!(page[0].message, "line 151 of the attempt with fence 1");
        world.requeue(&run.id, 1).await;
        world.wait_for_state(&run.id, RunState::Queued).await;
        assert_eq!(world.begin(&run.id, 2).await.next_log_sequence, 301);
        log(&world, &run.id, 1, 301..=305).await;
        log(&world, &run.id, 2, 301..=302).await;
        let lines = wait_for("the new attempt's lines", || async {
            Some(log_page(&world, &run.id, 300, 10).await).filter(|lines| lines.len() >= 2)
        })
        .await;
        assert_eq!(lines.len(), 2);
        assert!(
            lines.iter().all(|line| line.message.ends_with("fence 2")),
            "{lines:?}"
        );
    }
}

#[tokio::test]
async fn telemetry_that_is_delivered_again_is_stored_once() {
    for mut world in worlds().await {
        let run = world.train().await;
        measure(&world, &run.id, 1, 1..=50).await;
        log(&world, &run.id, 1, 1..=50).await;
        wait_for_steps(&world, &run.id, 50).await;
        wait_for("the log is stored", || async {
            (log_page(&world, &run.id, 0, 100).await.len() == 50).then_some(())
        })
        .await;
        // The stream forgets how far the service was and delivers everything again.
        let client = async_nats::connect(world.nats.url()).await.unwrap();
        let stream = async_nats::jetstream::new(client)
            .get_stream("TELEMETRY")
            .await
            .unwrap();
        stream.delete_consumer("projects-telemetry").await.unwrap();
        world.kill_and_restart().await;
        measure(&world, &run.id, 1, 51..=51).await;
        let stored = wait_for_steps(&world, &run.id, 51).await;
        assert_eq!(stored.steps.len(), 51);
        let pieces = crate::follow::read(&world, &run.id, 0, |pieces| {
            pieces
                .iter()
                .any(|piece| crate::follow::step(piece) == Some(51))
        })
        .await;
        let steps: Vec<_> = pieces.iter().filter_map(crate::follow::step).collect();
        assert_eq!(steps, (1..=51).collect::<Vec<_>>());
        let cursors: BTreeSet<_> = pieces.iter().map(|piece| piece.cursor).collect();
        assert_eq!(cursors.len(), pieces.len());
    }
}

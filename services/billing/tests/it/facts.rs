//! Facts that come late, twice and out of order.

use kit::id::Id;
use kit::testing::TestDatabase;
use proto::fovea::billing::v1 as wire;
use proto::fovea::runs::v1 as runs;

use crate::setting::{Setting, checkpointed, completed, cpu_cost};

const CREDIT: i64 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_charge_is_price_times_committed_time_whatever_the_order_and_repetition() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(20 * CREDIT).await;
        let (run, now) = (setting.new_run(), setting.clock().now());
        setting.hold(run, 10 * CREDIT).await.unwrap();
        let mut told = Vec::new();
        for seconds in [900, 100, 2000, 2000, 1] {
            told.push(setting.checkpointed(run, seconds).await);
        }
        told.push(setting.completed(run, 54_321).await);
        told.push(setting.checkpointed(run, 50_000).await);
        for envelope in told.iter().rev() {
            setting.teller.again(envelope).await;
        }
        // The same news under other ids: a teller that was restored from a backup.
        setting
            .teller
            .tell(setting.workspace, &checkpointed(run, 2000), now)
            .await;
        setting
            .teller
            .tell(setting.workspace, &completed(run, 54_321), now)
            .await;
        setting.catch_up().await;
        let charge = setting.charge(run).await.unwrap();
        assert_eq!(charge.charged_micros, cpu_cost(54_321));
        assert_eq!((charge.held_micros, charge.is_settled), (0, true));
        let settled = setting.told::<wire::RunSettled>(1).await;
        assert_eq!(settled[0].charged_micros, cpu_cost(54_321));
        let charged = setting.told::<wire::RunCharged>(3).await;
        let sum: i64 = charged.iter().map(|fact| fact.amount_micros).sum();
        assert_eq!(sum, cpu_cost(54_321));
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_failed_runs_pay_for_what_they_committed_and_get_the_rest_back() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    setting.top_up(5 * CREDIT).await;
    let (cancelled, failed) = (setting.new_run(), setting.new_run());
    setting.hold(cancelled, CREDIT).await.unwrap();
    setting.hold(failed, CREDIT).await.unwrap();
    let committed = Some(prost_types::Duration {
        seconds: 600,
        nanos: 0,
    });
    setting
        .tell(&runs::RunCancelled {
            run_id: cancelled.to_string(),
            committed,
        })
        .await;
    let failure = runs::RunFailed {
        run_id: failed.to_string(),
        ..Default::default()
    };
    setting.tell(&failure).await;
    let charge = setting
        .charge_when("the cancel is heard", cancelled, |charge| charge.is_settled)
        .await;
    assert_eq!(charge.charged_micros, cpu_cost(600));
    let charge = setting
        .charge_when("the failure is heard", failed, |charge| charge.is_settled)
        .await;
    assert_eq!(charge.charged_micros, 0);
    assert_eq!(
        setting.balance().await.available_micros,
        5 * CREDIT - cpu_cost(600)
    );
    setting.check_ledger().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fact_about_an_unknown_run_or_another_workspace_charges_nobody() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    setting.top_up(5 * CREDIT).await;
    let run = setting.new_run();
    setting.hold(run, CREDIT).await.unwrap();
    setting.checkpointed(setting.new_run(), 3600).await;
    let elsewhere = Id::new(setting.clock().now());
    let now = setting.clock().now();
    setting
        .teller
        .tell(elsewhere, &completed(run, 3600), now)
        .await;
    setting.catch_up().await;
    let charge = setting.charge(run).await.unwrap();
    assert_eq!((charge.charged_micros, charge.is_settled), (0, false));
    setting.check_ledger().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_that_was_told_of_has_accounts_and_the_newest_plan_counts() {
    use proto::fovea::accounts::v1::{Plan, WorkspaceCreated, WorkspacePlanChanged};
    use std::time::Duration;
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let (workspace, now) = (Id::new(setting.clock().now()), setting.clock().now());
        let workspace_id = workspace.to_string();
        let pro = WorkspacePlanChanged {
            workspace_id: workspace_id.clone(),
            plan: Plan::Pro.into(),
        };
        let created = WorkspaceCreated {
            workspace_id: workspace_id.clone(),
            slug: "told".into(),
            plan: Plan::Free.into(),
        };
        // The newer one first.
        setting
            .teller
            .tell(workspace, &pro, now + Duration::from_secs(1))
            .await;
        setting.teller.tell(workspace, &created, now).await;
        let request = wire::QuoteRequest {
            workspace_id,
            gpu_type: "b200".into(),
        };
        let price = kit::testing::wait_for("the plan is heard", || async {
            let answer = setting.projects.clone().quote(request.clone()).await;
            answer.ok()?.into_inner().price
        })
        .await;
        assert_eq!(
            (price.per_hour_micros, price.plan.as_str()),
            (5_890_000, "pro")
        );
    }
}

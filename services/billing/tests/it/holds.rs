//! What is set aside, extended, given back.

use std::time::Duration;

use kit::testing::{TestDatabase, wait_for};
use proto::fovea::billing::v1 as wire;

use crate::setting::{Setting, cpu_cost};

const CREDIT: i64 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_repeated_without_effect_and_released_once() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let run = setting.new_run();
        let first = setting.hold(run, 2 * CREDIT).await.unwrap();
        assert!(first.hold_id.starts_with("hld_"));
        assert_eq!(setting.hold(run, 2 * CREDIT).await.unwrap(), first);
        let balance = setting.balance().await;
        assert_eq!(
            (
                balance.total_micros,
                balance.held_micros,
                balance.available_micros
            ),
            (5 * CREDIT, 2 * CREDIT, 3 * CREDIT)
        );
        setting.release(run).await;
        setting.release(run).await;
        setting.release(setting.new_run()).await;
        assert_eq!(setting.balance().await.available_micros, 5 * CREDIT);
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_holds_at_once_never_take_more_than_there_is() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let holding = (0..12).map(|_| {
            let (run, setting) = (setting.new_run(), &setting);
            async move { setting.hold(run, CREDIT).await }
        });
        let outcomes = futures::future::join_all(holding).await;
        let refused: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
        assert_eq!(refused.len(), 7);
        assert!(
            refused.iter().all(|fault| fault.is("BALANCE_TOO_LOW")),
            "{refused:?}"
        );
        assert_eq!(setting.balance().await.held_micros, 5 * CREDIT);
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_hold_asked_for_at_once_is_one_hold() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let run = setting.new_run();
        let holding = (0..6).map(|_| setting.hold(run, 2 * CREDIT));
        let answers = futures::future::join_all(holding).await;
        let first = answers[0].as_ref().unwrap();
        assert!(
            answers
                .iter()
                .all(|answer| answer.as_ref().unwrap() == first)
        );
        assert_eq!(setting.balance().await.held_micros, 2 * CREDIT);
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_run_keeps_no_hold_and_is_held_anew_when_it_resumes() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let run = setting.new_run();
        setting.hold(run, CREDIT).await.unwrap();
        setting.queued(run).await;
        setting.clock().advance(Duration::from_secs(10));
        setting.paused(run, 3600).await;
        let paused = setting
            .charge_when("the pause is heard", run, |charge| charge.held_micros == 0)
            .await;
        assert_eq!(paused.charged_micros, cpu_cost(3600));
        assert_eq!(setting.balance().await.held_micros, 0);

        let again = setting.hold(run, CREDIT).await.unwrap();
        assert_eq!(
            again.amount_micros,
            CREDIT - cpu_cost(3600),
            "the cap less the charge"
        );
        setting.queued(run).await;
        setting.completed(run, 7200).await;
        let settled = setting
            .charge_when("the end is heard", run, |charge| charge.is_settled)
            .await;
        assert_eq!(settled.charged_micros, cpu_cost(7200));
        assert_eq!(
            setting.balance().await.available_micros,
            5 * CREDIT - cpu_cost(7200)
        );
        let fault = setting.hold(run, CREDIT).await.unwrap_err();
        assert!(fault.is("RUN_SETTLED"), "{fault}");
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_is_heard_after_the_resume_leaves_the_new_hold() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    setting.top_up(5 * CREDIT).await;
    let run = setting.new_run();
    setting.hold(run, CREDIT).await.unwrap();
    setting.queued(run).await;
    let paused_at = setting.clock().now() + Duration::from_secs(10);
    setting.clock().advance(Duration::from_secs(11));
    setting.hold(run, CREDIT).await.unwrap();
    let fact = crate::setting::paused(run, 3600);
    setting
        .teller
        .tell(setting.workspace, &fact, paused_at)
        .await;
    let charge = setting
        .charge_when("the pause is heard", run, |charge| {
            charge.charged_micros > 0
        })
        .await;
    assert_eq!(charge.held_micros, CREDIT - cpu_cost(3600));
    setting.queued(run).await;
    setting.catch_up().await;
    setting.clock().advance(Duration::from_secs(3600));
    setting.checkpointed(run, 7200).await;
    let charge = setting
        .charge_when("the next stretch is heard", run, |charge| {
            charge.charged_micros == cpu_cost(7200)
        })
        .await;
    assert_eq!(charge.held_micros, CREDIT - cpu_cost(7200));
    setting.check_ledger().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_whose_run_never_comes_expires_and_one_whose_run_came_does_not() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let (lost, queued) = (setting.new_run(), setting.new_run());
        setting.hold(lost, CREDIT).await.unwrap();
        setting.hold(queued, CREDIT).await.unwrap();
        setting.queued(queued).await;
        setting.catch_up().await;
        setting.clock().advance(Duration::from_secs(16 * 60));
        wait_for("the lost run's hold is given back", || async {
            (setting.balance().await.held_micros == CREDIT).then_some(())
        })
        .await;
        assert_eq!(setting.charge(queued).await.unwrap().held_micros, CREDIT);
        // It comes after all: late, but it is held for.
        setting.queued(lost).await;
        setting
            .charge_when("the late run is held for", lost, |charge| {
                charge.held_micros == CREDIT
            })
            .await;
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_at_its_cap_is_told_to_pause_and_goes_on_when_the_cap_is_raised() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    setting.top_up(5 * CREDIT).await;
    let run = setting.new_run();
    setting.hold(run, cpu_cost(3600)).await.unwrap();
    setting.queued(run).await;
    setting.checkpointed(run, 5400).await;
    let told = setting.told::<wire::HoldExhausted>(1).await;
    assert_eq!(
        (told[0].run_id.as_str(), told[0].cause.as_str()),
        (&*run.to_string(), "cap")
    );
    setting.clock().advance(Duration::from_secs(1));
    setting.paused(run, 5500).await;
    setting.catch_up().await;
    let charge = setting.charge(run).await.unwrap();
    assert_eq!(
        charge.charged_micros,
        cpu_cost(3600),
        "never more than the cap"
    );
    let fault = setting.hold(run, CREDIT).await.unwrap_err();
    assert!(fault.is("CAP_REACHED"), "{fault}");
    let raised = wire::HoldRequest {
        cap_micros: cpu_cost(36_000),
        ..setting.hold_request(run, cpu_cost(3600))
    };
    setting.projects.clone().hold(raised).await.unwrap();
    setting.queued(run).await;
    setting.completed(run, 9000).await;
    let charge = setting
        .charge_when("the end is heard", run, |charge| charge.is_settled)
        .await;
    assert_eq!(charge.charged_micros, cpu_cost(9000));
    setting.check_ledger().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_balance_pauses_a_run_and_a_top_up_pays_what_it_owes() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(cpu_cost(3600)).await;
        let run = setting.new_run();
        let request = wire::HoldRequest {
            cap_micros: CREDIT,
            ..setting.hold_request(run, cpu_cost(3600))
        };
        setting.projects.clone().hold(request).await.unwrap();
        setting.queued(run).await;
        setting.checkpointed(run, 5400).await;
        let told = setting.told::<wire::HoldExhausted>(1).await;
        assert_eq!(told[0].cause, "balance");
        let charge = setting.charge(run).await.unwrap();
        let owed = cpu_cost(5400) - cpu_cost(3600);
        assert_eq!(
            (charge.charged_micros, charge.owed_micros),
            (cpu_cost(3600), owed)
        );
        setting.clock().advance(Duration::from_secs(1));
        setting.paused(run, 5400).await;
        let answer = setting.top_up(CREDIT).await;
        let charge = setting.charge(run).await.unwrap();
        assert_eq!(
            (charge.charged_micros, charge.owed_micros),
            (cpu_cost(5400), 0)
        );
        let told = setting.told::<wire::CreditAdded>(2).await;
        assert_eq!(told[1].amount_micros, CREDIT);
        assert_eq!(answer.balance.unwrap().total_micros, CREDIT - owed);
        setting.check_ledger().await;
    }
}

//! The service and the bus go away and come back.

use kit::testing::TestDatabase;

use crate::setting::{Setting, cpu_cost};

const CREDIT: i64 = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_told_while_billing_was_away_is_charged_when_it_is_back() {
    for database in TestDatabase::all().await {
        let mut setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let run = setting.new_run();
        setting.hold(run, CREDIT).await.unwrap();
        setting.stop().await;
        setting.checkpointed(run, 600).await;
        setting.completed(run, 3600).await;
        setting.run().await;
        let charge = setting
            .charge_when("the end is heard", run, |charge| charge.is_settled)
            .await;
        assert_eq!(charge.charged_micros, cpu_cost(3600));
        assert_eq!(
            setting.balance().await.available_micros,
            5 * CREDIT - cpu_cost(3600)
        );
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn money_can_be_held_while_the_bus_is_away_and_its_facts_follow() {
    let mut setting = Setting::start(TestDatabase::sqlite()).await;
    setting.nats.kill().await;
    setting.top_up(5 * CREDIT).await;
    setting.hold(setting.new_run(), CREDIT).await.unwrap();
    assert_eq!(setting.balance().await.held_micros, CREDIT);
    setting.nats.restart().await;
    let told = setting
        .told::<proto::fovea::billing::v1::CreditAdded>(1)
        .await;
    assert_eq!(told[0].amount_micros, 5 * CREDIT);
    setting.check_ledger().await;
}

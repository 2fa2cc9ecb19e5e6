//! The price list.

use std::time::Duration;

use kit::auth::Role;
use kit::auth::act_for;
use kit::fault::Fault;
use kit::testing::TestDatabase;
use proto::fovea::accounts::v1::Plan;
use proto::fovea::billing::v1 as wire;

use crate::setting::{CPU_MICROS, Setting};

const CREDIT: i64 = 1_000_000;

async fn list(setting: &Setting) -> Vec<wire::Price> {
    let request = act_for(&setting.member(Role::Viewer), wire::ListPricesRequest {});
    setting
        .projects
        .clone()
        .list_prices(request)
        .await
        .unwrap()
        .into_inner()
        .prices
}

async fn quote(setting: &Setting, gpu_type: &str) -> Result<wire::Price, Fault> {
    let request = wire::QuoteRequest {
        workspace_id: setting.workspace.to_string(),
        gpu_type: gpu_type.into(),
    };
    Ok(setting
        .projects
        .clone()
        .quote(request)
        .await?
        .into_inner()
        .price
        .unwrap())
}

async fn set(setting: &Setting, gpu_type: &str, micros: i64, plan: &str) -> wire::Price {
    let request = wire::SetPriceRequest {
        gpu_type: gpu_type.into(),
        per_hour_micros: micros,
        plan: plan.into(),
    };
    setting
        .projects
        .clone()
        .set_price(request)
        .await
        .unwrap()
        .into_inner()
        .price
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_installation_has_a_price_for_every_card_and_the_cpu() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let prices = list(&setting).await;
        assert_eq!(prices.len(), 27);
        let cpu = prices.iter().find(|price| price.gpu_type == "cpu").unwrap();
        assert_eq!(
            (cpu.per_hour_micros, cpu.plan.as_str()),
            (CPU_MICROS, "free")
        );
        assert_eq!(quote(&setting, "cpu").await.unwrap(), *cpu);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_price_holds_from_now_on_and_runs_keep_what_they_were_quoted() {
    for database in TestDatabase::all().await {
        let mut setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        let held = setting.new_run();
        setting.hold(held, CREDIT).await.unwrap();
        setting.clock().advance(Duration::from_secs(60));
        let dearer = set(&setting, "cpu", 2 * CPU_MICROS, "").await;
        assert_eq!(dearer.plan, "free", "an empty plan keeps what it was");
        assert_eq!(quote(&setting, "cpu").await.unwrap(), dearer);
        assert_eq!(set(&setting, "cpu", 2 * CPU_MICROS, "").await, dearer);

        // Quoted a moment ago at the old price: good for an hour, then no longer.
        setting.hold(setting.new_run(), CREDIT).await.unwrap();
        setting.completed(held, 3600).await;
        let charge = setting
            .charge_when("the end is heard", held, |charge| charge.is_settled)
            .await;
        assert_eq!(charge.charged_micros, CPU_MICROS);
        setting.clock().advance(Duration::from_secs(3600));
        let fault = setting.hold(setting.new_run(), CREDIT).await.unwrap_err();
        assert!(fault.is("PRICE_NOT_QUOTED"), "{fault}");

        // What an operator set outlives a restart.
        setting.stop().await;
        setting.run().await;
        assert_eq!(quote(&setting, "cpu").await.unwrap(), dearer);
        let mine = set(&setting, "abacus", 7, "enterprise").await;
        assert_eq!(
            list(&setting)
                .await
                .iter()
                .find(|price| price.gpu_type == "abacus"),
            Some(&mine)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_cards_need_a_paid_plan_and_one_that_was_just_paid_counts() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    for gpu_type in ["h200-sxm", "h200-nvl", "b200", "b300"] {
        let fault = quote(&setting, gpu_type).await.unwrap_err();
        assert!(fault.is("GPU_NOT_IN_PLAN"), "{fault}");
        assert_eq!(fault.metadata["needed_plan"], "pro");
    }
    let run = setting.new_run();
    let request = wire::HoldRequest {
        gpu_type: "b200".into(),
        price_per_hour_micros: 5_890_000,
        ..setting.hold_request(run, CREDIT)
    };
    let fault = Fault::from(setting.projects.clone().hold(request).await.unwrap_err());
    assert!(fault.is("GPU_NOT_IN_PLAN"), "{fault}");
    // The fact of it hasn't been told: accounts is asked before anybody is refused.
    setting.accounts.put(setting.workspace, Plan::Enterprise);
    assert_eq!(
        quote(&setting, "b200").await.unwrap().per_hour_micros,
        5_890_000
    );
}

//! Who and what is refused, and how.

use kit::auth::{Role, act_for};
use kit::fault::{Fault, Kind};
use kit::id::Id;
use kit::testing::TestDatabase;
use proto::fovea::billing::v1 as wire;
use tonic::Status;

use crate::setting::Setting;

const CREDIT: i64 = 1_000_000;

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, kind: Kind, reason: &str) -> Fault {
    let fault = Fault::from(answer.unwrap_err());
    assert_eq!(
        (fault.kind, fault.reason.as_ref()),
        (kind, reason),
        "{fault:?}"
    );
    fault
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_refused_with_its_reason() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    setting.top_up(CREDIT).await;
    let mut billing = setting.projects.clone();
    let run = setting.new_run();
    let good = setting.hold_request(run, CREDIT);

    let more = wire::HoldRequest {
        amount_micros: CREDIT + 1,
        ..good.clone()
    };
    let fault = refused(
        billing.hold(more).await,
        Kind::Precondition,
        "BALANCE_TOO_LOW",
    );
    assert_eq!(fault.metadata["available_micros"], CREDIT.to_string());
    assert_eq!(fault.metadata["needed_micros"], (CREDIT + 1).to_string());

    for amount_micros in [0, -1, i64::MAX] {
        let odd = wire::HoldRequest {
            amount_micros,
            ..good.clone()
        };
        let fault = refused(billing.hold(odd).await, Kind::Invalid, "AMOUNT_INVALID");
        assert_eq!(fault.violations[0].field, "amount_micros");
    }
    let low = wire::HoldRequest {
        cap_micros: 5,
        ..good.clone()
    };
    let fault = refused(billing.hold(low).await, Kind::Invalid, "AMOUNT_INVALID");
    assert_eq!(fault.violations[0].field, "cap_micros");
    let cheap = wire::HoldRequest {
        price_per_hour_micros: 1,
        ..good.clone()
    };
    refused(
        billing.hold(cheap).await,
        Kind::Precondition,
        "PRICE_NOT_QUOTED",
    );
    let odd = wire::HoldRequest {
        price_per_hour_micros: -1,
        ..good.clone()
    };
    refused(billing.hold(odd).await, Kind::Invalid, "PRICE_INVALID");
    let unknown = wire::HoldRequest {
        gpu_type: "abacus".into(),
        ..good.clone()
    };
    refused(
        billing.hold(unknown).await,
        Kind::NotFound,
        "GPU_TYPE_UNKNOWN",
    );
    let odd = wire::HoldRequest {
        gpu_type: "No Such".into(),
        ..good.clone()
    };
    refused(billing.hold(odd).await, Kind::Invalid, "GPU_TYPE_INVALID");
    let odd = wire::HoldRequest {
        run_id: "run_1".into(),
        ..good.clone()
    };
    refused(billing.hold(odd).await, Kind::Invalid, "ID_INVALID");
    let nobody = Id::<kit::id::Workspace>::new(setting.clock().now());
    let lost = wire::HoldRequest {
        workspace_id: nobody.to_string(),
        ..good.clone()
    };
    refused(
        billing.hold(lost).await,
        Kind::NotFound,
        "WORKSPACE_NOT_FOUND",
    );

    billing.hold(good.clone()).await.unwrap();
    let other = wire::HoldRequest {
        gpu_type: "l4".into(),
        ..good
    };
    refused(billing.hold(other).await, Kind::Conflict, "HOLD_CONFLICT");
    assert_eq!(setting.balance().await.held_micros, CREDIT);
    setting.check_ledger().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_top_up_is_refused_with_its_reason_and_the_same_key_counts_once() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        let mut billing = setting.projects.clone();
        let good = wire::TopUpRequest {
            workspace_id: setting.workspace.to_string(),
            amount_micros: CREDIT,
            note: String::new(),
            idempotency_key: "invoice 7".into(),
        };
        let first = billing.top_up(good.clone()).await.unwrap().into_inner();
        assert_eq!(
            billing.top_up(good.clone()).await.unwrap().into_inner(),
            first
        );
        assert_eq!(setting.balance().await.total_micros, CREDIT);
        let other = wire::TopUpRequest {
            amount_micros: 2 * CREDIT,
            ..good.clone()
        };
        refused(
            billing.top_up(other).await,
            Kind::Conflict,
            "IDEMPOTENCY_KEY_REUSED",
        );
        let long = wire::TopUpRequest {
            idempotency_key: "x".repeat(129),
            ..good.clone()
        };
        refused(
            billing.top_up(long).await,
            Kind::Invalid,
            "IDEMPOTENCY_KEY_TOO_LONG",
        );
        for amount_micros in [0, -CREDIT, i64::MAX] {
            let odd = wire::TopUpRequest {
                amount_micros,
                idempotency_key: String::new(),
                ..good.clone()
            };
            refused(billing.top_up(odd).await, Kind::Invalid, "AMOUNT_INVALID");
        }
        let long = wire::TopUpRequest {
            note: "x".repeat(501),
            idempotency_key: String::new(),
            ..good.clone()
        };
        refused(billing.top_up(long).await, Kind::Invalid, "NOTE_TOO_LONG");
        let nobody = Id::<kit::id::Workspace>::new(setting.clock().now());
        let lost = wire::TopUpRequest {
            workspace_id: nobody.to_string(),
            ..good
        };
        refused(
            billing.top_up(lost).await,
            Kind::NotFound,
            "WORKSPACE_NOT_FOUND",
        );
        assert_eq!(setting.balance().await.total_micros, CREDIT);
        setting.check_ledger().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_price_is_refused_with_its_reason() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let mut billing = setting.projects.clone();
    let good = wire::SetPriceRequest {
        gpu_type: "cpu".into(),
        per_hour_micros: 1,
        plan: String::new(),
    };
    for per_hour_micros in [-1, i64::MAX] {
        let odd = wire::SetPriceRequest {
            per_hour_micros,
            ..good.clone()
        };
        refused(billing.set_price(odd).await, Kind::Invalid, "PRICE_INVALID");
    }
    let odd = wire::SetPriceRequest {
        plan: "gold".into(),
        ..good.clone()
    };
    refused(billing.set_price(odd).await, Kind::Invalid, "PLAN_INVALID");
    let odd = wire::SetPriceRequest {
        gpu_type: "CPU!".into(),
        ..good
    };
    refused(
        billing.set_price(odd).await,
        Kind::Invalid,
        "GPU_TYPE_INVALID",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_rpc_takes_only_whom_it_is_for() {
    let setting = Setting::start(TestDatabase::sqlite()).await;
    let (workspace_id, run_id) = (setting.workspace.to_string(), setting.new_run().to_string());
    for role in [Role::Viewer, Role::Owner, Role::Worker] {
        let mut billing = setting.client_as(&setting.member(role));
        let quote = wire::QuoteRequest {
            workspace_id: workspace_id.clone(),
            gpu_type: "cpu".into(),
        };
        refused(billing.quote(quote).await, Kind::Denied, "ROLE_TOO_LOW");
        let hold = setting.hold_request(setting.new_run(), CREDIT);
        refused(billing.hold(hold).await, Kind::Denied, "ROLE_TOO_LOW");
        let release = wire::ReleaseHoldRequest {
            workspace_id: workspace_id.clone(),
            run_id: run_id.clone(),
        };
        refused(
            billing.release_hold(release).await,
            Kind::Denied,
            "ROLE_TOO_LOW",
        );
        let top_up = wire::TopUpRequest {
            amount_micros: CREDIT,
            ..Default::default()
        };
        refused(billing.top_up(top_up).await, Kind::Denied, "ROLE_TOO_LOW");
        let price = wire::SetPriceRequest::default();
        refused(billing.set_price(price).await, Kind::Denied, "ROLE_TOO_LOW");
        let check = wire::CheckLedgerRequest {};
        refused(
            billing.check_ledger(check).await,
            Kind::Denied,
            "ROLE_TOO_LOW",
        );
    }
    let mut worker = setting.client_as(&setting.member(Role::Worker));
    let balance = worker.get_balance(wire::GetBalanceRequest {}).await;
    refused(balance, Kind::Denied, "ROLE_TOO_LOW");
    let mut operator = setting.client_as(&setting.member(Role::Operator));
    let own = wire::TopUpRequest {
        amount_micros: CREDIT,
        ..Default::default()
    };
    operator.top_up(own).await.unwrap();
    assert_eq!(setting.balance().await.total_micros, CREDIT);

    let address = setting
        .fleet
        .config()
        .fleet()
        .service_url("billing")
        .unwrap();
    let channel = tonic::transport::Endpoint::from_shared(address)
        .unwrap()
        .connect_lazy();
    let mut stranger = wire::billing_service_client::BillingServiceClient::new(channel);
    let answer = stranger.get_balance(wire::GetBalanceRequest {}).await;
    refused(answer, Kind::Unauthenticated, "IDENTITY_MISSING");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_sees_nothing_of_another() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(CREDIT).await;
        let run = setting.new_run();
        setting.hold(run, CREDIT).await.unwrap();
        let elsewhere = setting.member_of(Id::new(setting.clock().now()), Role::Owner);
        let mut billing = setting.client_as(&elsewhere);
        let balance = billing
            .get_balance(wire::GetBalanceRequest {})
            .await
            .unwrap();
        assert_eq!(balance.into_inner().balance, Some(wire::Balance::default()));
        let mine = wire::ListTransfersRequest {
            run_id: run.to_string(),
            ..Default::default()
        };
        let lines = billing.list_transfers(mine).await.unwrap().into_inner();
        assert!(lines.transfers.is_empty());
        let theirs = wire::GetRunChargeRequest {
            run_id: run.to_string(),
        };
        let absent = wire::GetRunChargeRequest {
            run_id: setting.new_run().to_string(),
        };
        let theirs = refused(
            billing.get_run_charge(theirs).await,
            Kind::NotFound,
            "RUN_NOT_FOUND",
        );
        let absent = refused(
            billing.get_run_charge(absent).await,
            Kind::NotFound,
            "RUN_NOT_FOUND",
        );
        let shape = |fault: &Fault| fault.metadata.keys().cloned().collect::<Vec<_>>();
        assert_eq!(shape(&theirs), shape(&absent));
        // A service that acts for them sees no more; and their release is of nothing.
        let request = wire::GetRunChargeRequest {
            run_id: run.to_string(),
        };
        let answer = setting
            .projects
            .clone()
            .get_run_charge(act_for(&elsewhere, request))
            .await;
        refused(answer, Kind::NotFound, "RUN_NOT_FOUND");
        let release = wire::ReleaseHoldRequest {
            workspace_id: elsewhere.workspace().unwrap().to_string(),
            run_id: run.to_string(),
        };
        setting
            .projects
            .clone()
            .release_hold(release)
            .await
            .unwrap();
        assert_eq!(setting.balance().await.held_micros, CREDIT);
    }
}

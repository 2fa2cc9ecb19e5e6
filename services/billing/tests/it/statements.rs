//! What a workspace reads about its money.

use std::time::Duration;

use kit::auth::{Role, act_for};
use kit::fault::Fault;
use kit::testing::TestDatabase;
use proto::fovea::billing::v1 as wire;

use crate::setting::{Setting, cpu_cost};

const CREDIT: i64 = 1_000_000;

async fn page(
    setting: &Setting,
    request: wire::ListTransfersRequest,
) -> Result<wire::ListTransfersResponse, Fault> {
    let request = act_for(&setting.member(Role::Viewer), request);
    Ok(setting
        .projects
        .clone()
        .list_transfers(request)
        .await?
        .into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_is_the_sum_of_its_lines_and_pages_from_the_newest() {
    for database in TestDatabase::all().await {
        let setting = Setting::start(database).await;
        setting.top_up(5 * CREDIT).await;
        setting.clock().advance(Duration::from_secs(1));
        let run = setting.new_run();
        setting.hold(run, CREDIT).await.unwrap();
        setting.clock().advance(Duration::from_secs(1));
        setting.completed(run, 3600).await;
        setting
            .charge_when("the end is heard", run, |charge| charge.is_settled)
            .await;

        let mut lines = Vec::new();
        let mut request = wire::ListTransfersRequest {
            page_size: 3,
            ..Default::default()
        };
        loop {
            let answer = page(&setting, request.clone()).await.unwrap();
            lines.extend(answer.transfers);
            if answer.next_page_token.is_empty() {
                break;
            }
            request.page_token = answer.next_page_token;
        }
        let kinds: Vec<_> = lines.iter().map(|line| line.kind.as_str()).collect();
        assert_eq!(kinds, ["release", "charge", "hold", "top_up"]);
        assert_eq!(lines[3].note, "bank transfer");
        assert_eq!(
            (lines[1].from_account.as_str(), lines[1].to_account.as_str()),
            ("held", "revenue")
        );
        assert_eq!(
            (lines[1].run_id.clone(), lines[1].amount_micros),
            (run.to_string(), cpu_cost(3600))
        );
        let sum = |account: &str| -> i64 {
            let of = |line: &wire::Transfer| match () {
                () if line.to_account == account => line.amount_micros,
                () if line.from_account == account => -line.amount_micros,
                () => 0,
            };
            lines.iter().map(of).sum()
        };
        let balance = setting.balance().await;
        assert_eq!(sum("balance"), balance.available_micros);
        assert_eq!(sum("held"), balance.held_micros);

        let of_run = wire::ListTransfersRequest {
            run_id: run.to_string(),
            ..Default::default()
        };
        assert_eq!(page(&setting, of_run).await.unwrap().transfers.len(), 3);
        let odd = wire::ListTransfersRequest {
            page_size: -1,
            ..Default::default()
        };
        assert!(
            page(&setting, odd)
                .await
                .unwrap_err()
                .is("PAGE_SIZE_INVALID")
        );
        let odd = wire::ListTransfersRequest {
            page_token: "2".into(),
            ..Default::default()
        };
        assert!(
            page(&setting, odd)
                .await
                .unwrap_err()
                .is("PAGE_TOKEN_INVALID")
        );
    }
}

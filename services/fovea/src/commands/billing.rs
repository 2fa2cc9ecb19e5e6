//! `fovea billing …`: what there is, where it went, what things cost.

use anyhow::{Result, bail};
use proto::fovea::billing::v1::{
    Balance, CheckLedgerRequest, GetBalanceRequest, ListPricesRequest, ListTransfersRequest,
    SetPriceRequest, TopUpRequest,
};

use super::Session;
use crate::cli::Billing;
use crate::output::{Table, credits, line, proto_span};

/// Runs one of the commands.
pub async fn run(session: &Session, command: Billing) -> Result<()> {
    let mut billing = session.fleet.billing();
    match command {
        Billing::Balance => {
            let response = billing
                .get_balance(GetBalanceRequest {})
                .await?
                .into_inner();
            session.show(&response, |response| {
                print_balance(response.balance.as_ref())
            })
        }
        Billing::Transfers { run, limit } => {
            let run_id = match run {
                Some(run) => super::runs::find(session, &run).await?.id,
                None => String::new(),
            };
            let request = ListTransfersRequest {
                run_id,
                page_size: limit,
                ..Default::default()
            };
            let response = billing.list_transfers(request).await?.into_inner();
            session.show(&response, |response| {
                let mut table = Table::new(["AT", "KIND", "CREDITS", "FROM", "TO", "RUN", "NOTE"]);
                for transfer in &response.transfers {
                    table.row([
                        super::runs::instant(transfer.at.as_ref()),
                        transfer.kind.clone(),
                        credits(transfer.amount_micros),
                        transfer.from_account.clone(),
                        transfer.to_account.clone(),
                        transfer.run_id.clone(),
                        transfer.note.clone(),
                    ]);
                }
                table.print();
            })
        }
        Billing::Charge { run } => {
            let run = super::runs::find(session, &run).await?;
            let charge = super::runs::charge(session, &run.id).await?;
            session.show(&charge, |charge| {
                let estimate = run.estimate.clone().unwrap_or_default();
                line(format!(
                    "{} credits for {} at {} an hour{}",
                    credits(charge.charged_micros),
                    proto_span(charge.committed.as_ref()),
                    credits(charge.price_per_hour_micros),
                    if charge.is_settled { "" } else { ", so far" }
                ));
                line(format!(
                    "estimated {} credits ({} to {})",
                    credits(estimate.cost_likely_micros),
                    credits(estimate.cost_low_micros),
                    credits(estimate.cost_high_micros)
                ));
            })
        }
        Billing::Prices => {
            let response = billing
                .list_prices(ListPricesRequest {})
                .await?
                .into_inner();
            session.show(&response, |response| {
                let mut table = Table::new(["DEVICE", "CREDITS/H", "PLAN"]);
                for price in &response.prices {
                    table.row([
                        price.gpu_type.clone(),
                        credits(price.per_hour_micros),
                        price.plan.clone(),
                    ]);
                }
                table.print();
            })
        }
        Billing::SetPrice { gpu, per_hour } => {
            let request = SetPriceRequest {
                gpu_type: gpu,
                per_hour_micros: per_hour,
                plan: String::new(),
            };
            let response = billing.set_price(request).await?.into_inner();
            session.show(&response, |response| {
                let price = response.price.clone().unwrap_or_default();
                line(format!(
                    "{} costs {} an hour",
                    price.gpu_type,
                    credits(price.per_hour_micros)
                ));
            })
        }
        Billing::TopUp {
            credits: micros,
            note,
        } => {
            let now = kit::Clock::system().now();
            let request = TopUpRequest {
                workspace_id: String::new(),
                amount_micros: micros,
                note,
                idempotency_key: format!("cli-{}", kit::Id::<kit::id::Transfer>::new(now)),
            };
            let response = billing.top_up(request).await?.into_inner();
            session.show(&response, |response| {
                print_balance(response.balance.as_ref())
            })
        }
        Billing::Check => {
            let response = billing
                .check_ledger(CheckLedgerRequest {})
                .await?
                .into_inner();
            session.show(&response, |response| {
                line(format!(
                    "{} transfers; entries sum to {}, balances sum to {}",
                    response.transfer_count,
                    credits(response.entry_sum_micros),
                    credits(response.balance_sum_micros)
                ));
            })?;
            let is_sound = response.entry_sum_micros == 0
                && response.balance_sum_micros == 0
                && response.broken_accounts.is_empty();
            if !is_sound {
                bail!("the ledger doesn't balance: {:?}", response.broken_accounts);
            }
            Ok(())
        }
    }
}

fn print_balance(balance: Option<&Balance>) {
    let balance = balance.copied().unwrap_or_default();
    line(format!(
        "{} credits available, {} set aside, {} in all",
        credits(balance.available_micros),
        credits(balance.held_micros),
        credits(balance.total_micros)
    ));
}

//! The RPCs: who may call, proto in, command or query, proto out.

use kit::auth::{Caller, Role, caller};
use kit::fault::Fault;
use kit::id::{Id, Run, Transfer, Workspace};
use kit::money::{Amount, PricePerHour};
use proto::fovea::billing::v1 as wire;
use proto::fovea::billing::v1::billing_service_server::BillingService;
use tonic::{Request, Response, Status};

use crate::commands::{Billing, HoldCommand, balance, duration_to_wire};
use crate::domain::Plan;
use crate::domain::holds::{Hold, State};
use crate::domain::prices::{self, Price, SetPrice};
use crate::error::Error;
use crate::store::{self, Line};

/// Lines of a page where the caller doesn't say.
const PAGE_SIZE_DEFAULT: i64 = 50;
/// The most lines of a page.
const PAGE_SIZE_MAX: i64 = 1000;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl BillingService for Billing {
    async fn get_balance(
        &self,
        request: Request<wire::GetBalanceRequest>,
    ) -> Answer<wire::GetBalanceResponse> {
        let workspace = workspace_of(&caller(&request)?)?;
        let wallet = store::wallet(self.store.read(), workspace).await?;
        answer(wire::GetBalanceResponse {
            balance: Some(balance(wallet)?),
        })
    }

    async fn list_transfers(
        &self,
        request: Request<wire::ListTransfersRequest>,
    ) -> Answer<wire::ListTransfersResponse> {
        let workspace = workspace_of(&caller(&request)?)?;
        let request = request.into_inner();
        let run = Id::<Run>::parse_optional("run_id", &request.run_id)?;
        let before = page_token(&request.page_token)?;
        let size = page_size(request.page_size)?;
        let mut lines = store::lines(self.store.read(), workspace, run, before, size + 1).await?;
        // One more than asked for says whether there is another page.
        let has_more = lines.len() as i64 > size;
        lines.truncate(size as usize);
        let last = lines.last().filter(|_| has_more);
        answer(wire::ListTransfersResponse {
            next_page_token: last.map(|line| line.id.to_string()).unwrap_or_default(),
            transfers: lines.into_iter().map(line_to_wire).collect(),
        })
    }

    async fn get_run_charge(
        &self,
        request: Request<wire::GetRunChargeRequest>,
    ) -> Answer<wire::GetRunChargeResponse> {
        let workspace = workspace_of(&caller(&request)?)?;
        let run = Id::<Run>::parse_field("run_id", &request.into_inner().run_id)?;
        let hold = store::hold(self.store.read(), run).await?;
        let hold = hold.filter(|hold| hold.workspace == workspace);
        let hold = hold.ok_or(Error::RunNotFound(run))?;
        answer(wire::GetRunChargeResponse {
            charge: Some(charge_to_wire(&hold)),
        })
    }

    async fn list_prices(
        &self,
        request: Request<wire::ListPricesRequest>,
    ) -> Answer<wire::ListPricesResponse> {
        caller(&request)?.require(Role::Viewer)?;
        let now = self.store.clock().now();
        let known = store::prices(self.store.read(), None).await?;
        let current = known
            .values()
            .filter_map(|history| prices::current(history, now));
        answer(wire::ListPricesResponse {
            prices: current.map(price_to_wire).collect(),
        })
    }

    async fn top_up(&self, request: Request<wire::TopUpRequest>) -> Answer<wire::TopUpResponse> {
        let caller = caller(&request)?;
        caller.require_operator()?;
        let request = request.into_inner();
        let workspace = match Id::parse_optional("workspace_id", &request.workspace_id)? {
            Some(workspace) => workspace,
            None => caller.workspace()?,
        };
        answer(Billing::top_up(self, workspace, &request).await?)
    }

    async fn set_price(
        &self,
        request: Request<wire::SetPriceRequest>,
    ) -> Answer<wire::SetPriceResponse> {
        caller(&request)?.require_operator()?;
        let request = request.into_inner();
        let plan = match request.plan.as_str() {
            "" => None,
            name => {
                let plan = Plan::from_name(name);
                Some(plan.ok_or_else(|| Error::PlanInvalid(name.chars().take(40).collect()))?)
            }
        };
        let command = SetPrice {
            gpu_type: request.gpu_type,
            per_hour: per_hour(request.per_hour_micros)?,
            plan,
        };
        let price = Billing::set_price(self, command).await?;
        answer(wire::SetPriceResponse {
            price: Some(price_to_wire(&price)),
        })
    }

    async fn check_ledger(
        &self,
        request: Request<wire::CheckLedgerRequest>,
    ) -> Answer<wire::CheckLedgerResponse> {
        caller(&request)?.require_operator()?;
        let sums = store::sums(self.store.read()).await?;
        let broken = store::broken_accounts(self.store.read()).await?;
        answer(wire::CheckLedgerResponse {
            entry_sum_micros: sums.entries,
            balance_sum_micros: sums.balances,
            transfer_count: sums.transfers,
            broken_accounts: broken.iter().map(ToString::to_string).collect(),
        })
    }

    async fn quote(&self, request: Request<wire::QuoteRequest>) -> Answer<wire::QuoteResponse> {
        caller(&request)?.require_service()?;
        let request = request.into_inner();
        let workspace = Id::<Workspace>::parse_field("workspace_id", &request.workspace_id)?;
        prices::check_gpu_type(&request.gpu_type)?;
        let price = Billing::quote(self, workspace, &request.gpu_type).await?;
        answer(wire::QuoteResponse {
            price: Some(price_to_wire(&price)),
        })
    }

    async fn hold(&self, request: Request<wire::HoldRequest>) -> Answer<wire::HoldResponse> {
        caller(&request)?.require_service()?;
        let request = request.into_inner();
        prices::check_gpu_type(&request.gpu_type)?;
        let cap = Some(request.cap_micros).filter(|cap| *cap != 0);
        let command = HoldCommand {
            workspace: Id::parse_field("workspace_id", &request.workspace_id)?,
            run: Id::parse_field("run_id", &request.run_id)?,
            gpu_type: request.gpu_type,
            amount: Amount::from_micros(request.amount_micros),
            cap: cap.map(Amount::from_micros),
            price: per_hour(request.price_per_hour_micros)?,
        };
        let hold = Billing::hold(self, command).await?;
        answer(wire::HoldResponse {
            hold_id: hold.id.to_string(),
            amount_micros: hold.held.micros(),
        })
    }

    async fn release_hold(
        &self,
        request: Request<wire::ReleaseHoldRequest>,
    ) -> Answer<wire::ReleaseHoldResponse> {
        caller(&request)?.require_service()?;
        let request = request.into_inner();
        let workspace = Id::<Workspace>::parse_field("workspace_id", &request.workspace_id)?;
        let run = Id::<Run>::parse_field("run_id", &request.run_id)?;
        Billing::release_hold(self, workspace, run).await?;
        answer(wire::ReleaseHoldResponse {})
    }
}

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

/// Returns the workspace of a caller who may look into it.
fn workspace_of(caller: &Caller) -> Result<Id<Workspace>, Fault> {
    caller.require(Role::Viewer)?;
    caller.workspace()
}

fn per_hour(micros: i64) -> Result<PricePerHour, Error> {
    PricePerHour::from_micros(micros).map_err(|_| Error::PriceInvalid {
        rule: "must not be below zero".to_owned(),
    })
}

fn page_size(asked: i32) -> Result<i64, Fault> {
    match i64::from(asked) {
        0 => Ok(PAGE_SIZE_DEFAULT),
        asked if asked > 0 => Ok(asked.min(PAGE_SIZE_MAX)),
        _ => {
            let rule = "must not be below zero";
            Err(Fault::invalid_field(
                "PAGE_SIZE_INVALID",
                "billing",
                "page_size",
                rule,
            ))
        }
    }
}

fn page_token(text: &str) -> Result<Option<Id<Transfer>>, Fault> {
    Id::parse_optional("page_token", text).map_err(|_| {
        let rule = "must come from the page before";
        Fault::invalid_field("PAGE_TOKEN_INVALID", "billing", "page_token", rule)
    })
}

fn price_to_wire(price: &Price) -> wire::Price {
    wire::Price {
        gpu_type: price.gpu_type.clone(),
        per_hour_micros: price.per_hour.micros(),
        plan: price.plan.as_str().to_owned(),
        valid_from: Some(price.valid_from.into()),
    }
}

fn line_to_wire(line: Line) -> wire::Transfer {
    let (source, target) = line.kind.route();
    wire::Transfer {
        id: line.id.to_string(),
        kind: line.kind.as_str().to_owned(),
        amount_micros: line.amount.micros(),
        from_account: source.as_str().to_owned(),
        to_account: target.as_str().to_owned(),
        run_id: line.run.map(|run| run.to_string()).unwrap_or_default(),
        note: line.note,
        at: Some(line.at.into()),
    }
}

fn charge_to_wire(hold: &Hold) -> wire::RunCharge {
    wire::RunCharge {
        run_id: hold.run.to_string(),
        price_per_hour_micros: hold.price.micros(),
        committed: Some(duration_to_wire(hold.committed)),
        charged_micros: hold.charged.micros(),
        held_micros: hold.held.micros(),
        is_settled: hold.state == State::Settled,
        cap_micros: hold.cap.micros(),
        owed_micros: hold.owed().micros(),
    }
}

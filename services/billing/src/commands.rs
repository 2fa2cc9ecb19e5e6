//! One function per thing billing can be asked or told: load, decide, save the change with its facts, commit.

use std::sync::Arc;
use std::time::Duration;

use kit::id::{Id, Run, Transfer, Workspace};
use kit::money::{Amount, PricePerHour};
use kit::service::Channel;
use kit::store::{self as database, Store, Tx};
use kit::time::Timestamp;
use proto::fovea::accounts::v1 as accounts;
use proto::fovea::accounts::v1::account_service_client::AccountServiceClient;
use proto::fovea::billing::v1 as wire;

use crate::config::Config;
use crate::domain::holds::{self, Ask, Change, Hold};
use crate::domain::ledger::Wallet;
use crate::domain::prices::{self, Price, SetPrice};
use crate::domain::{Fact, Plan};
use crate::error::Error;
use crate::store::{self, Accounts};

/// Does what billing is asked. Clones share everything.
#[derive(Clone)]
pub struct Billing {
    pub(crate) store: Store,
    pub(crate) config: Arc<Config>,
    accounts: AccountServiceClient<Channel>,
}

/// Asks for money to be set aside.
#[derive(Debug, Clone)]
pub struct HoldCommand {
    pub workspace: Id<Workspace>,
    pub run: Id<Run>,
    pub gpu_type: String,
    pub amount: Amount,
    /// None keeps what it was; for a new hold it is `amount`.
    pub cap: Option<Amount>,
    pub price: PricePerHour,
}

impl Billing {
    /// Returns billing on this store; `accounts` knows workspaces that weren't heard of yet.
    pub fn new(store: Store, config: Config, accounts: Channel) -> Self {
        Self {
            store,
            config: Arc::new(config),
            accounts: AccountServiceClient::new(accounts),
        }
    }

    /// Opens the accounts of the installation and adds the prices of device types that have none.
    pub async fn seed(&self) -> Result<(), Error> {
        self.store
            .write(|tx| async move {
                store::open_system_accounts(&tx).await?;
                let known = store::prices(&tx, None).await?;
                for price in prices::seeds(tx.now()) {
                    if !known.contains_key(&price.gpu_type) {
                        store::add_price(&tx, &price).await?;
                    }
                }
                Ok(())
            })
            .await
    }

    /// Returns the price of a device type for a workspace.
    pub async fn quote(&self, workspace: Id<Workspace>, gpu_type: &str) -> Result<Price, Error> {
        let plan = self.plan_of(workspace).await?;
        let history = self.history(gpu_type).await?;
        let now = self.store.clock().now();
        match prices::quote(&history, gpu_type, plan, now) {
            // The fact of a better plan may still be on its way: who has just paid isn't refused.
            Err(Error::GpuNotInPlan { .. }) => {
                let plan = self.ask_accounts(workspace).await?;
                prices::quote(&history, gpu_type, plan, now)
            }
            quoted => quoted,
        }
    }

    /// Sets money aside for a run and returns its hold.
    pub async fn hold(&self, command: HoldCommand) -> Result<Hold, Error> {
        self.plan_of(command.workspace).await?;
        let is_new = store::hold(self.store.read(), command.run).await?.is_none();
        if is_new {
            self.quote(command.workspace, &command.gpu_type).await?;
            let history = self.history(&command.gpu_type).await?;
            let now = self.store.clock().now();
            let (gpu_type, price) = (&command.gpu_type, command.price);
            prices::check_quoted(&history, gpu_type, price, now, self.config.quote_ttl)?;
        }
        let (command, hold_ttl) = (&command, self.config.hold_ttl);
        self.store
            .write(|tx| async move {
                let accounts = lock(&tx, command.workspace).await?;
                let existing = store::hold(&tx, command.run).await?;
                let ask = Ask {
                    id: Id::new(tx.now()),
                    run: command.run,
                    workspace: command.workspace,
                    gpu_type: command.gpu_type.clone(),
                    price: command.price,
                    amount: command.amount,
                    cap: command.cap,
                    expires_at: tx.now() + hold_ttl,
                };
                let change = holds::open(existing, accounts.wallet, ask, tx.now())?;
                let hold = change.holds[0].clone();
                save(&tx, &accounts, change).await?;
                Ok(hold)
            })
            .await
    }

    /// Gives back what is set aside for a run that never started.
    pub async fn release_hold(&self, workspace: Id<Workspace>, run: Id<Run>) -> Result<(), Error> {
        self.store
            .write(|tx| async move {
                match store::hold(&tx, run).await? {
                    Some(hold) if hold.workspace == workspace => {
                        change_hold(&tx, hold, holds::release).await
                    }
                    _ => Ok(()),
                }
            })
            .await
    }

    /// Adds credits to a workspace.
    pub async fn top_up(
        &self,
        workspace: Id<Workspace>,
        request: &wire::TopUpRequest,
    ) -> Result<wire::TopUpResponse, Error> {
        self.plan_of(workspace).await?;
        self.store
            .write(|tx| async move {
                let scope = format!("TopUp/{workspace}");
                let key = request.idempotency_key.as_str();
                if let Some(answer) = tx.recall(&scope, key, request).await? {
                    return Ok(answer);
                }
                let accounts = lock(&tx, workspace).await?;
                let id = Id::<Transfer>::new(tx.now());
                let move_key = match key {
                    "" => format!("top-up:{id}"),
                    // Remembered answers are forgotten one day; a transfer's key never is.
                    key => format!("top-up:{workspace}:{key}"),
                };
                let owing = store::owing(&tx, workspace).await?;
                let change = holds::top_up(
                    accounts.wallet,
                    Amount::from_micros(request.amount_micros),
                    request.note.clone(),
                    move_key,
                    owing,
                )?;
                let wallet = change.wallet;
                save_as(&tx, &accounts, id, change)
                    .await
                    .map_err(|error| match error {
                        Error::Store(error) if error.is_duplicate() && !key.is_empty() => {
                            let key = key.to_owned();
                            Error::Store(database::Error::KeyReused { key })
                        }
                        error => error,
                    })?;
                let answer = wire::TopUpResponse {
                    transfer_id: id.to_string(),
                    balance: Some(balance(wallet)?),
                };
                tx.remember(&scope, key, request, &answer).await?;
                Ok(answer)
            })
            .await
    }

    /// Makes a price hold from now on and returns it.
    pub async fn set_price(&self, command: SetPrice) -> Result<Price, Error> {
        let command = &command;
        self.store
            .write(|tx| async move {
                let mut known = store::prices(&tx, Some(&command.gpu_type)).await?;
                let history = known.remove(&command.gpu_type).unwrap_or_default();
                match prices::set_price(&history, command.clone(), tx.now())? {
                    Some(price) => {
                        store::add_price(&tx, &price).await?;
                        Ok(price)
                    }
                    None => Ok(history
                        .into_iter()
                        .max_by_key(|price| price.valid_from)
                        .expect("invariant: nothing changes only where a price holds")),
                }
            })
            .await
    }

    /// Gives back what is held for runs that weren't queued in time; returns how many there were.
    pub async fn expire_holds(&self) -> Result<usize, Error> {
        let now = self.store.clock().now();
        let overdue = store::expiring(self.store.read(), now).await?;
        for run in &overdue {
            let run = *run;
            self.store
                .write(|tx| async move {
                    match store::hold(&tx, run).await? {
                        Some(hold) => {
                            let expire = |hold, wallet| holds::expire(hold, wallet, now);
                            change_hold(&tx, hold, expire).await
                        }
                        None => Ok(()),
                    }
                })
                .await?;
        }
        Ok(overdue.len())
    }

    async fn history(&self, gpu_type: &str) -> Result<Vec<Price>, Error> {
        let mut known = store::prices(self.store.read(), Some(gpu_type)).await?;
        Ok(known.remove(gpu_type).unwrap_or_default())
    }

    /// Returns a workspace's plan; one that wasn't heard of yet is asked for, and its accounts opened.
    async fn plan_of(&self, workspace: Id<Workspace>) -> Result<Plan, Error> {
        match store::plan(self.store.read(), workspace).await? {
            Some(plan) => Ok(plan),
            None => self.ask_accounts(workspace).await,
        }
    }

    async fn ask_accounts(&self, workspace: Id<Workspace>) -> Result<Plan, Error> {
        let asked_at = self.store.clock().now();
        let request = accounts::GetWorkspaceRequest {
            workspace_id: workspace.to_string(),
        };
        let answer = match self.accounts.clone().get_workspace(request).await {
            Ok(answer) => answer.into_inner(),
            Err(status) if status.code() == tonic::Code::NotFound => {
                return Err(Error::WorkspaceNotFound(workspace));
            }
            Err(status) => return Err(kit::Fault::from_status(&status).into()),
        };
        let plan = plan_from_wire(answer.workspace.unwrap_or_default().plan());
        self.store
            .write(|tx| async move {
                store::note_workspace(&tx, workspace, plan, asked_at).await?;
                Ok(plan)
            })
            .await
    }
}

/// The run of a hold is queued.
pub async fn confirm(tx: &Tx, hold: Hold) -> Result<(), Error> {
    change_hold(tx, hold, holds::confirm).await
}

/// A run has a checkpoint.
pub async fn advance(tx: &Tx, hold: Hold, committed: Duration) -> Result<(), Error> {
    change_hold(tx, hold, |hold, wallet| {
        holds::advance(hold, wallet, committed)
    })
    .await
}

/// A run paused.
pub async fn pause(
    tx: &Tx,
    hold: Hold,
    committed: Duration,
    paused_at: Timestamp,
    hold_ttl: Duration,
) -> Result<(), Error> {
    let expires_at = tx.now() + hold_ttl;
    let pause = |hold, wallet| holds::pause(hold, wallet, committed, paused_at, expires_at);
    change_hold(tx, hold, pause).await
}

/// A run ended for good.
pub async fn settle(tx: &Tx, hold: Hold, committed: Duration) -> Result<(), Error> {
    change_hold(tx, hold, |hold, wallet| {
        holds::settle(hold, wallet, committed)
    })
    .await
}

/// Returns what the wire says about a wallet.
pub fn balance(wallet: Wallet) -> Result<wire::Balance, Error> {
    Ok(wire::Balance {
        total_micros: wallet.total()?.micros(),
        held_micros: wallet.held.micros(),
        available_micros: wallet.balance.micros(),
    })
}

/// Returns the plan of the wire; none is free.
pub fn plan_from_wire(plan: accounts::Plan) -> Plan {
    match plan {
        accounts::Plan::Unspecified | accounts::Plan::Free => Plan::Free,
        accounts::Plan::Pro => Plan::Pro,
        accounts::Plan::Enterprise => Plan::Enterprise,
    }
}

async fn lock(tx: &Tx, workspace: Id<Workspace>) -> Result<Accounts, Error> {
    let accounts = store::lock_accounts(tx, workspace).await?;
    accounts.ok_or(Error::WorkspaceNotFound(workspace))
}

async fn change_hold(
    tx: &Tx,
    hold: Hold,
    decide: impl FnOnce(Hold, Wallet) -> Result<Change, Error>,
) -> Result<(), Error> {
    let accounts = lock(tx, hold.workspace).await?;
    let change = decide(hold, accounts.wallet)?;
    save(tx, &accounts, change).await
}

async fn save(tx: &Tx, accounts: &Accounts, change: Change) -> Result<(), Error> {
    save_as(tx, accounts, Id::new(tx.now()), change).await
}

/// Saves a change; the first of its transfers gets the id `first`, the others follow it.
async fn save_as(
    tx: &Tx,
    accounts: &Accounts,
    first: Id<Transfer>,
    change: Change,
) -> Result<(), Error> {
    let mut id = first;
    let mut at = tx.now();
    for posted in &change.moves {
        store::post(tx, accounts, id, posted).await?;
        // Statements are ordered by id: those of one transaction keep their order.
        at = at + Duration::from_micros(1);
        id = Id::new(at);
    }
    for hold in &change.holds {
        store::save_hold(tx, hold).await?;
    }
    for fact in &change.facts {
        tell(tx, accounts.workspace, fact).await?;
    }
    Ok(())
}

async fn tell(tx: &Tx, workspace: Id<Workspace>, fact: &Fact) -> Result<(), database::Error> {
    let about = Some(workspace);
    match *fact {
        Fact::CreditAdded { amount, available } => {
            let message = wire::CreditAdded {
                amount_micros: amount.micros(),
                available_micros: available.micros(),
            };
            tx.tell(about, workspace, &message).await
        }
        Fact::RunCharged {
            run,
            amount,
            total,
            committed,
        } => {
            let message = wire::RunCharged {
                run_id: run.to_string(),
                amount_micros: amount.micros(),
                total_micros: total.micros(),
                committed: Some(duration_to_wire(committed)),
            };
            tx.tell(about, run, &message).await
        }
        Fact::HoldExhausted { run, cause } => {
            let message = wire::HoldExhausted {
                run_id: run.to_string(),
                cause: cause.as_str().to_owned(),
            };
            tx.tell(about, run, &message).await
        }
        Fact::RunSettled {
            run,
            charged,
            released,
        } => {
            let message = wire::RunSettled {
                run_id: run.to_string(),
                charged_micros: charged.micros(),
                released_micros: released.micros(),
            };
            tx.tell(about, run, &message).await
        }
    }
    .map(drop)
}

/// Returns a span as the wire says it; the longest there is for what doesn't fit.
pub fn duration_to_wire(span: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(span).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

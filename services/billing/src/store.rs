//! All SQL of billing: rows in, domain types out.
//!
//! Whoever changes a workspace's money first locks its two accounts, so that changes of one workspace queue up behind
//! each other and the domain decides on what is true.

use std::collections::BTreeMap;
use std::time::Duration;

use kit::id::{Account, Id, Run, Transfer, Workspace};
use kit::money::Amount;
use kit::params;
use kit::store::{Error, FromRow, Migration, Row, Sql, Tx};
use kit::time::Timestamp;

use crate::domain::holds::{Hold, State};
use crate::domain::ledger::{Move, MoveKind, Place, Wallet};
use crate::domain::prices::Price;
use crate::domain::{Plan, Shortage};

/// The steps of the schema.
pub const MIGRATIONS: &[Migration] = &[Migration::new(
    1,
    "ledger",
    include_str!("migrations/0001_ledger.sql"),
)];

/// Holds of one workspace that a top-up pays for at a time; the next one pays for the others.
const OWING_MAX: i64 = 200;
/// Holds that one sweep looks at.
pub const EXPIRING_MAX: i64 = 200;
/// Broken accounts that are named.
const BROKEN_MAX: i64 = 100;
/// Prices that are read: all of them, with their history.
const PRICES_MAX: i64 = 100_000;

/// A workspace's two accounts, locked.
#[derive(Debug, Clone, Copy)]
pub struct Accounts {
    pub workspace: Id<Workspace>,
    balance: Id<Account>,
    held: Id<Account>,
    pub wallet: Wallet,
}

/// One line of a workspace's statement.
#[derive(Debug, Clone)]
pub struct Line {
    pub id: Id<Transfer>,
    pub kind: MoveKind,
    pub amount: Amount,
    pub run: Option<Id<Run>>,
    pub note: String,
    pub at: Timestamp,
}

/// What the sums of the ledger are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sums {
    /// Of all entries: zero.
    pub entries: i64,
    /// Of all balances: zero.
    pub balances: i64,
    pub transfers: i64,
    /// What runs were charged since the installation began.
    pub revenue: i64,
    /// Holds whose runs wait or train.
    pub live_holds: i64,
    /// What all workspaces have set aside.
    pub held: i64,
}

/// Returns the account of the installation at this place; their ids are the same everywhere.
fn system_account(place: Place) -> Id<Account> {
    let mut bytes = [0; 16];
    bytes[15] = match place {
        Place::Cash => 1,
        Place::Revenue => 2,
        Place::Balance | Place::Held => {
            unreachable!("invariant: {} is a workspace's", place.as_str())
        }
    };
    Id::from_bytes(bytes)
}

/// Opens the accounts of the installation, where they aren't open yet.
pub async fn open_system_accounts(tx: &Tx) -> Result<(), Error> {
    for place in Place::SYSTEM {
        open_account(tx, system_account(place), None, place).await?;
    }
    Ok(())
}

async fn open_account(
    tx: &Tx,
    id: Id<Account>,
    workspace: Option<Id<Workspace>>,
    place: Place,
) -> Result<(), Error> {
    tx.execute(
        "insert into accounts (id, workspace_id, place, balance, floor, opened_at)
         values ($1, $2, $3, 0, $4, $5) on conflict do nothing",
        params![id, workspace, place.as_str(), place.floor(), tx.now()],
    )
    .await
    .map(drop)
}

/// Opens a workspace's accounts where they aren't open yet, and notes its plan unless a newer one is known.
pub async fn note_workspace(
    tx: &Tx,
    workspace: Id<Workspace>,
    plan: Plan,
    told_at: Timestamp,
) -> Result<(), Error> {
    tx.execute(
        "insert into workspaces (id, plan, plan_at, opened_at) values ($1, $2, $3, $4)
         on conflict (id) do update set plan = excluded.plan, plan_at = excluded.plan_at
         where workspaces.plan_at <= excluded.plan_at",
        params![workspace, plan.as_str(), told_at, tx.now()],
    )
    .await?;
    for place in Place::OF_WORKSPACE {
        open_account(tx, Id::new(tx.now()), Some(workspace), place).await?;
    }
    Ok(())
}

/// Returns the plan of a workspace that has accounts here.
pub async fn plan(sql: &Sql, workspace: Id<Workspace>) -> Result<Option<Plan>, Error> {
    let row = sql
        .query_optional::<String>(
            "select plan from workspaces where id = $1",
            params![workspace],
        )
        .await?;
    row.map(|name| named("plan", &name, Plan::from_name))
        .transpose()
}

/// Locks a workspace's accounts and returns them, where they are open.
pub async fn lock_accounts(tx: &Tx, workspace: Id<Workspace>) -> Result<Option<Accounts>, Error> {
    let rows = tx
        .query_all::<AccountRow>(
            "select id, place, balance from accounts where workspace_id = $1 order by id for update",
            params![workspace],
        )
        .await?;
    let at = |place| rows.iter().find(|row| row.place == place);
    let (Some(balance), Some(held)) = (at(Place::Balance), at(Place::Held)) else {
        return Ok(None);
    };
    Ok(Some(Accounts {
        workspace,
        balance: balance.id,
        held: held.id,
        wallet: Wallet {
            balance: balance.balance,
            held: held.balance,
        },
    }))
}

/// Returns what a workspace has; nothing where it isn't known.
pub async fn wallet(sql: &Sql, workspace: Id<Workspace>) -> Result<Wallet, Error> {
    let rows = sql
        .query_all::<AccountRow>(
            "select id, place, balance from accounts where workspace_id = $1",
            params![workspace],
        )
        .await?;
    let mut wallet = Wallet::default();
    for row in rows {
        match row.place {
            Place::Balance => wallet.balance = row.balance,
            Place::Held => wallet.held = row.balance,
            Place::Cash | Place::Revenue => {}
        }
    }
    Ok(wallet)
}

/// Posts one move: the transfer under its key, the guarded debit, the credit and both entries.
///
/// A key that was posted before is refused by the database ([`Error::is_duplicate`]).
pub async fn post(
    tx: &Tx,
    accounts: &Accounts,
    id: Id<Transfer>,
    change: &Move,
) -> Result<(), Error> {
    let (source, target) = change.kind.route();
    let account = |place| match place {
        Place::Balance => accounts.balance,
        Place::Held => accounts.held,
        Place::Cash | Place::Revenue => system_account(place),
    };
    let (source, target) = (account(source), account(target));
    tx.execute(
        "insert into transfers
         (id, key, kind, amount, source_id, target_id, workspace_id, run_id, note, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
        params![
            id,
            change.key.as_str(),
            change.kind.as_str(),
            change.amount,
            source,
            target,
            accounts.workspace,
            change.run,
            change.note.as_str(),
            tx.now()
        ],
    )
    .await?;
    let debited = tx
        .execute(
            "update accounts set balance = balance - $1
             where id = $2 and (floor is null or balance - $1 >= floor)",
            params![change.amount, source],
        )
        .await?;
    assert_eq!(
        debited, 1,
        "invariant: the domain never takes an account below its floor"
    );
    tx.execute(
        "update accounts set balance = balance + $1 where id = $2",
        params![change.amount, target],
    )
    .await?;
    tx.execute(
        "insert into entries (transfer_id, account_id, amount) values ($1, $2, $3), ($1, $4, $5)",
        params![id, source, -change.amount.micros(), target, change.amount],
    )
    .await
    .map(drop)
}

const HOLD_COLUMNS: &str = "run_id, id, workspace_id, gpu_type, price, amount, cap, held, charged,
    committed_nanos, last_charge, state, expires_at, exhausted, asked_at, revision";

/// Returns the hold of a run.
pub async fn hold(sql: &Sql, run: Id<Run>) -> Result<Option<Hold>, Error> {
    let query = format!("select {HOLD_COLUMNS} from holds where run_id = $1");
    sql.query_optional(&query, params![run]).await
}

/// Returns the holds of a workspace that more credits would serve, oldest first.
pub async fn owing(sql: &Sql, workspace: Id<Workspace>) -> Result<Vec<Hold>, Error> {
    let query = format!(
        "select {HOLD_COLUMNS} from holds
         where workspace_id = $1 and (owed > 0 or exhausted = 'balance') order by id limit $2"
    );
    sql.query_all(&query, params![workspace, OWING_MAX]).await
}

/// Returns the runs whose holds are overdue, the longest first.
pub async fn expiring(sql: &Sql, now: Timestamp) -> Result<Vec<Id<Run>>, Error> {
    sql.query_all(
        "select run_id from holds where expires_at is not null and expires_at <= $1
         order by expires_at limit $2",
        params![now, EXPIRING_MAX],
    )
    .await
}

/// Stores a hold as it is now.
pub async fn save_hold(tx: &Tx, hold: &Hold) -> Result<(), Error> {
    let (state, expires_at) = match hold.state {
        State::Pending { expires_at } => ("pending", Some(expires_at)),
        State::Open => ("open", None),
        State::Released => ("released", None),
        State::Expired => ("expired", None),
        State::Settled => ("settled", None),
    };
    let committed_nanos = i64::try_from(hold.committed.as_nanos()).unwrap_or(i64::MAX);
    tx.execute(
        "insert into holds
         (run_id, id, workspace_id, gpu_type, price, amount, cap, held, charged, owed,
          committed_nanos, last_charge, state, expires_at, exhausted, asked_at, revision,
          created_at, updated_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $18)
         on conflict (run_id) do update set
             amount = excluded.amount, cap = excluded.cap, held = excluded.held,
             charged = excluded.charged, owed = excluded.owed,
             committed_nanos = excluded.committed_nanos, last_charge = excluded.last_charge,
             state = excluded.state, expires_at = excluded.expires_at,
             exhausted = excluded.exhausted, asked_at = excluded.asked_at,
             revision = excluded.revision, updated_at = excluded.updated_at",
        params![
            hold.run,
            hold.id,
            hold.workspace,
            hold.gpu_type.as_str(),
            hold.price,
            hold.amount,
            hold.cap,
            hold.held,
            hold.charged,
            hold.owed(),
            committed_nanos,
            hold.last_charge,
            state,
            expires_at,
            hold.exhausted.map(Shortage::as_str),
            hold.asked_at,
            hold.revision,
            tx.now()
        ],
    )
    .await
    .map(drop)
}

/// Returns one page of a workspace's transfers, newest first, of one run where it is given.
pub async fn lines(
    sql: &Sql,
    workspace: Id<Workspace>,
    run: Option<Id<Run>>,
    before: Option<Id<Transfer>>,
    limit: i64,
) -> Result<Vec<Line>, Error> {
    let before = before.unwrap_or(Id::from_bytes([0xff; 16]));
    let columns = "select id, kind, amount, run_id, note, created_at from transfers";
    let order = "order by id desc limit";
    match run {
        Some(run) => {
            let query =
                format!("{columns} where workspace_id = $1 and id < $2 and run_id = $3 {order} $4");
            sql.query_all(&query, params![workspace, before, run, limit])
                .await
        }
        None => {
            let query = format!("{columns} where workspace_id = $1 and id < $2 {order} $3");
            sql.query_all(&query, params![workspace, before, limit])
                .await
        }
    }
}

/// Returns every price of a device type, or of all, with those that no longer or do not yet hold.
pub async fn prices(
    sql: &Sql,
    gpu_type: Option<&str>,
) -> Result<BTreeMap<String, Vec<Price>>, Error> {
    let columns = "select gpu_type, per_hour, plan, valid_from from prices";
    let order = "order by gpu_type, valid_from limit";
    let rows: Vec<Price> = match gpu_type {
        Some(gpu_type) => {
            let query = format!("{columns} where gpu_type = $1 {order} $2");
            sql.query_all(&query, params![gpu_type, PRICES_MAX]).await?
        }
        None => {
            sql.query_all(&format!("{columns} {order} $1"), params![PRICES_MAX])
                .await?
        }
    };
    let mut by_type = BTreeMap::<String, Vec<Price>>::new();
    for price in rows {
        by_type
            .entry(price.gpu_type.clone())
            .or_default()
            .push(price);
    }
    Ok(by_type)
}

/// Adds a price to a device type's history.
pub async fn add_price(tx: &Tx, price: &Price) -> Result<(), Error> {
    tx.execute(
        "insert into prices (gpu_type, valid_from, per_hour, plan) values ($1, $2, $3, $4)",
        params![
            price.gpu_type.as_str(),
            price.valid_from,
            price.per_hour,
            price.plan.as_str()
        ],
    )
    .await
    .map(drop)
}

/// Returns the sums of the ledger, as they are at one instant.
pub async fn sums(sql: &Sql) -> Result<Sums, Error> {
    sql.query_one(
        "select
             (select cast(coalesce(sum(amount), 0) as bigint) from entries) as entries,
             (select cast(coalesce(sum(balance), 0) as bigint) from accounts) as balances,
             (select count(*) from transfers) as transfers,
             (select cast(coalesce(sum(balance), 0) as bigint) from accounts
              where place = 'revenue') as revenue,
             (select count(*) from holds where state in ('pending', 'open')) as live_holds,
             (select cast(coalesce(sum(balance), 0) as bigint) from accounts
              where place = 'held') as held",
        params![],
    )
    .await
}

/// Returns the accounts whose balance isn't the sum of their entries, or, where it is what is held, of their holds;
/// and those of transfers that don't balance.
pub async fn broken_accounts(sql: &Sql) -> Result<Vec<Id<Account>>, Error> {
    sql.query_all(
        "select id from (
             select a.id as id from accounts a
             left join (select account_id, sum(amount) as total from entries group by account_id) e
                 on e.account_id = a.id
             where a.balance <> coalesce(e.total, 0)
             union
             select a.id as id from accounts a
             left join (select workspace_id, sum(held) as total from holds group by workspace_id) h
                 on h.workspace_id = a.workspace_id
             where a.place = 'held' and a.balance <> coalesce(h.total, 0)
             union
             select t.source_id as id from transfers t
             left join (select transfer_id, count(*) as sides, sum(amount) as total
                        from entries group by transfer_id) s
                 on s.transfer_id = t.id
             where coalesce(s.sides, 0) <> 2 or coalesce(s.total, 1) <> 0
         ) as broken order by id limit $1",
        params![BROKEN_MAX],
    )
    .await
}

struct AccountRow {
    id: Id<Account>,
    place: Place,
    balance: Amount,
}

impl FromRow for AccountRow {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            place: named("place", &row.get::<String>("place")?, Place::from_name)?,
            balance: row.get("balance")?,
        })
    }
}

impl FromRow for Hold {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let state: String = row.get("state")?;
        let state = match (state.as_str(), row.get("expires_at")?) {
            ("pending", Some(expires_at)) => State::Pending { expires_at },
            ("open", _) => State::Open,
            ("released", _) => State::Released,
            ("expired", _) => State::Expired,
            ("settled", _) => State::Settled,
            _ => return Err(unknown("state", &state)),
        };
        let exhausted = row.get::<Option<String>>("exhausted")?;
        Ok(Self {
            id: row.get("id")?,
            run: row.get("run_id")?,
            workspace: row.get("workspace_id")?,
            gpu_type: row.get("gpu_type")?,
            price: row.get("price")?,
            amount: row.get("amount")?,
            cap: row.get("cap")?,
            held: row.get("held")?,
            charged: row.get("charged")?,
            committed: Duration::from_nanos(row.count("committed_nanos")?),
            last_charge: row.get("last_charge")?,
            state,
            exhausted: exhausted
                .map(|name| named("exhausted", &name, Shortage::from_name))
                .transpose()?,
            asked_at: row.get("asked_at")?,
            revision: row.get("revision")?,
        })
    }
}

impl FromRow for Line {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            kind: named("kind", &row.get::<String>("kind")?, MoveKind::from_name)?,
            amount: row.get("amount")?,
            run: row.get("run_id")?,
            note: row.get("note")?,
            at: row.get("created_at")?,
        })
    }
}

impl FromRow for Price {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            gpu_type: row.get("gpu_type")?,
            per_hour: row.get("per_hour")?,
            plan: named("plan", &row.get::<String>("plan")?, Plan::from_name)?,
            valid_from: row.get("valid_from")?,
        })
    }
}

impl FromRow for Sums {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            entries: row.get("entries")?,
            balances: row.get("balances")?,
            transfers: row.get("transfers")?,
            revenue: row.get("revenue")?,
            live_holds: row.get("live_holds")?,
            held: row.get("held")?,
        })
    }
}

fn named<T>(column: &str, name: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, Error> {
    read(name).ok_or_else(|| unknown(column, name))
}

fn unknown(column: &str, name: &str) -> Error {
    Error::Column {
        column: column.to_owned(),
        problem: format!("'{name}' is unknown"),
    }
}

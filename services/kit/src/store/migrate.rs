//! Migrations: numbered, forward only, run under a lock, and never on a newer schema.

use std::collections::BTreeMap;

use super::{Engine, Error, FromRow, Isolation, Row, Store, Tx};
use crate::params;

/// One step of a schema.
///
/// The text is lower-case SQL with the types `bytea`, `bigint`, `text`, `boolean` and
/// `double precision`, which both databases take; `{{autoincrement}}` stands for the type of a
/// primary key that counts by itself. Expand first, contract in a later step.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    number: u32,
    name: &'static str,
    sql: &'static str,
}

impl Migration {
    /// Returns a step: `Migration::new(1, "runs", include_str!("migrations/0001_runs.sql"))`.
    pub const fn new(number: u32, name: &'static str, sql: &'static str) -> Self {
        Self { number, name, sql }
    }
}

const KIT: &str = "kit";

const KIT_MIGRATIONS: &[Migration] = &[Migration::new(
    1,
    "outbox, inbox, idempotency",
    include_str!("migrations/0001_kit.sql"),
)];

const HISTORY: &str = "create table if not exists migrations (
    owner text not null,
    number bigint not null,
    name text not null,
    digest bytea not null,
    applied_at bigint not null,
    primary key (owner, number)
)";

struct Applied {
    owner: String,
    number: i64,
    digest: Vec<u8>,
}

impl FromRow for Applied {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            owner: row.get("owner")?,
            number: row.get("number")?,
            digest: row.get("digest")?,
        })
    }
}

pub(super) async fn run(store: &Store, migrations: &[Migration]) -> Result<(), Error> {
    for (place, migration) in migrations.iter().enumerate() {
        assert_eq!(
            migration.number as usize,
            place + 1,
            "invariant: migrations are numbered 1, 2, 3 without a gap"
        );
    }
    // One transaction for all: SQLite's writer and PostgreSQL's advisory lock let one process
    // migrate while the others wait, and a failed step leaves no half schema. A serializable
    // snapshot would be taken before the lock is got and miss what its last holder did.
    store
        .write_with(Isolation::ReadCommitted, |tx| async move {
            if tx.engine() == Engine::Postgres {
                let lock = super::lock::number(&format!("fovea/{}/migrations", tx.service()));
                tx.query_one::<()>("select pg_advisory_xact_lock($1)", params![lock])
                    .await?;
                let schema = tx.service();
                tx.execute_script(&format!("create schema if not exists \"{schema}\""))
                    .await?;
            }
            tx.execute_script(HISTORY).await?;
            let history = "select owner, number, digest from migrations order by owner, number";
            let applied = tx.query_all::<Applied>(history, params![]).await?;
            let owner = format!("service {}", tx.service());
            bring_up(&tx, KIT, KIT_MIGRATIONS, &applied).await?;
            bring_up(&tx, &owner, migrations, &applied).await
        })
        .await
}

async fn bring_up(
    tx: &Tx,
    owner: &str,
    migrations: &[Migration],
    applied: &[Applied],
) -> Result<(), Error> {
    let applied: BTreeMap<i64, &[u8]> = applied
        .iter()
        .filter(|step| step.owner == owner)
        .map(|step| (step.number, step.digest.as_slice()))
        .collect();
    let known = migrations.len() as i64;
    if let Some((found, _)) = applied.last_key_value()
        && *found > known
    {
        return Err(Error::NewerSchema {
            service: tx.service().to_owned(),
            owner: owner.to_owned(),
            found: *found,
            known,
        });
    }
    for migration in migrations {
        let number = i64::from(migration.number);
        let digest = blake3::hash(migration.sql.as_bytes());
        match applied.get(&number) {
            Some(before) if *before == digest.as_bytes() => {}
            Some(_) => {
                return Err(Error::ChangedMigration {
                    owner: owner.to_owned(),
                    number,
                });
            }
            None => {
                tx.execute_script(&in_dialect(migration.sql, tx.engine()))
                    .await?;
                tx.execute(
                    "insert into migrations (owner, number, name, digest, applied_at)
                     values ($1, $2, $3, $4, $5)",
                    params![
                        owner,
                        number,
                        migration.name,
                        digest.as_bytes().to_vec(),
                        tx.now()
                    ],
                )
                .await?;
                tracing::info!(owner, number, name = migration.name, "applied a migration");
            }
        }
    }
    Ok(())
}

fn in_dialect(sql: &str, engine: Engine) -> String {
    let autoincrement = match engine {
        Engine::Sqlite => "integer primary key autoincrement",
        Engine::Postgres => "bigint generated always as identity primary key",
    };
    sql.replace("{{autoincrement}}", autoincrement)
}

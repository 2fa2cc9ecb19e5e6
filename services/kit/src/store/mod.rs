//! One service's database: a SQLite file or a PostgreSQL schema, behind the same lower-case SQL.
//!
//! `$1` placeholders work on both. A write is one transaction, retried when the database asks for
//! it; facts told inside it are relayed once it has committed. `for update` at the end of a query
//! is for PostgreSQL and is left out on SQLite, whose only writer excludes all others anyway.

mod error;
mod idempotency;
mod lock;
mod migrate;
mod open;
mod row;
mod sql;

use std::sync::Arc;
use std::time::Duration;

use sea_orm::{
    DatabaseConnection, IsolationLevel, SqliteTransactionMode, TransactionOptions, TransactionTrait,
};
use tokio::sync::Notify;

use crate::config::Fleet;
use crate::time::Clock;

pub use error::Error;
pub use lock::Lock;
pub use migrate::Migration;
pub use row::{FromRow, Row};
pub use sea_orm::Value;
pub use sql::{Sql, Tx};

/// Attempts of a transaction that the database wants repeated.
pub const WRITE_ATTEMPTS_MAX: u32 = 12;
/// The first pause between two attempts; each further one is twice as long, with jitter.
const WRITE_PAUSE: Duration = Duration::from_millis(4);
const WRITE_PAUSE_MAX: Duration = Duration::from_millis(500);
/// How long a call waits for a free connection; on SQLite that is the queue of writers.
pub const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the list of a statement's parameters: `params![id, now, &name]`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::Value::from($value)),*]
    };
}

/// Which database a store is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// One file, one writer.
    Sqlite,
    /// One schema.
    Postgres,
}

/// How careful a transaction is about what others write meanwhile. SQLite is always serializable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// As if alone: right for "read, decide, write". May be repeated.
    Serializable,
    /// Sees what others commit: right where guarded updates and `for update` do the deciding.
    ReadCommitted,
}

/// One service's database. Clones share it.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    service: String,
    engine: Engine,
    writer: DatabaseConnection,
    reader: Sql,
    clock: Clock,
    told: Notify,
}

impl Store {
    /// Opens the service's database and brings its schema up to date.
    pub async fn open(
        fleet: &Fleet,
        service: &str,
        clock: Clock,
        migrations: &[Migration],
    ) -> Result<Self, Error> {
        let url = fleet.database_url.expose().as_str();
        let (engine, writer, reader) = if url == "sqlite" {
            let (writer, reader) = open::sqlite(fleet, service).await?;
            (Engine::Sqlite, writer, reader)
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let pool = open::postgres(fleet, service, url).await?;
            (Engine::Postgres, pool.clone(), pool)
        } else {
            return Err(Error::UnknownDatabase);
        };
        let reader = Sql::pool(engine, reader);
        let service = service.to_owned();
        let told = Notify::new();
        let store = Self(Arc::new(Inner {
            service,
            engine,
            writer,
            reader,
            clock,
            told,
        }));
        migrate::run(&store, migrations).await?;
        Ok(store)
    }

    /// Returns the service whose database this is.
    pub fn service(&self) -> &str {
        &self.0.service
    }

    /// Returns which database it is in.
    pub fn engine(&self) -> Engine {
        self.0.engine
    }

    /// Returns the clock that dates what the store writes itself.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns the connection for reading: each statement sees what is committed.
    pub fn read(&self) -> &Sql {
        &self.0.reader
    }

    /// Runs `work` in one serializable transaction and commits what it did unless it fails.
    ///
    /// `work` runs again, up to [`WRITE_ATTEMPTS_MAX`] times, when the database reports a
    /// conflict; so it borrows what it needs and has no other effect than through `tx`. A write
    /// inside a write waits for itself: pass the `tx` down instead.
    ///
    /// ```no_run
    /// # async fn example(store: &kit::store::Store, name: &str) -> Result<u64, kit::store::Error> {
    /// store
    ///     .write(|tx| async move {
    ///         tx.execute("delete from projects where name = $1", kit::params![name]).await
    ///     })
    ///     .await
    /// # }
    /// ```
    pub async fn write<T, E, F, Fut>(&self, work: F) -> Result<T, E>
    where
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.write_with(Isolation::Serializable, work).await
    }

    /// Runs `work` in one transaction of this isolation.
    pub async fn write_with<T, E, F, Fut>(&self, isolation: Isolation, mut work: F) -> Result<T, E>
    where
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let mut attempt = 1;
        loop {
            let (error, is_conflict) = match self.attempt(isolation, &mut work).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            if !is_conflict || attempt == WRITE_ATTEMPTS_MAX {
                return Err(error);
            }
            tracing::debug!(attempt, service = self.service(), "repeats a transaction");
            pause(attempt).await;
            attempt += 1;
        }
    }

    /// Runs `work` once; a failure says whether the database wants it repeated.
    async fn attempt<T, E, F, Fut>(
        &self,
        isolation: Isolation,
        work: &mut F,
    ) -> Result<T, (E, bool)>
    where
        F: FnMut(Tx) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let failed = |error: Error| {
            let is_conflict = error.is_conflict();
            (E::from(error), is_conflict)
        };
        let tx = self.begin(isolation).await.map_err(failed)?;
        match work(tx.clone()).await {
            Ok(value) => self.commit(tx).await.map(|()| value).map_err(failed),
            Err(error) => {
                // The error is the caller's own: what the database said about it, `tx` noted.
                let is_conflict = tx.has_conflict();
                tx.roll_back().await;
                Err((error, is_conflict))
            }
        }
    }

    /// Waits until a transaction that told a fact has committed.
    pub(crate) async fn told(&self) {
        self.0.told.notified().await;
    }

    async fn begin(&self, isolation: Isolation) -> Result<Tx, Error> {
        let options = match (self.0.engine, isolation) {
            (Engine::Sqlite, _) => TransactionOptions {
                // A deferred transaction that reads first can't become a writer later once
                // somebody else wrote.
                sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
                ..TransactionOptions::default()
            },
            (Engine::Postgres, isolation) => TransactionOptions {
                isolation_level: Some(match isolation {
                    Isolation::Serializable => IsolationLevel::Serializable,
                    Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
                }),
                ..TransactionOptions::default()
            },
        };
        let begun = self.0.writer.begin_with_options(options).await;
        let begun = begun.map_err(|source| Error::Database {
            statement: "begin".to_owned(),
            source,
        })?;
        Ok(Tx::new(self, begun))
    }

    async fn commit(&self, tx: Tx) -> Result<(), Error> {
        let has_told = tx.has_told();
        tx.commit().await?;
        if has_told {
            self.0.told.notify_one();
        }
        Ok(())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Store")
            .field("service", &self.0.service)
            .field("engine", &self.0.engine)
            .finish_non_exhaustive()
    }
}

async fn pause(attempt: u32) {
    let longest = (WRITE_PAUSE * 2_u32.saturating_pow(attempt)).min(WRITE_PAUSE_MAX);
    tokio::time::sleep(longest.mul_f64(rand::random_range(0.5..1.0))).await;
}

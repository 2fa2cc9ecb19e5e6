//! One service's database: a SQLite file or a PostgreSQL schema, behind the same lower-case SQL.
//!
//! `$1` placeholders work on both. A write is one transaction, retried when the database asks for
//! it; facts told inside it are relayed once it has committed. `for update` at the end of a query
//! is for PostgreSQL and is left out on SQLite, whose only writer excludes all others anyway.

mod idempotency;
mod lock;
mod migrate;
mod row;
mod sql;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sea_orm::sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use sea_orm::{
    ConnectOptions, Database, DatabaseConnection, DbErr, IsolationLevel, RuntimeErr,
    SqliteTransactionMode, TransactionOptions, TransactionTrait,
};
use tokio::sync::Notify;

use crate::config::Fleet;
use crate::fault::{Fault, Kind};
use crate::time::Clock;

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
/// How long SQLite waits for another process that holds the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest a statement may run on PostgreSQL.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the list of a statement's parameters: `params![id, now, &name]`.
#[macro_export]
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::Value::from($value)),*]
    };
}

/// Why the store could not do it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database said no.
    #[error("{statement}")]
    Database {
        /// The statement, without its values.
        statement: String,
        /// What the database said.
        source: DbErr,
    },
    /// A row that must be there is not.
    #[error("no row: {0}")]
    NoRow(String),
    /// A column holds something else than the code expects.
    #[error("column {column}: {problem}")]
    Column {
        /// The column.
        column: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A fact that can't be written.
    #[error("the fact can't be told")]
    Fact(#[source] crate::bus::Error),
    /// The database was migrated by a newer version of the program.
    #[error(
        "the database of {service} has migration {found} of '{owner}', this program knows \
         {known}: start the newer version, or restore a backup"
    )]
    NewerSchema {
        /// The service.
        service: String,
        /// Whose migrations: the kit's or the service's.
        owner: String,
        /// The highest number in the database.
        found: i64,
        /// The highest number in the program.
        known: i64,
    },
    /// A migration's text is not the one that was applied.
    #[error("migration {number} of '{owner}' was changed after it had been applied")]
    ChangedMigration {
        /// Whose migrations.
        owner: String,
        /// The number.
        number: i64,
    },
    /// The same idempotency key came with another request.
    #[error("idempotency key '{key}' was used for another request")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// An idempotency key that is too long to be one.
    #[error("an idempotency key may have {max} characters, this one has {length}")]
    KeyTooLong {
        /// The limit.
        max: usize,
        /// The length.
        length: usize,
    },
    /// The configured address is of no database we know.
    #[error("fleet.database_url: expected 'sqlite' or 'postgres://…'")]
    UnknownDatabase,
    /// A folder could not be made.
    #[error("{path}: the folder of the database can't be made")]
    Folder {
        /// The folder.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A transaction outlived the closure it was given to.
    #[error("invariant: the transaction was kept beyond its closure")]
    Kept,
}

impl Error {
    /// Tells whether a unique or primary key was there already.
    pub fn is_duplicate(&self) -> bool {
        use sea_orm::SqlErr::UniqueConstraintViolation;
        let Self::Database { source, .. } = self else {
            return false;
        };
        matches!(source.sql_err(), Some(UniqueConstraintViolation(_)))
    }

    /// Tells whether a row that is referred to is missing, or still referred to.
    pub fn is_dangling(&self) -> bool {
        use sea_orm::SqlErr::ForeignKeyConstraintViolation;
        let Self::Database { source, .. } = self else {
            return false;
        };
        matches!(source.sql_err(), Some(ForeignKeyConstraintViolation(_)))
    }

    /// Tells whether the database is away or overloaded, so that trying later makes sense.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database { source, .. } => {
                matches!(source, DbErr::ConnectionAcquire(_) | DbErr::Conn(_))
                    || is_conflict(source)
                    || is_cut_off(source)
            }
            _ => false,
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let (kind, reason) = match &error {
            Error::KeyReused { .. } => (Kind::Conflict, "IDEMPOTENCY_KEY_REUSED"),
            Error::KeyTooLong { .. } => (Kind::Invalid, "IDEMPOTENCY_KEY_TOO_LONG"),
            Error::NewerSchema { .. } => (Kind::Precondition, "SCHEMA_NEWER"),
            Error::ChangedMigration { .. } => (Kind::Precondition, "MIGRATION_CHANGED"),
            Error::UnknownDatabase => (Kind::Invalid, "DATABASE_UNKNOWN"),
            error if error.is_unavailable() => {
                let fault = Fault::new(
                    Kind::Unavailable,
                    "STORE_UNAVAILABLE",
                    "kit",
                    "the store does not answer",
                );
                return fault
                    .caused_by(error_source(error))
                    .retry_after(Duration::from_secs(1));
            }
            _ => return Fault::internal(error),
        };
        Fault::new(kind, reason, "kit", message).caused_by(error)
    }
}

fn error_source(error: &Error) -> String {
    match error {
        Error::Database { statement, source } => format!("{statement}: {source}"),
        error => error.to_string(),
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
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
            let (writer, reader) = open_sqlite(fleet, service).await?;
            (Engine::Sqlite, writer, reader)
        } else if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let pool = open_postgres(fleet, service, url).await?;
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
            let tx = match self.begin(isolation).await {
                Ok(tx) => tx,
                Err(error) if self.may_repeat(&error, attempt) => {
                    pause(attempt).await;
                    attempt += 1;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let outcome = work(tx.clone()).await;
            let conflict = tx.has_conflict();
            let finished = match outcome {
                Ok(value) => match self.commit(tx).await {
                    Ok(()) => return Ok(value),
                    Err(error) => Err((
                        matches!(&error, Error::Database { source, .. }
                        if is_conflict(source)),
                        E::from(error),
                    )),
                },
                Err(error) => {
                    tx.roll_back().await;
                    Err((conflict, error))
                }
            };
            match finished {
                Ok(()) => unreachable!("invariant: a finished transaction has returned"),
                Err((true, _)) if attempt < WRITE_ATTEMPTS_MAX => {
                    tracing::debug!(attempt, service = self.service(), "repeats a transaction");
                    pause(attempt).await;
                    attempt += 1;
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// Waits until a transaction that told a fact has committed.
    pub(crate) async fn told(&self) {
        self.0.told.notified().await;
    }

    fn may_repeat(&self, error: &Error, attempt: u32) -> bool {
        let Error::Database { source, .. } = error else {
            return false;
        };
        is_conflict(source) && attempt < WRITE_ATTEMPTS_MAX
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

async fn open_sqlite(
    fleet: &Fleet,
    service: &str,
) -> Result<(DatabaseConnection, DatabaseConnection), Error> {
    std::fs::create_dir_all(&fleet.data).map_err(|source| Error::Folder {
        path: fleet.data.display().to_string(),
        source,
    })?;
    let file = fleet.data.join(format!("{service}.db"));
    let writer = sqlite_pool(&file, 1, false).await?;
    let reader = sqlite_pool(&file, fleet.database_connections.max(1), true).await?;
    Ok((writer, reader))
}

async fn sqlite_pool(
    file: &Path,
    connections: u32,
    is_reader: bool,
) -> Result<DatabaseConnection, Error> {
    let file = file.to_owned();
    let mut options = ConnectOptions::new("sqlite::memory:");
    options
        .max_connections(connections)
        .min_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .sqlx_logging(false)
        .record_stmt_in_spans(false)
        .map_sqlx_sqlite_opts({
            let file = file.clone();
            move |options| {
                let options = options
                    .filename(&file)
                    .in_memory(false)
                    .shared_cache(false)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .foreign_keys(true)
                    .busy_timeout(BUSY_TIMEOUT);
                if is_reader {
                    options.pragma("query_only", "on")
                } else {
                    options
                }
            }
        });
    connect(options, &format!("open {}", file.display())).await
}

async fn open_postgres(
    fleet: &Fleet,
    service: &str,
    url: &str,
) -> Result<DatabaseConnection, Error> {
    let mut options = ConnectOptions::new(url.replacen("postgresql://", "postgres://", 1));
    options
        .max_connections(fleet.database_connections.max(2))
        .min_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .statement_timeout(STATEMENT_TIMEOUT)
        .set_application_name(format!("fovea-{service}"))
        .set_schema_search_path(service)
        .sqlx_logging(false)
        .record_stmt_in_spans(false);
    connect(options, "connect to PostgreSQL").await
}

async fn connect(options: ConnectOptions, what: &str) -> Result<DatabaseConnection, Error> {
    Database::connect(options)
        .await
        .map_err(|source| Error::Database {
            statement: what.to_owned(),
            source,
        })
}

/// SQLSTATE 40001 and 40P01 on PostgreSQL; SQLITE_BUSY and SQLITE_LOCKED with all their variants.
pub(crate) fn is_conflict(error: &DbErr) -> bool {
    let Some(code) = database_code(error) else {
        return false;
    };
    match code.parse::<i32>() {
        Ok(number) if code.len() < 5 => matches!(number & 0xff, 5 | 6),
        _ => matches!(code.as_str(), "40001" | "40P01"),
    }
}

/// The connection broke, or the server is starting or stopping.
fn is_cut_off(error: &DbErr) -> bool {
    use sea_orm::sqlx::Error as Sqlx;
    let (DbErr::Exec(RuntimeErr::SqlxError(cause)) | DbErr::Query(RuntimeErr::SqlxError(cause))) =
        error
    else {
        return false;
    };
    match &**cause {
        Sqlx::Io(_) | Sqlx::PoolTimedOut | Sqlx::PoolClosed | Sqlx::Tls(_) => true,
        Sqlx::Database(cause) => cause.code().is_some_and(|code| {
            code.len() == 5 && (code.starts_with("57P") || code.starts_with("08"))
        }),
        _ => false,
    }
}

fn database_code(error: &DbErr) -> Option<String> {
    use sea_orm::sqlx::Error as Sqlx;
    let (DbErr::Exec(RuntimeErr::SqlxError(cause))
    | DbErr::Query(RuntimeErr::SqlxError(cause))
    | DbErr::Conn(RuntimeErr::SqlxError(cause))) = error
    else {
        return None;
    };
    match &**cause {
        Sqlx::Database(cause) => cause.code().map(|code| code.into_owned()),
        _ => None,
    }
}

//! Connections, and what makes them safe: one durable writer on SQLite, one schema on PostgreSQL.

use std::path::Path;
use std::time::Duration;

use sea_orm::sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};

use super::{ACQUIRE_TIMEOUT, Error};
use crate::config::Fleet;

/// How long SQLite waits for another process that holds the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest a statement may run on PostgreSQL.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn sqlite(
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

pub(super) async fn postgres(
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

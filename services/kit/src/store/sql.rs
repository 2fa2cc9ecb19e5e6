//! Statements and transactions.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult,
    Statement, Value,
};

use super::{Engine, Error, FromRow, Row, Store};
use crate::time::Timestamp;

/// Runs statements: a pool for reading, or a transaction (a [`Tx`] is one of these too).
pub struct Sql {
    engine: Engine,
    connection: Connection,
    conflict: AtomicBool,
}

enum Connection {
    Pool(DatabaseConnection),
    Transaction(DatabaseTransaction),
}

impl Sql {
    pub(super) fn pool(engine: Engine, pool: DatabaseConnection) -> Self {
        let connection = Connection::Pool(pool);
        Self {
            engine,
            connection,
            conflict: AtomicBool::new(false),
        }
    }

    /// Returns which database runs the statements.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Runs a statement and returns how many rows it changed.
    pub async fn execute(&self, sql: &str, params: Vec<Value>) -> Result<u64, Error> {
        let statement = self.statement(sql, params);
        let outcome = match &self.connection {
            Connection::Pool(pool) => pool.execute_raw(statement).await,
            Connection::Transaction(tx) => tx.execute_raw(statement).await,
        };
        outcome
            .map(|done| done.rows_affected())
            .map_err(|source| self.failed(sql, source))
    }

    /// Runs a script of several statements without parameters.
    pub async fn execute_script(&self, sql: &str) -> Result<(), Error> {
        let outcome = match &self.connection {
            Connection::Pool(pool) => pool.execute_unprepared(sql).await,
            Connection::Transaction(tx) => tx.execute_unprepared(sql).await,
        };
        outcome.map(drop).map_err(|source| self.failed(sql, source))
    }

    /// Returns all rows of a query; the query says how many at most.
    pub async fn query_all<T: FromRow>(
        &self,
        sql: &str,
        params: Vec<Value>,
    ) -> Result<Vec<T>, Error> {
        let statement = self.statement(sql, params);
        let rows: Result<Vec<QueryResult>, DbErr> = match &self.connection {
            Connection::Pool(pool) => pool.query_all_raw(statement).await,
            Connection::Transaction(tx) => tx.query_all_raw(statement).await,
        };
        let rows = rows.map_err(|source| self.failed(sql, source))?;
        rows.into_iter().map(|row| T::from_row(&Row(row))).collect()
    }

    /// Returns the first row of a query, if any.
    pub async fn query_optional<T: FromRow>(
        &self,
        sql: &str,
        params: Vec<Value>,
    ) -> Result<Option<T>, Error> {
        let statement = self.statement(sql, params);
        let row = match &self.connection {
            Connection::Pool(pool) => pool.query_one_raw(statement).await,
            Connection::Transaction(tx) => tx.query_one_raw(statement).await,
        };
        let row = row.map_err(|source| self.failed(sql, source))?;
        row.map(|row| T::from_row(&Row(row))).transpose()
    }

    /// Returns the row of a query that must have one, such as a count.
    pub async fn query_one<T: FromRow>(&self, sql: &str, params: Vec<Value>) -> Result<T, Error> {
        self.query_optional(sql, params)
            .await?
            .ok_or_else(|| Error::NoRow(one_line(sql)))
    }

    fn statement(&self, sql: &str, params: Vec<Value>) -> Statement {
        let (backend, sql) = match self.engine {
            Engine::Postgres => (DbBackend::Postgres, sql),
            Engine::Sqlite => (DbBackend::Sqlite, without_row_lock(sql)),
        };
        Statement::from_sql_and_values(backend, sql, params)
    }

    fn failed(&self, sql: &str, source: DbErr) -> Error {
        let error = Error::Database {
            statement: one_line(sql),
            source,
        };
        if error.is_conflict() {
            self.conflict.store(true, Ordering::Relaxed);
        }
        error
    }
}

/// The one writer of SQLite needs no row locks and knows no words for them.
fn without_row_lock(sql: &str) -> &str {
    let text = sql.trim_end();
    let text = text.strip_suffix("skip locked").map_or(text, str::trim_end);
    text.strip_suffix("for update").unwrap_or(sql)
}

fn one_line(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One transaction. A handle: clones are the same transaction, and none may outlive the closure
/// that [`Store::write`] gave it to.
#[derive(Clone)]
pub struct Tx(Arc<Inner>);

struct Inner {
    sql: Sql,
    service: String,
    now: Timestamp,
    told: AtomicBool,
}

impl Tx {
    pub(super) fn new(store: &Store, transaction: DatabaseTransaction) -> Self {
        let connection = Connection::Transaction(transaction);
        Self(Arc::new(Inner {
            sql: Sql {
                engine: store.engine(),
                connection,
                conflict: AtomicBool::new(false),
            },
            service: store.service().to_owned(),
            now: store.clock().now(),
            told: AtomicBool::new(false),
        }))
    }

    /// Returns the instant at which the transaction began: the `now` of all it decides.
    pub fn now(&self) -> Timestamp {
        self.0.now
    }

    /// Returns the service whose database this is.
    pub fn service(&self) -> &str {
        &self.0.service
    }

    pub(crate) fn mark_told(&self) {
        self.0.told.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed)
    }

    /// Asks [`Store::write`] to run the transaction again, although no statement failed.
    pub(super) fn mark_conflict(&self) {
        self.0.sql.conflict.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_conflict(&self) -> bool {
        self.0.sql.conflict.load(Ordering::Relaxed)
    }

    pub(super) async fn commit(self) -> Result<(), Error> {
        let inner = Arc::into_inner(self.0).ok_or(Error::Kept)?;
        match inner.sql.connection {
            Connection::Transaction(tx) => tx.commit().await,
            Connection::Pool(_) => unreachable!("invariant: a Tx holds a transaction"),
        }
        .map_err(|source| Error::Database {
            statement: "commit".to_owned(),
            source,
        })
    }

    pub(super) async fn roll_back(self) {
        let Some(inner) = Arc::into_inner(self.0) else {
            return;
        };
        if let Connection::Transaction(tx) = inner.sql.connection
            && let Err(error) = tx.rollback().await
        {
            // The connection is gone and the transaction with it: nothing is left to undo.
            tracing::debug!(%error, "a rollback found no transaction");
        }
    }
}

impl Deref for Tx {
    type Target = Sql;

    fn deref(&self) -> &Sql {
        &self.0.sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_is_spared_row_locks() {
        assert_eq!(without_row_lock("select 1 for update"), "select 1 ");
        assert_eq!(
            without_row_lock("select 1\nfor update skip locked\n"),
            "select 1\n"
        );
        assert_eq!(without_row_lock("select 1"), "select 1");
    }
}

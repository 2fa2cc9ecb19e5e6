//! Locks among the processes of one service.

use sea_orm::ConnectionTrait;
use sea_orm::{DatabaseTransaction, DbBackend, Statement, TransactionTrait};

use super::{Engine, Error, Store};

/// Holds a name among all processes of a service; given up when dropped.
pub struct Lock {
    _transaction: Option<DatabaseTransaction>,
}

impl Store {
    /// Takes the lock of this name unless another process holds it; for work that one process
    /// of the service should do at a time, such as the relay or a sweep.
    ///
    /// On SQLite there is one process, and the lock is always free. On PostgreSQL the lock lives
    /// in a transaction of its own and occupies a connection.
    pub async fn try_lock(&self, name: &str) -> Result<Option<Lock>, Error> {
        if self.engine() == Engine::Sqlite {
            return Ok(Some(Lock { _transaction: None }));
        }
        let statement = "select pg_try_advisory_xact_lock($1)";
        let failed = |source| Error::Database {
            statement: statement.to_owned(),
            source,
        };
        let key = number(&format!("fovea/{}/{name}", self.service()));
        let transaction = self.0.writer.begin().await.map_err(failed)?;
        let row = transaction
            .query_one_raw(Statement::from_sql_and_values(
                DbBackend::Postgres,
                statement,
                [key.into()],
            ))
            .await
            .map_err(failed)?;
        let is_ours = match row {
            Some(row) => row.try_get_by_index::<bool>(0).map_err(failed)?,
            None => false,
        };
        Ok(is_ours.then_some(Lock {
            _transaction: Some(transaction),
        }))
    }
}

/// Returns the number that stands for a name in PostgreSQL's advisory locks.
pub(super) fn number(name: &str) -> i64 {
    let hash = blake3::hash(name.as_bytes());
    let (first, _) = hash
        .as_bytes()
        .split_first_chunk::<8>()
        .expect("invariant: 32 bytes");
    i64::from_be_bytes(*first)
}

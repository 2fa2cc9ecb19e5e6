//! Every way the store says no, and which of them pass by themselves.

use std::time::Duration;

use sea_orm::sqlx::Error as Sqlx;
use sea_orm::{DbErr, RuntimeErr};

use crate::fault::{Fault, Kind};

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

    /// Tells whether the transaction lost against another and should run again.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Database { source, .. } if is_conflict(source))
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

/// SQLSTATE 40001 and 40P01 on PostgreSQL; SQLITE_BUSY and SQLITE_LOCKED with all their variants.
pub(super) fn is_conflict(error: &DbErr) -> bool {
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

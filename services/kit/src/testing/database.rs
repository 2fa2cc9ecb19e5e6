//! Databases of a test's own.

use sea_orm::{ConnectionTrait, Database};
use tempfile::TempDir;

use crate::config::{Fleet, Secret, environment};
use crate::store::{Engine, Migration, Store};
use crate::time::Clock;

const POSTGRES_VARIABLE: &str = "FOVEA_TEST_POSTGRES";
const POSTGRES_DEFAULTS: [&str; 3] = [
    "postgres://postgres@127.0.0.1:5432/postgres",
    "postgres://root@127.0.0.1:5432/postgres",
    "postgres://root@localhost:5432/postgres?host=/var/run/postgresql",
];
const REDIS_VARIABLE: &str = "FOVEA_TEST_REDIS";
const REDIS_DEFAULT: &str = "redis://127.0.0.1:6379";

/// A database that is the test's own and goes with it.
pub struct TestDatabase {
    engine: Engine,
    fleet: Fleet,
    _folder: TempDir,
    created: Option<Created>,
}

struct Created {
    server: String,
    name: String,
}

impl TestDatabase {
    /// Returns a database on SQLite, and one on PostgreSQL where a server answers.
    pub async fn all() -> Vec<Self> {
        let mut all = vec![Self::sqlite()];
        all.extend(Self::postgres().await);
        all
    }

    /// Returns files in a folder of their own.
    pub fn sqlite() -> Self {
        super::log();
        let folder = tempfile::tempdir().expect("a folder for the test's databases");
        let fleet = Fleet::default().in_folder(folder.path());
        Self {
            engine: Engine::Sqlite,
            fleet,
            _folder: folder,
            created: None,
        }
    }

    /// Returns a new database on the server of `FOVEA_TEST_POSTGRES`, by default on loopback.
    pub async fn postgres() -> Option<Self> {
        super::log();
        let servers = match environment(POSTGRES_VARIABLE) {
            Some(server) => vec![server],
            None => POSTGRES_DEFAULTS.map(str::to_owned).to_vec(),
        };
        for server in servers {
            let Ok(admin) = Database::connect(&server).await else {
                continue;
            };
            let name = format!("fovea_test_{:016x}", rand::random::<u64>());
            admin
                .execute_unprepared(&format!("create database {name}"))
                .await
                .unwrap_or_else(|error| panic!("{server}: can't make {name}: {error}"));
            let _ = admin.close().await;
            let folder = tempfile::tempdir().expect("a folder for the test");
            let mut fleet = Fleet::default().in_folder(folder.path());
            fleet.database_url = Secret::new(with_database(&server, &name));
            let created = Some(Created { server, name });
            return Some(Self {
                engine: Engine::Postgres,
                fleet,
                _folder: folder,
                created,
            });
        }
        eprintln!("skipped: no PostgreSQL answers; set {POSTGRES_VARIABLE} to test with one");
        None
    }

    /// Returns which engine it is.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns what `fleet.database_url` must be.
    pub fn url(&self) -> &str {
        self.fleet.database_url.expose()
    }

    /// Opens a service's store in it; every call is one more process, as far as the store knows.
    pub async fn open(&self, service: &str, clock: Clock, migrations: &[Migration]) -> Store {
        self.try_open(service, clock, migrations)
            .await
            .unwrap_or_else(|error| panic!("{error:?}"))
    }

    /// Opens a service's store in it, where that may fail.
    pub async fn try_open(
        &self,
        service: &str,
        clock: Clock,
        migrations: &[Migration],
    ) -> Result<Store, crate::store::Error> {
        Store::open(&self.fleet, service, clock, migrations).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let Some(Created { server, name }) = self.created.take() else {
            return;
        };
        // A test ends inside a runtime, where nothing may block: another thread has its own.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                if let Ok(admin) = Database::connect(&server).await {
                    let sql = format!("drop database if exists {name} with (force)");
                    let _ = admin.execute_unprepared(&sql).await;
                }
            });
        });
        let _ = dropping.join();
    }
}

/// Returns the address of a Redis where one answers: `FOVEA_TEST_REDIS`, by default on loopback.
pub async fn redis() -> Option<String> {
    let url = environment(REDIS_VARIABLE).unwrap_or_else(|| REDIS_DEFAULT.to_owned());
    let answers = async {
        let client = redis::Client::open(url.as_str()).ok()?;
        let mut connection = client.get_multiplexed_async_connection().await.ok()?;
        redis::cmd("PING")
            .query_async::<String>(&mut connection)
            .await
            .ok()
    };
    if answers.await.is_some() {
        return Some(url);
    }
    eprintln!("skipped: no Redis answers at {url}; set {REDIS_VARIABLE} to test with one");
    None
}

/// Puts another database's name into the address of a server.
fn with_database(server: &str, name: &str) -> String {
    let (address, query) = server.split_once('?').map_or((server, ""), |(a, q)| (a, q));
    let start = address.find("://").map_or(0, |at| at + 3);
    let host = address[start..]
        .find('/')
        .map_or(address, |slash| &address[..start + slash]);
    let query = if query.is_empty() {
        String::new()
    } else {
        format!("?{query}")
    };
    format!("{host}/{name}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_replaces_the_one_in_the_address() {
        assert_eq!(
            with_database("postgres://a@h:1/postgres", "x"),
            "postgres://a@h:1/x"
        );
        assert_eq!(with_database("postgres://a@h:1", "x"), "postgres://a@h:1/x");
        assert_eq!(
            with_database("postgres://a@h/p?host=/run", "x"),
            "postgres://a@h/x?host=/run"
        );
    }
}

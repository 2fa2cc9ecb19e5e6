//! Real servers for tests: NATS, SQLite, PostgreSQL and Redis, each with what is a test's own.
//!
//! What needs a server that isn't there says *skipped*, aloud. Nothing here sleeps for a fixed
//! time: tests wait for what they want, with a deadline.

mod database;
mod fleet;
mod nats;

use std::time::Duration;

use crate::config::environment;

pub use database::{TestDatabase, redis};
pub use fleet::{TestFleet, free_port};
pub use nats::TestNats;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

/// Asks again and again until there is an answer, and returns it.
///
/// # Panics
/// When there is none within [`PATIENCE`].
pub async fn wait_for<T, F, Fut>(what: &str, mut ask: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Option<T>>,
{
    let asking = async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL).await;
        }
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited {PATIENCE:?} in vain: {what}"),
    }
}

/// Writes log lines of the test where `FOVEA_TEST_LOG` is set to a filter, such as `debug`.
pub fn log() {
    if let Some(filter) = environment("FOVEA_TEST_LOG") {
        // A second test of the same process finds it done.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_test_writer()
            .try_init();
    }
}

//! What time does: minutes of use are written, ended sessions and unused tokens go.

use std::collections::HashMap;
use std::sync::Mutex;

use kit::id::{Id, Key as KeyId};
use kit::service::Context;
use kit::time::Timestamp;

use crate::commands::Accounts;
use crate::domain::{Key, minute_of};
use crate::error::Error;
use crate::store;

/// Keys whose use is remembered between two writes; the use of further ones is noted the next time.
const PENDING_MAX: usize = 100_000;
/// Keys that one transaction writes.
const BATCH: usize = 500;

/// When keys were last used, to the minute, as far as it isn't written yet.
#[derive(Debug, Default)]
pub struct LastUsed(Mutex<HashMap<Id<KeyId>, Timestamp>>);

impl LastUsed {
    /// Notes that a key is used now; nothing where its minute is known.
    pub fn note(&self, key: &Key, now: Timestamp) {
        let minute = minute_of(now);
        if key.last_used_at.is_some_and(|known| known >= minute) {
            return;
        }
        let mut pending = self.lock();
        if pending.len() < PENDING_MAX || pending.contains_key(&key.id) {
            let known = pending.entry(key.id).or_insert(minute);
            *known = minute.max(*known);
        }
    }

    fn take(&self) -> Vec<(Id<KeyId>, Timestamp)> {
        self.lock().drain().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Id<KeyId>, Timestamp>> {
        self.0
            .lock()
            .expect("invariant: nobody panics while noting a minute")
    }
}

/// Writes the minutes of use until told to stop, and a last time then.
pub async fn write_last_used(accounts: Accounts, context: Context) {
    let every = accounts.config.last_used_every;
    let mut is_stopping = false;
    while !is_stopping {
        tokio::select! {
            () = context.shutdown().cancelled() => is_stopping = true,
            () = context.clock().sleep(every) => {}
        }
        if let Err(error) = write_pending(&accounts).await {
            let error = kit::Fault::from(error).chain();
            tracing::warn!(error, "could not write when keys were last used");
        }
    }
}

async fn write_pending(accounts: &Accounts) -> Result<(), Error> {
    let mut pending = accounts.last_used.take();
    // In order, so that two processes never wait for each other in a circle.
    pending.sort_unstable();
    for batch in pending.chunks(BATCH) {
        accounts
            .store
            .write(|tx| async move {
                for (key, minute) in batch {
                    store::note_last_used(&tx, *key, *minute).await?;
                }
                Ok::<_, Error>(())
            })
            .await?;
    }
    Ok(())
}

/// Removes ended sessions and unused tokens until told to stop.
pub async fn sweep(accounts: Accounts, context: Context) {
    let every = accounts.config.sweep_every;
    loop {
        let swept = accounts
            .store
            .write(|tx| async move { Ok::<_, Error>(store::sweep(&tx).await?) })
            .await;
        match swept {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "removed ended sessions and unused tokens"),
            Err(error) => {
                let error = kit::Fault::from(error).chain();
                tracing::warn!(error, "could not remove ended sessions, will try again");
            }
        }
        tokio::select! {
            () = context.shutdown().cancelled() => return,
            () = context.clock().sleep(every) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kit::auth::Role;

    use super::*;

    #[test]
    fn a_key_is_noted_once_a_minute() {
        let noon = Timestamp::from_seconds(43_200);
        let mut key = Key {
            id: Id::from_bytes([1; 16]),
            workspace: Id::from_bytes([2; 16]),
            user: Id::from_bytes([3; 16]),
            name: "K".into(),
            role: Role::Viewer,
            hint: "fv_abcd".into(),
            created_at: noon,
            revoked_at: None,
            last_used_at: None,
        };
        let last_used = LastUsed::default();
        last_used.note(&key, noon + Duration::from_secs(59));
        last_used.note(&key, noon);
        assert_eq!(last_used.take(), [(key.id, noon)]);
        key.last_used_at = Some(noon);
        last_used.note(&key, noon + Duration::from_secs(30));
        assert!(last_used.take().is_empty());
        last_used.note(&key, noon + Duration::from_secs(60));
        assert_eq!(last_used.take().len(), 1);
    }
}

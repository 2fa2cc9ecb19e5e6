//! What time does: leases run out.

use kit::store::Store;
use tokio_util::sync::CancellationToken;

use crate::commands;
use crate::config::Config;
use crate::error::Error;
use crate::{instruments, store};

/// Looks for overdue leases until told to stop.
pub async fn sweep(store: Store, config: Config, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(config.sweep);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Err(error) = look(&store, &config).await {
            let error = kit::fault::chain(&error);
            tracing::warn!(error, "looks for overdue leases again later");
        }
    }
}

async fn look(store: &Store, config: &Config) -> Result<(), Error> {
    for _ in 0..commands::sweep(store, config.lease).await? {
        instruments::requeued();
    }
    let waiting = store::waiting_count(store.read()).await?;
    let here = store::workers_since(store.read(), store.clock().now() - config.lease).await?;
    instruments::present(waiting.max(0).unsigned_abs(), here.len() as u64);
    Ok(())
}

//! What time does: leases run out.

use kit::store::Store;
use tokio_util::sync::CancellationToken;

use crate::commands;
use crate::config::Config;

/// Looks for overdue leases until told to stop.
pub async fn sweep(store: Store, config: Config, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(config.sweep);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Err(error) = commands::sweep(&store, config.lease).await {
            let error = kit::fault::chain(&error);
            tracing::warn!(error, "looks for overdue leases again later");
        }
    }
}

//! What time does: overdue holds are given back, and the whole ledger is summed again and again.

use kit::service::Context;
use opentelemetry::metrics::{Counter, Gauge};

use crate::commands::Billing;
use crate::error::Error;
use crate::store::{self, Sums};

const SWEEP_LOCK: &str = "holds";

/// Gives back overdue holds until told to stop.
pub async fn expire_holds(billing: Billing, context: Context) {
    let every = billing.config.sweep_every;
    loop {
        match sweep(&billing).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "gave back what was held for runs that never came"),
            Err(error) => {
                let error = kit::Fault::from(error).chain();
                tracing::warn!(error, "could not give back overdue holds, will try again");
            }
        }
        tokio::select! {
            () = context.shutdown().cancelled() => return,
            () = context.clock().sleep(every) => {}
        }
    }
}

async fn sweep(billing: &Billing) -> Result<usize, Error> {
    // One process at a time: two would only wait for each other's rows.
    let Some(_lock) = billing.store.try_lock(SWEEP_LOCK).await? else {
        return Ok(0);
    };
    billing.expire_holds().await
}

/// Sums the ledger until told to stop; anything but zero is an error somebody must look into.
pub async fn check_ledger(billing: Billing, context: Context) {
    let instruments = Instruments::new(&context);
    let every = billing.config.check_every;
    let mut charged_before = None;
    loop {
        match check(&billing, &instruments, charged_before).await {
            Ok(sums) => charged_before = Some(sums.revenue),
            Err(error) => {
                let error = kit::Fault::from(error).chain();
                tracing::warn!(error, "could not sum the ledger, will try again");
            }
        }
        tokio::select! {
            () = context.shutdown().cancelled() => return,
            () = context.clock().sleep(every) => {}
        }
    }
}

async fn check(
    billing: &Billing,
    instruments: &Instruments,
    charged_before: Option<i64>,
) -> Result<Sums, Error> {
    let sums = store::sums(billing.store.read()).await?;
    let broken = store::broken_accounts(billing.store.read()).await?;
    let imbalance = imbalance(&sums, broken.len());
    instruments.imbalance.record(imbalance, &[]);
    instruments.live_holds.record(sums.live_holds, &[]);
    instruments.held.record(sums.held, &[]);
    // Counted from the ledger itself, so that a transaction that was repeated isn't counted twice.
    let charged = sums.revenue - charged_before.unwrap_or(sums.revenue);
    instruments
        .charges
        .add(u64::try_from(charged).unwrap_or(0), &[]);
    if imbalance != 0 {
        tracing::error!(
            entry_sum = sums.entries,
            balance_sum = sums.balances,
            broken_accounts = ?broken,
            "the ledger does not balance: stop charging and look into it"
        );
    }
    Ok(sums)
}

/// Returns how far the ledger is from balancing: zero, or something is wrong.
fn imbalance(sums: &Sums, broken_count: usize) -> i64 {
    let broken = i64::try_from(broken_count).unwrap_or(i64::MAX);
    sums.entries
        .saturating_abs()
        .saturating_add(sums.balances.saturating_abs())
        .max(broken)
}

struct Instruments {
    imbalance: Gauge<i64>,
    charges: Counter<u64>,
    live_holds: Gauge<i64>,
    held: Gauge<i64>,
}

impl Instruments {
    fn new(context: &Context) -> Self {
        let meter = context.meter("billing");
        Self {
            imbalance: meter
                .i64_gauge("fovea.billing.ledger.imbalance")
                .with_unit("{micro_credit}")
                .with_description("how far the ledger is from balancing; 0 or something is wrong")
                .build(),
            charges: meter
                .u64_counter("fovea.billing.charges")
                .with_unit("{micro_credit}")
                .with_description("what runs were charged since the process began")
                .build(),
            live_holds: meter
                .i64_gauge("fovea.billing.holds")
                .with_unit("{hold}")
                .with_description("holds whose runs wait or train")
                .build(),
            held: meter
                .i64_gauge("fovea.billing.held")
                .with_unit("{micro_credit}")
                .with_description("what all workspaces have set aside")
                .build(),
        }
    }
}

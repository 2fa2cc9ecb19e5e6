//! `fovea serve`: services in this process.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use anyhow::{Result, bail};
use kit::Clock;
use kit::config::{Config, Problems, SERVICES, Setting};
use kit::fault::Fault;
use kit::service::{Context, Tasks, shutdown_on_signal};
use tokio_util::sync::CancellationToken;

type Serving = Pin<Box<dyn Future<Output = Result<(), Fault>> + Send>>;

/// Runs the named services until the process is asked to stop, or one of them fails.
pub async fn run(config_file: Option<&Path>, services: &[String]) -> Result<()> {
    let names = names(services)?;
    let config = Config::load(config_file)?;
    settings(&config)?;
    let telemetry = kit::telemetry::start(config.fleet(), &names.join("+"))?;
    kit::bus::install_descriptors(proto::pool().clone());
    let shutdown = CancellationToken::new();
    shutdown_on_signal(&shutdown)?;
    let served = serve(&config, &names, &shutdown).await;
    telemetry.stop().await;
    Ok(served?)
}

async fn serve(
    config: &Config,
    names: &[&'static str],
    shutdown: &CancellationToken,
) -> Result<(), Fault> {
    let mut tasks = Tasks::new(shutdown);
    let mut contexts = Vec::with_capacity(names.len());
    for name in names {
        contexts
            .push(Context::start(config.clone(), name, Clock::system(), shutdown.clone()).await?);
    }
    if let Some(first) = contexts.first().cloned() {
        // One process, one set of instruments: they are served where its first service is looked for.
        let name = first.service();
        let address = config.fleet().metrics.get(name);
        let address = address.expect("invariant: every service has an address");
        let health = move || match first.bus().is_connected() {
            true => Ok(()),
            false => Err("NATS is out of reach".to_owned()),
        };
        let stop = shutdown.clone();
        tasks.spawn("metrics", async move {
            kit::telemetry::serve_metrics(name, address, health, stop).await
        });
    }
    for context in contexts {
        tasks.spawn(context.service(), start(context));
    }
    tasks.run().await
}

fn start(context: Context) -> Serving {
    match context.service() {
        gateway::NAME => Box::pin(gateway::serve(context)),
        accounts::NAME => Box::pin(accounts::serve(context)),
        datasets::NAME => Box::pin(datasets::serve(context)),
        projects::NAME => Box::pin(projects::serve(context)),
        billing::NAME => Box::pin(billing::serve(context)),
        scheduler::NAME => Box::pin(scheduler::serve(context)),
        inference::NAME => Box::pin(inference::serve(context)),
        worker::NAME => Box::pin(worker::serve(context)),
        other => unreachable!("invariant: {other} was checked before"),
    }
}

fn names(asked: &[String]) -> Result<Vec<&'static str>> {
    let mut names = Vec::with_capacity(asked.len());
    for name in asked {
        let Some(known) = SERVICES.into_iter().find(|known| known == name) else {
            bail!(
                "there is no service '{name}': there are {}",
                SERVICES.join(", ")
            );
        };
        if names.contains(&known) {
            bail!("'{name}' is named twice");
        }
        names.push(known);
    }
    Ok(names)
}

/// Returns every value of the configuration with its origin; all that is wrong with it at once.
pub fn settings(config: &Config) -> Result<Vec<Setting>, Problems> {
    let mut problems = Problems::default();
    let mut settings = config.fleet_settings();
    macro_rules! section {
        ($($name:ident),*) => {
            $(if let Some(values) = problems.take(config.section::<$name::Config>($name::NAME)) {
                settings.extend(config.settings($name::NAME, &values));
            })*
        };
    }
    section!(
        gateway, accounts, datasets, projects, billing, scheduler, inference, worker
    );
    problems.check()?;
    Ok(settings)
}

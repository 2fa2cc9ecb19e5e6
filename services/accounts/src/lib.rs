//! Accounts: workspaces, their people and keys, and the answer to "who is calling?".
//!
//! `domain` decides who may do what to whom, `secret` makes and reads credentials, `commands` saves what was decided with
//! its facts and its line in the audit log, `tasks` writes when keys were used and removes what has ended. It hears no
//! facts and calls nobody.

mod commands;
mod config;
mod domain;
mod error;
mod grpc;
mod secret;
mod store;
mod tasks;

use kit::Fault;
use kit::fault::Kind;
use kit::service::{Context, Tasks};
use proto::fovea::accounts::v1::account_service_server::AccountServiceServer;
use tonic::service::Routes;

pub use commands::ADMIN_KEY_FILE;
pub use config::Config;
pub use error::Error;

use commands::Accounts;

/// The service's name.
pub const NAME: &str = "accounts";

/// Runs the service until it is told to stop.
pub async fn serve(context: Context) -> Result<(), Fault> {
    kit::bus::install_descriptors(proto::pool().clone());
    let config = context.section::<Config>()?;
    let default_plan = config.default_plan.parse().map_err(|rule: String| {
        let message = format!("accounts.default_plan: {rule}");
        Fault::new(Kind::Invalid, "CONFIGURATION_INVALID", NAME, message)
    })?;
    let store = context.open_store(store::MIGRATIONS).await?;
    let accounts = Accounts::new(store.clone(), config, default_plan);
    accounts.start(&context.fleet().data).await?;

    let mut tasks = Tasks::new(context.shutdown());
    tasks.spawn("relay", {
        let (bus, stop) = (context.bus().clone(), context.shutdown().clone());
        async move {
            kit::bus::relay(bus, store, stop).await;
            Ok(())
        }
    });
    tasks.spawn("last-used", {
        let (accounts, context) = (accounts.clone(), context.clone());
        async move {
            tasks::write_last_used(accounts, context).await;
            Ok(())
        }
    });
    tasks.spawn("sweep", {
        let (accounts, context) = (accounts.clone(), context.clone());
        async move {
            tasks::sweep(accounts, context).await;
            Ok(())
        }
    });
    tasks.spawn("grpc", async move {
        let routes = Routes::new(AccountServiceServer::new(accounts));
        kit::service::serve_grpc(&context, routes, &[proto::DESCRIPTORS]).await
    });
    tasks.run().await
}

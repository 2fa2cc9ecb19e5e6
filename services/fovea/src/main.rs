//! `fovea`: one binary that is a whole fleet, and its command line.

mod cli;
mod client;
mod commands;
mod doctor;
mod engine_bench;
mod engine_cli;
mod failure;
mod output;
mod serve;
mod up;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;

use cli::{Cli, Command, Datasets};
use client::{Credentials, Fleet};
use commands::Session;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let is_json = cli.json;
    // Every TLS user of this process takes the same provider; a second call can only mean it is there.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let outcome = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => Err(error.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error, is_json),
    }
}

async fn run(cli: Cli) -> Result<()> {
    let config_file = cli.config.as_deref();
    match cli.command {
        Command::Up(command) => up::run(config_file, command).await,
        Command::Serve(command) => serve::run(config_file, &command.services).await,
        Command::Login(command) => login(config_file, command).await,
        Command::Datasets(command @ Datasets::Sample { .. }) => {
            engine_cli::sample(command, cli.json).await
        }
        Command::Doctor => doctor::run(config_file, cli.json).await,
        Command::Config => show_config(config_file, cli.json),
        Command::Engine(command) => engine_cli::run(command, cli.json).await,
        fleet => {
            let session = Session {
                fleet: Fleet::open()?,
                is_json: cli.json,
            };
            ask(&session, fleet).await
        }
    }
}

async fn ask(session: &Session, command: Command) -> Result<()> {
    match command {
        Command::Datasets(command) => commands::datasets::run(session, command).await,
        Command::Estimate(command) => commands::training::estimate(session, command).await,
        Command::Train(command) => commands::training::train(session, command).await,
        Command::Runs(command) => commands::runs::run(session, command).await,
        Command::Models(command) => commands::models::run(session, command).await,
        Command::Deploy(command) => commands::endpoints::deploy(session, command).await,
        Command::Predict(command) => commands::endpoints::predict(session, command).await,
        Command::Events(command) => commands::events::run(session, command).await,
        Command::Billing(command) => commands::billing::run(session, command).await,
        Command::Up(_)
        | Command::Serve(_)
        | Command::Login(_)
        | Command::Doctor
        | Command::Config
        | Command::Engine(_) => unreachable!("invariant: these need no fleet"),
    }
}

/// Remembers address and key after trying them.
async fn login(config_file: Option<&Path>, command: cli::Login) -> Result<()> {
    use anyhow::Context as _;

    let key = match command.key {
        Some(key) => key,
        None => {
            let config = kit::config::Config::load(config_file)?;
            let path = config.fleet().data.join("admin.key");
            std::fs::read_to_string(&path)
                .with_context(|| {
                    format!(
                        "no key: give --key, or start a fleet that writes {}",
                        path.display()
                    )
                })?
                .trim()
                .to_owned()
        }
    };
    let credentials = Credentials {
        url: command.url.trim_end_matches('/').to_owned(),
        key,
    };
    let fleet = Fleet::new(credentials.clone())?;
    let request = proto::fovea::accounts::v1::GetSelfRequest {};
    let who = fleet.accounts().get_self(request).await?.into_inner();
    let path = credentials.save()?;
    let workspace = who.workspace.clone().unwrap_or_default();
    output::line(format!(
        "logged in to {} as {} of workspace {} ({})",
        credentials.url,
        who.role()
            .as_str_name()
            .trim_start_matches("ROLE_")
            .to_lowercase(),
        workspace.slug,
        path.display()
    ));
    Ok(())
}

fn show_config(config_file: Option<&Path>, is_json: bool) -> Result<()> {
    let config = kit::config::Config::load(config_file)?;
    let settings = serve::settings(&config)?;
    if is_json {
        output::line(serde_json::to_string_pretty(&settings)?);
        return Ok(());
    }
    let mut table = output::Table::new(["KEY", "VALUE", "FROM"]);
    for setting in settings {
        table.row([setting.key, setting.value, setting.origin]);
    }
    table.print();
    Ok(())
}

//! `fovea events tail`: the facts of the workspace as they happen.

use anyhow::{Result, bail};
use proto::fovea::events::v1::{SubscribeRequest, SubscribeResponse};

use super::Session;
use crate::cli::Events;
use crate::output::{line, remark};

/// Prints facts until it is interrupted or the fleet goes.
pub async fn run(session: &Session, command: Events) -> Result<()> {
    let Events::Tail { types, after } = command;
    let request = SubscribeRequest {
        types,
        after_sequence: after,
    };
    let mut facts = session
        .fleet
        .events()
        .subscribe(request)
        .await?
        .into_inner();
    if !session.is_json {
        remark("facts as they happen; Ctrl-C ends");
    }
    while let Some(fact) = facts.message().await? {
        print(session, &fact)?;
    }
    bail!("the fleet ended the stream; begin again with --after and the last sequence")
}

fn print(session: &Session, fact: &SubscribeResponse) -> Result<()> {
    let event: serde_json::Value = serde_json::from_slice(&fact.event)?;
    if session.is_json {
        line(serde_json::json!({"sequence": fact.sequence, "event": event}).to_string());
        return Ok(());
    }
    line(format!(
        "{:>8}  {}  {}  {}",
        fact.sequence,
        event["time"].as_str().unwrap_or_default(),
        fact.r#type,
        event["data"]
    ));
    Ok(())
}

//! The facts of a caller's workspace, as they come: for gRPC and for server-sent events.

use bytes::Bytes;
use futures::{Stream, StreamExt};
use kit::auth::Caller;
use kit::bus::{Cursor, Followed};
use serde::Deserialize;

use crate::domain;
use crate::error::Error;
use crate::gateway::Shared;

/// Types that one subscription may name.
const TYPES_MAX: usize = 100;

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the facts to come.
    Now,
    /// With the fact that follows this sequence.
    After(u64),
}

/// One fact of a subscription.
#[derive(Debug, Clone)]
pub struct Told {
    /// Its cursor.
    pub sequence: u64,
    /// The message's full name.
    pub name: String,
    /// The id of the thing it is about.
    pub subject: String,
    /// The CloudEvents document, as NATS carries it.
    pub event: Bytes,
}

/// The two attributes of a CloudEvents document that a subscription needs.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "type")]
    name: String,
    subject: String,
}

/// Follows the facts of the caller's own workspace, and of no other; it ends when the gateway stops.
pub fn follow(
    gateway: &Shared,
    caller: &Caller,
    types: Vec<String>,
    start: Start,
) -> Result<impl Stream<Item = Told> + Send + use<>, Error> {
    let types: Vec<String> = types.into_iter().filter(|name| !name.is_empty()).collect();
    if types.len() > TYPES_MAX {
        let rule = format!("names {} types, {TYPES_MAX} are allowed", types.len());
        let fault = kit::Fault::invalid_field("TOO_MANY_TYPES", crate::NAME, "types", rule);
        return Err(fault.into());
    }
    let guard = gateway.open_stream(caller)?;
    let cursor = match start {
        Start::Now => Cursor::Now,
        Start::After(sequence) => Cursor::After(sequence),
    };
    let facts = gateway
        .context
        .bus()
        .follow_facts(Some(caller.workspace()?), cursor);
    let stop = gateway.context.shutdown().clone().cancelled_owned();
    Ok(facts.take_until(stop).filter_map(move |fact| {
        // Held by the stream itself: its place is free again when the reader is gone.
        let _held = &guard;
        let told = read(fact).filter(|told| domain::is_asked_for(&types, &told.name));
        std::future::ready(told)
    }))
}

fn read(fact: Followed) -> Option<Told> {
    match serde_json::from_slice::<Head>(&fact.payload) {
        Ok(head) => Some(Told {
            sequence: fact.sequence,
            name: head.name,
            subject: head.subject,
            event: fact.payload,
        }),
        Err(error) => {
            tracing::warn!(%error, subject = fact.subject, "left out a fact that is no CloudEvent");
            None
        }
    }
}

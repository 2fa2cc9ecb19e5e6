//! The outbox: facts are told in the transaction that makes them true, and relayed in order.

use std::collections::{HashSet, VecDeque};
use std::future::IntoFuture;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::connection::ACK_TIMEOUT;
use super::envelope::CONTENT_TYPE;
use super::{Bus, Envelope, Error, FACTS_KEPT_FOR, Fact, subject};
use crate::id::{Event, Id, Workspace};
use crate::params;
use crate::store::{self, FromRow, Isolation, Row, Store, Tx};
use crate::telemetry;
use crate::time::Timestamp;

/// Facts that are read from the outbox at a time.
const BATCH_MAX: i64 = 256;
/// How often the relay looks without having been woken: for facts of other processes.
const POLL: Duration = Duration::from_secs(1);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(500);
/// How often rows that nobody needs any more are removed.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// How long rows outlive the stream.
const PRUNE_SLACK: Duration = Duration::from_secs(24 * 3600);
const RELAY_LOCK: &str = "relay";

impl Tx {
    /// Tells a fact: it travels if, and once, this transaction commits.
    ///
    /// `entity` is the id of the thing the fact is about. Facts about one thing arrive in the
    /// order in which they were told.
    pub async fn tell<M: Fact>(
        &self,
        workspace: Option<Id<Workspace>>,
        entity: impl std::fmt::Display,
        message: &M,
    ) -> Result<Id<Event>, store::Error> {
        let entity = entity.to_string();
        let told = || -> Result<(Envelope, String, String), Error> {
            let envelope = Envelope::seal(
                self.service(),
                workspace,
                entity.as_str(),
                message,
                self.now(),
            )?;
            let subject = subject(&envelope.name, workspace)?;
            let text = envelope.to_json()?;
            Ok((envelope, subject, text))
        };
        let (envelope, subject, text) = told().map_err(store::Error::Fact)?;
        self.execute(
            "insert into outbox (event_id, entity, subject, envelope, created_at)
             values ($1, $2, $3, $4, $5)",
            params![envelope.id, entity, subject, text, self.now()],
        )
        .await?;
        self.mark_told();
        Ok(envelope.id)
    }
}

struct Unsent {
    id: i64,
    entity: String,
    subject: String,
    envelope: String,
}

impl FromRow for Unsent {
    fn from_row(row: &Row) -> Result<Self, store::Error> {
        Ok(Self {
            id: row.get("id")?,

            entity: row.get("entity")?,
            subject: row.get("subject")?,
            envelope: row.get("envelope")?,
        })
    }
}

/// Relays a service's facts until it is told to stop. It never gives up: a bus that is away only
/// makes facts late.
pub async fn relay(bus: Bus, store: Store, shutdown: CancellationToken) {
    let mut pruned_at = Timestamp::MIN;
    loop {
        let pause = match relay_once(&bus, &store).await {
            Ok(count) if count == BATCH_MAX as usize => Duration::ZERO,
            Ok(_) => POLL,
            Err(error) => {
                tracing::warn!(error = %crate::fault::chain(&*error), "could not relay facts");
                PAUSE
            }
        };
        let now = store.clock().now();
        if now.since(pruned_at) >= PRUNE_EVERY {
            pruned_at = now;
            if let Err(error) = prune(&store, now).await {
                tracing::warn!(error = %crate::fault::chain(&error), "could not prune the outbox");
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = store.told(), if pause != PAUSE => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Relays one batch and returns how many facts were sent.
pub async fn relay_once(
    bus: &Bus,
    store: &Store,
) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    // One relay at a time: two would each keep order and together lose it.
    let Some(_lock) = store.try_lock(RELAY_LOCK).await? else {
        return Ok(0);
    };
    let unsent = store
        .read()
        .query_all::<Unsent>(
            "select id, entity, subject, envelope from outbox
             where sent_at is null order by id limit $1",
            params![BATCH_MAX],
        )
        .await?;
    let mut waiting: VecDeque<Unsent> = unsent.into();
    let mut sent_count = 0;
    while !waiting.is_empty() {
        let (wave, rest) = split_wave(waiting);
        waiting = rest;
        let (sent, failure) = publish(bus, &wave).await;
        mark_sent(store, &sent).await?;
        sent_count += sent.len();
        if let Some(error) = failure {
            return Err(error.into());
        }
    }
    Ok(sent_count)
}

/// Takes the longest run of facts about different things. Those may be in flight together; of
/// two about one thing, the second waits until the first is known to be in the stream, so that
/// a lost one can't fall behind it.
fn split_wave(mut waiting: VecDeque<Unsent>) -> (Vec<Unsent>, VecDeque<Unsent>) {
    let mut entities = HashSet::new();
    let length = waiting
        .iter()
        .take_while(|fact| entities.insert(fact.entity.clone()))
        .count();
    let rest = waiting.split_off(length);
    (waiting.into(), rest)
}

async fn publish(bus: &Bus, wave: &[Unsent]) -> (Vec<i64>, Option<Error>) {
    let mut acks = Vec::with_capacity(wave.len());
    let mut failure = None;
    for fact in wave {
        let envelope = match Envelope::from_slice(fact.envelope.as_bytes()) {
            Ok(envelope) => envelope,
            Err(error) => {
                failure = Some(error);
                break;
            }
        };
        let span = telemetry::publish_span(&envelope);
        let payload = fact.envelope.clone().into_bytes().into();
        let publishing = bus
            .jetstream()
            .publish_with_headers(fact.subject.clone(), headers(&envelope), payload)
            .into_future()
            .instrument(span.clone());
        match tokio::time::timeout(ACK_TIMEOUT, publishing).await {
            Ok(Ok(ack)) => acks.push((fact, ack.into_future().instrument(span))),
            Ok(Err(error)) => failure = Some(Error::nats("publish a fact", error)),
            Err(error) => failure = Some(Error::nats("publish a fact", error)),
        }
        if failure.is_some() {
            break;
        }
    }
    let mut sent = Vec::with_capacity(acks.len());
    for (fact, ack) in acks {
        match ack.await {
            Ok(_) => sent.push(fact.id),
            Err(error) => failure = Some(Error::nats("have a fact stored", error)),
        }
    }
    (sent, failure)
}

fn headers(envelope: &Envelope) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let id = envelope.id.to_string();
    headers.insert(NATS_MESSAGE_ID, id.as_str());
    headers.insert("ce-id", id.as_str());
    headers.insert("content-type", CONTENT_TYPE);
    headers.insert("ce-type", envelope.name.as_str());
    if let Some(trace) = &envelope.traceparent {
        headers.insert("traceparent", trace.as_str());
    }
    headers
}

async fn mark_sent(store: &Store, sent: &[i64]) -> Result<(), store::Error> {
    if sent.is_empty() {
        return Ok(());
    }
    store
        .write_with(Isolation::ReadCommitted, |tx| async move {
            let now = tx.now();
            // Numbers of our own making: no value of anybody's is in this text.
            let list = sent
                .iter()
                .map(i64::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            let sql = format!("update outbox set sent_at = $1 where id in ({list})");
            tx.execute(&sql, params![now]).await.map(drop)
        })
        .await
}

/// Removes what is older than the stream: a fact that is still there can be heard again, and then
/// must find that it was heard.
async fn prune(store: &Store, now: Timestamp) -> Result<(), store::Error> {
    let before = now - (FACTS_KEPT_FOR + PRUNE_SLACK);
    store
        .write_with(Isolation::ReadCommitted, |tx| async move {
            let outbox = "delete from outbox where sent_at < $1";
            let inbox = "delete from inbox where received_at < $1";
            let mut removed = tx.execute(outbox, params![before]).await?;
            removed += tx.execute(inbox, params![before]).await?;
            removed += tx.forget_answers(now).await?;
            if removed > 0 {
                tracing::info!(
                    rows = removed,
                    "pruned the outbox, inbox and remembered answers"
                );
            }
            Ok(())
        })
        .await
}

//! The inbox: a durable consumer whose effect and memory are one transaction.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::{self, AckKind};
use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{Bus, DEAD_ROOT, Envelope, Error, FACTS};
use crate::fault::Fault;
use crate::id::{Event, Id};
use crate::params;
use crate::store::{self, Isolation, Store, Tx};
use crate::telemetry;

/// Failures of a handler after which a fact is dead.
pub const DELIVERIES_MAX: u32 = 10;
/// How long a handler may take: less than the server waits before it delivers again.
pub const HANDLER_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the server waits before it delivers again: what was on its way when a process or the
/// server died comes back after this.
const ACK_WAIT: Duration = Duration::from_secs(10);
/// Facts that are delivered and not yet done with.
const PENDING_MAX: i64 = 256;
/// Messages fetched at a time: few enough to be done with before they are delivered again.
const BATCH_MAX: usize = 16;
/// How long one request for messages is good for, and how often the server says that it is there.
const PULL_EXPIRES: Duration = Duration::from_secs(10);
const PULL_HEARTBEAT: Duration = Duration::from_secs(2);
/// The longest pause before a fact is delivered again.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The pause before a lost consumer is looked for again.
const REOPEN_PAUSE: Duration = Duration::from_millis(500);
/// Errors in a row after which the consumer is opened anew.
const STREAM_ERRORS_MAX: u32 = 5;
/// The longest name of a durable consumer.
const DURABLE_LENGTH_MAX: usize = 32;

/// A fact as a handler gets it.
#[derive(Debug, Clone)]
pub struct Told {
    /// The fact.
    pub envelope: Envelope,
    /// Its place in the stream: the cursor.
    pub sequence: u64,
    /// How often it was delivered, this time included.
    pub deliveries: u32,
}

impl std::ops::Deref for Told {
    type Target = Envelope;

    fn deref(&self) -> &Envelope {
        &self.envelope
    }
}

enum Outcome {
    Done,
    Retry(Fault),
    Dead(String),
}

impl Bus {
    /// Hears facts until told to stop, each with effect once.
    ///
    /// `durable` is `<service>-<purpose>`; `filters` come from [`filter`](super::filter). The
    /// handler's changes through `tx` commit together with the memory that the fact was heard. A
    /// handler that fails is called again after a pause, at most [`DELIVERIES_MAX`] times: then
    /// the fact goes to `FACTS_DEAD`. Faults that say *unavailable* or *timeout* don't count:
    /// a store that is away for an hour kills no facts.
    pub async fn consume<F, Fut, E>(
        &self,
        store: &Store,
        durable: &str,
        filters: Vec<String>,
        handler: F,
        shutdown: CancellationToken,
    ) where
        F: Fn(Tx, Arc<Told>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
        E: From<store::Error> + Into<Fault> + Send,
    {
        assert!(
            durable.len() <= DURABLE_LENGTH_MAX && !durable.contains(['.', ' ', '*', '>']),
            "invariant: a durable consumer's name is short and has no dots"
        );
        telemetry::count_dead(durable, 0);
        let mut failures = HashMap::new();
        while !shutdown.is_cancelled() {
            let stopped = tokio::select! {
                () = shutdown.cancelled() => return,
                stopped = self.hear(store, durable, &filters, &handler, &mut failures) => stopped,
            };
            if let Err(error) = stopped {
                let error = crate::fault::chain(&error);
                tracing::warn!(consumer = durable, error, "opens its consumer again");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(REOPEN_PAUSE) => {}
            }
        }
    }

    async fn hear<F, Fut, E>(
        &self,
        store: &Store,
        durable: &str,
        filters: &[String],
        handler: &F,
        failures: &mut HashMap<Id<Event>, u32>,
    ) -> Result<(), Error>
    where
        F: Fn(Tx, Arc<Told>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
        E: From<store::Error> + Into<Fault> + Send,
    {
        let mut messages = self.open(FACTS, durable, filters, BATCH_MAX).await?;
        let mut errors = 0;
        while let Some(message) = messages.next().await {
            match message {
                Ok(message) => {
                    errors = 0;
                    self.deliver(store, durable, message, handler, failures)
                        .await;
                }
                Err(error) if errors < STREAM_ERRORS_MAX => {
                    errors += 1;
                    tracing::debug!(consumer = durable, %error, "NATS");
                }
                Err(error) => return Err(Error::nats("receive facts", error)),
            }
        }
        Ok(())
    }

    pub(super) async fn open(
        &self,
        stream: &str,
        durable: &str,
        filters: &[String],
        batch: usize,
    ) -> Result<pull::Stream, Error> {
        let failed = |error: async_nats::Error| {
            Error::nats(format!("open the consumer {durable} of {stream}"), error)
        };
        // Not `get_or_create`: filters that changed with the program must reach the server.
        let consumer = self
            .jetstream()
            .create_consumer_on_stream(
                pull::Config {
                    durable_name: Some(durable.to_owned()),
                    deliver_policy: DeliverPolicy::All,
                    ack_policy: AckPolicy::Explicit,
                    ack_wait: ACK_WAIT,
                    // Counting is ours: the server would count a store that is away too.
                    max_deliver: -1,
                    max_ack_pending: PENDING_MAX.max(2 * batch as i64),
                    filter_subjects: filters.to_vec(),
                    ..pull::Config::default()
                },
                stream,
            )
            .await
            .map_err(|error| failed(error.into()))?;
        consumer
            .stream()
            .max_messages_per_batch(batch)
            .expires(PULL_EXPIRES)
            .heartbeat(PULL_HEARTBEAT)
            .messages()
            .await
            .map_err(|error| failed(error.into()))
    }

    async fn deliver<F, Fut, E>(
        &self,
        store: &Store,
        durable: &str,
        message: jetstream::Message,
        handler: &F,
        failures: &mut HashMap<Id<Event>, u32>,
    ) where
        F: Fn(Tx, Arc<Told>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
        E: From<store::Error> + Into<Fault> + Send,
    {
        let (sequence, deliveries) = match message.info() {
            Ok(info) => (
                info.stream_sequence,
                u32::try_from(info.delivered).unwrap_or(u32::MAX),
            ),
            Err(_) => (0, 1),
        };
        let told = match Envelope::from_slice(&message.payload) {
            Ok(envelope) => Arc::new(Told {
                envelope,
                sequence,
                deliveries,
            }),
            Err(error) => {
                return self
                    .bury(durable, &message, &crate::fault::chain(&error))
                    .await;
            }
        };
        let id = told.id;
        let span = telemetry::process_span(&told.envelope, durable);
        let outcome = self
            .take_effect(store, durable, told, handler, failures)
            .instrument(span.clone())
            .await;
        let acked = match outcome {
            Outcome::Done => {
                failures.remove(&id);
                message.ack().await
            }
            Outcome::Retry(fault) => {
                let count = failures.get(&id).copied().unwrap_or(0).max(1);
                let pause = retry_pause(self.retry_pause(), count.max(deliveries));
                span.in_scope(|| {
                    tracing::warn!(
                        consumer = durable, %id, deliveries, error = fault.chain(),
                        "will hear a fact again"
                    );
                });
                message.ack_with(AckKind::Nak(Some(pause))).await
            }
            Outcome::Dead(reason) => {
                failures.remove(&id);
                return self.bury(durable, &message, &reason).instrument(span).await;
            }
        };
        if let Err(error) = acked {
            // It will be delivered again and found in the inbox.
            tracing::debug!(consumer = durable, %id, %error, "could not acknowledge a fact");
        }
    }

    async fn take_effect<F, Fut, E>(
        &self,
        store: &Store,
        durable: &str,
        told: Arc<Told>,
        handler: &F,
        failures: &mut HashMap<Id<Event>, u32>,
    ) -> Outcome
    where
        F: Fn(Tx, Arc<Told>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
        E: From<store::Error> + Into<Fault> + Send,
    {
        let id = told.id;
        let told = &told;
        let effect = store.write_with(Isolation::Serializable, |tx| async move {
            if is_first(&tx, durable, id).await? {
                handler(tx, told.clone()).await
            } else {
                Ok(())
            }
        });
        let fault = match tokio::time::timeout(HANDLER_TIMEOUT, effect).await {
            Ok(Ok(())) => return Outcome::Done,
            Ok(Err(error)) => error.into(),
            Err(_) => Fault::new(
                crate::fault::Kind::Internal,
                "HANDLER_TOO_SLOW",
                "kit",
                format!("the handler took more than {HANDLER_TIMEOUT:?}"),
            ),
        };
        if fault.kind.is_transient() {
            return Outcome::Retry(fault);
        }
        let count = failures.entry(id).or_insert(0);
        *count += 1;
        if *count >= DELIVERIES_MAX {
            Outcome::Dead(fault.chain())
        } else {
            Outcome::Retry(fault)
        }
    }

    /// Moves a fact to `FACTS_DEAD` and ends its delivery.
    async fn bury(&self, durable: &str, message: &jetstream::Message, reason: &str) {
        let mut headers = message.headers.clone().unwrap_or_default();
        let id = headers
            .get(NATS_MESSAGE_ID)
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::error!(
            consumer = durable, id, subject = %message.subject, error = reason,
            "a fact could not take effect and is now in FACTS_DEAD"
        );
        telemetry::count_dead(durable, 1);
        headers.insert("fovea-consumer", durable);
        headers.insert("fovea-reason", one_line(reason).as_str());
        if !id.is_empty() {
            // One fact may die in several consumers.
            headers.insert(NATS_MESSAGE_ID, format!("{durable}/{id}").as_str());
        }
        let buried = self.copy_to_dead(durable, message, headers).await;
        let acked = match buried {
            Ok(()) => message.ack_with(AckKind::Term).await,
            Err(error) => {
                let error = crate::fault::chain(&error);
                tracing::warn!(
                    consumer = durable,
                    error,
                    "could not move a fact to FACTS_DEAD"
                );
                message.ack_with(AckKind::Nak(Some(RETRY_PAUSE_MAX))).await
            }
        };
        if let Err(error) = acked {
            tracing::debug!(consumer = durable, %error, "could not end the delivery of a fact");
        }
    }

    async fn copy_to_dead(
        &self,
        durable: &str,
        message: &jetstream::Message,
        headers: HeaderMap,
    ) -> Result<(), Error> {
        let subject = format!("{DEAD_ROOT}.{durable}.{}", message.subject);
        let failed = |error: async_nats::Error| Error::nats("store a dead fact", error);
        let ack = self
            .jetstream()
            .publish_with_headers(subject, headers, message.payload.clone())
            .await
            .map_err(|error| failed(error.into()))?;
        ack.await.map(drop).map_err(|error| failed(error.into()))
    }
}

/// Notes that a consumer heard a fact, and tells whether it is the first time.
async fn is_first(tx: &Tx, durable: &str, id: Id<Event>) -> Result<bool, store::Error> {
    let rows = tx
        .execute(
            "insert into inbox (consumer, event_id, received_at) values ($1, $2, $3)
             on conflict (consumer, event_id) do nothing",
            params![durable, id, tx.now()],
        )
        .await?;
    Ok(rows == 1)
}

fn retry_pause(first: Duration, count: u32) -> Duration {
    first
        .saturating_mul(2_u32.saturating_pow(count.clamp(1, 16) - 1))
        .min(RETRY_PAUSE_MAX)
}

/// Headers have lines: a reason may not.
fn one_line(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(1000)
        .collect()
}

//! Telemetry: metrics, logs and samples. High-rate, kept briefly, and may be thinned: nothing
//! that money, resume or leases need travels here.

use std::fmt::Display;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::{
    Bus, Cursor, Error, Following, SAMPLE_BYTES_MAX, TELEMETRY, TELEMETRY_ROOT, telemetry_subject,
};
use crate::id::{Id, Workspace};
use crate::time::Timestamp;

/// Samples handed to a keeper at a time.
const BATCH_MAX: usize = 512;
/// The pause before a keeper that failed gets the same batch again.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const REOPEN_PAUSE: Duration = Duration::from_millis(500);

/// One message of telemetry.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Its place in the stream.
    pub sequence: u64,
    /// When the stream got it.
    pub stored_at: Timestamp,
    /// The workspace it is about.
    pub workspace: Id<Workspace>,
    /// What it is: `progress`, `logs`.
    pub noun: String,
    /// The id of the thing it is about.
    pub id: String,
    /// The protobuf message.
    pub payload: Bytes,
}

impl Sample {
    /// Reads the message.
    pub fn decode<M: Message + Default>(&self) -> Result<M, Error> {
        M::decode(self.payload.clone())
            .map_err(|error| Error::malformed(format!("telemetry '{}'", self.noun), error))
    }

    /// Returns `None` for a subject that is no telemetry of ours.
    fn new(sequence: u64, stored_at: Timestamp, subject: &str, payload: Bytes) -> Option<Self> {
        let rest = subject.strip_prefix(TELEMETRY_ROOT)?.strip_prefix('.')?;
        let mut parts = rest.splitn(3, '.');
        Some(Self {
            sequence,
            stored_at,
            workspace: parts.next()?.parse().ok()?,
            noun: parts.next()?.to_owned(),
            id: parts.next()?.to_owned(),
            payload,
        })
    }
}

impl Bus {
    /// Publishes telemetry and waits for nothing. Returns whether it was sent: while the server
    /// is away it is dropped, so that who measures is never held up.
    pub async fn publish_telemetry(
        &self,
        workspace: Id<Workspace>,
        noun: &str,
        id: impl Display,
        message: &impl Message,
    ) -> bool {
        if !self.is_connected() || message.encoded_len() > SAMPLE_BYTES_MAX as usize {
            return false;
        }
        let subject = telemetry_subject(workspace, noun, &id);
        self.client()
            .publish(subject, message.encode_to_vec().into())
            .await
            .is_ok()
    }

    /// Follows one thing's telemetry from a cursor.
    pub fn follow_telemetry(
        &self,
        workspace: Id<Workspace>,
        noun: &str,
        id: impl Display,
        from: Cursor,
    ) -> Following {
        self.follow(TELEMETRY, telemetry_subject(workspace, noun, &id), from)
    }

    /// Hands all telemetry of these nouns to a keeper, in batches and in order, until told to
    /// stop. A batch is handed over until the handler returns `Ok`, and may come again after a
    /// crash: who keeps it notes the last `sequence`.
    pub async fn keep_telemetry<F, Fut, E>(
        &self,
        durable: &str,
        nouns: &[&str],
        handler: F,
        shutdown: CancellationToken,
    ) where
        F: Fn(Vec<Sample>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Display,
    {
        let filters: Vec<_> = nouns
            .iter()
            .map(|noun| format!("{TELEMETRY_ROOT}.*.{noun}.*"))
            .collect();
        while !shutdown.is_cancelled() {
            let stopped = tokio::select! {
                () = shutdown.cancelled() => return,
                stopped = self.keep(durable, &filters, &handler) => stopped,
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

    async fn keep<F, Fut, E>(
        &self,
        durable: &str,
        filters: &[String],
        handler: &F,
    ) -> Result<(), Error>
    where
        F: Fn(Vec<Sample>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<(), E>> + Send,
        E: Display,
    {
        let mut messages = self.open(TELEMETRY, durable, filters, BATCH_MAX).await?;
        while let Some(first) = messages.next().await {
            let mut batch = vec![first.map_err(|error| Error::nats("receive telemetry", error))?];
            // What has arrived meanwhile is taken along; nothing is waited for.
            while batch.len() < BATCH_MAX
                && let Some(Some(Ok(next))) = messages.next().now_or_never()
            {
                batch.push(next);
            }
            let samples: Vec<_> = batch
                .iter()
                .filter_map(|message| {
                    let info = message.info().ok()?;
                    let micros = (info.published.unix_timestamp_nanos() / 1000) as i64;
                    let stored_at = Timestamp::from_micros(micros);
                    let payload = message.payload.clone();
                    Sample::new(info.stream_sequence, stored_at, &message.subject, payload)
                })
                .collect();
            // The same batch until it is kept: what follows it may not overtake it.
            while let Err(error) = handler(samples.clone()).await {
                tracing::warn!(consumer = durable, %error, "will keep the same telemetry again");
                for message in &batch {
                    let more_time = message.ack_with(AckKind::Progress).await;
                    if let Err(error) = more_time {
                        tracing::debug!(consumer = durable, %error, "could not ask for time");
                    }
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            for message in &batch {
                if let Err(error) = message.ack().await {
                    tracing::debug!(consumer = durable, %error, "could not acknowledge telemetry");
                }
            }
        }
        Ok(())
    }
}

//! Following a stream from a cursor, without acknowledgements: for readers, live or from the past.

use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use tokio::sync::watch;

use super::{Bus, Error, FACTS, FACTS_ROOT};
use crate::id::{Id, Workspace};
use crate::time::Timestamp;

const REOPEN_PAUSE: Duration = Duration::from_millis(500);

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cursor {
    /// The oldest that is kept.
    Start,
    /// What comes from now on.
    Now,
    /// What follows this sequence.
    After(u64),
}

/// One message of a stream.
#[derive(Debug, Clone)]
pub struct Followed {
    /// Its place in the stream: the cursor to go on from.
    pub sequence: u64,
    /// When the stream got it.
    pub stored_at: Timestamp,
    /// The subject it travels on.
    pub subject: String,
    /// Its bytes: an envelope for facts, protobuf for telemetry.
    pub payload: Bytes,
}

/// Messages of a stream, in order and without gaps; it ends only when dropped, whatever happens
/// to the server meanwhile.
pub type Following = std::pin::Pin<Box<dyn Stream<Item = Followed> + Send>>;

impl Bus {
    /// Follows the facts of one workspace, or of all.
    pub fn follow_facts(&self, workspace: Option<Id<Workspace>>, from: Cursor) -> Following {
        let place = workspace.map_or_else(|| "*".to_owned(), |workspace| workspace.to_string());
        self.follow(FACTS, format!("{FACTS_ROOT}.{place}.>"), from)
    }

    /// Follows what a stream holds on this subject or pattern.
    pub fn follow(&self, stream_name: &'static str, filter: String, from: Cursor) -> Following {
        let state = State {
            bus: self.clone(),
            stream_name,
            filter,
            from,
            connections: self.connections(),
            open: None,
        };
        Box::pin(stream::unfold(state, |mut state| async move {
            let next = state.next().await;
            Some((next, state))
        }))
    }

    async fn last_sequence(&self, stream_name: &str) -> Result<u64, Error> {
        let stream = self.jetstream().get_stream(stream_name).await;
        let stream = stream.map_err(|error| Error::nats(format!("find {stream_name}"), error))?;
        Ok(stream.cached_info().state.last_sequence)
    }

    async fn ordered(
        &self,
        stream_name: &str,
        filter: &str,
        from: Cursor,
    ) -> Result<pull::Ordered, Error> {
        let failed = |error: async_nats::Error| {
            Error::nats(format!("follow {filter} in {stream_name}"), error)
        };
        let deliver_policy = match from {
            Cursor::Start => DeliverPolicy::All,
            Cursor::Now => DeliverPolicy::New,
            Cursor::After(sequence) => DeliverPolicy::ByStartSequence {
                start_sequence: sequence.saturating_add(1),
            },
        };
        let config = pull::OrderedConfig {
            filter_subject: filter.to_owned(),
            deliver_policy,
            ..pull::OrderedConfig::default()
        };
        let consumer = self
            .jetstream()
            .create_consumer_on_stream(config, stream_name)
            .await
            .map_err(|error| failed(error.into()))?;
        consumer
            .messages()
            .await
            .map_err(|error| failed(error.into()))
    }
}

struct State {
    bus: Bus,
    stream_name: &'static str,
    filter: String,
    from: Cursor,
    connections: watch::Receiver<u64>,
    open: Option<Box<pull::Ordered>>,
}

impl State {
    async fn next(&mut self) -> Followed {
        loop {
            let stopped = match self.step().await {
                Ok(Some(followed)) => return followed,
                Ok(None) => None,
                Err(error) => Some(error),
            };
            self.open = None;
            if let Some(error) = stopped {
                let error = crate::fault::chain(&error);
                tracing::debug!(error, filter = self.filter, "follows again");
                tokio::time::sleep(REOPEN_PAUSE).await;
            }
        }
    }

    /// Returns the next message, or `None` to open the stream anew at once.
    async fn step(&mut self) -> Result<Option<Followed>, Error> {
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                self.connections.mark_unchanged();
                if self.from == Cursor::Now {
                    // What is said while we are cut off for the first time is said after now.
                    self.from = Cursor::After(self.bus.last_sequence(self.stream_name).await?);
                }
                let (stream_name, filter) = (self.stream_name, self.filter.as_str());
                let open = self.bus.ordered(stream_name, filter, self.from).await?;
                self.open.insert(Box::new(open))
            }
        };
        loop {
            let next = tokio::select! {
                next = open.next() => next,
                // The server forgot its side of an ordered consumer when it died: waiting for
                // missed heartbeats would take half a minute.
                _ = self.connections.changed() => return Ok(None),
            };
            let Some(message) = next else { return Ok(None) };
            let message = message.map_err(|error| Error::nats("follow", error))?;
            let Ok(info) = message.info() else { continue };
            let sequence = info.stream_sequence;
            // A consumer that was opened again may repeat the last one.
            if matches!(self.from, Cursor::After(last) if sequence <= last) {
                continue;
            }
            let nanos = info.published.unix_timestamp_nanos();
            self.from = Cursor::After(sequence);
            return Ok(Some(Followed {
                sequence,
                stored_at: Timestamp::from_micros((nanos / 1000) as i64),
                subject: message.subject.to_string(),
                payload: message.payload.clone(),
            }));
        }
    }
}

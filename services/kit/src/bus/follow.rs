//! Following a stream from a cursor, without acknowledgements: for readers, live or from the past.

use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};

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
            open: None,
        };
        Box::pin(stream::unfold(state, |mut state| async move {
            let next = state.next().await;
            Some((next, state))
        }))
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
                start_sequence: sequence + 1,
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
    open: Option<Box<pull::Ordered>>,
}

impl State {
    async fn next(&mut self) -> Followed {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => match self
                    .bus
                    .ordered(self.stream_name, &self.filter, self.from)
                    .await
                {
                    Ok(open) => self.open.insert(Box::new(open)),
                    Err(error) => {
                        tracing::debug!(error = %crate::fault::chain(&error), "follows again");
                        tokio::time::sleep(REOPEN_PAUSE).await;
                        continue;
                    }
                },
            };
            match open.next().await {
                Some(Ok(message)) => {
                    let Ok(info) = message.info() else { continue };
                    let (sequence, nanos) =
                        (info.stream_sequence, info.published.unix_timestamp_nanos());
                    // A consumer that was opened again may repeat the last one.
                    if matches!(self.from, Cursor::After(last) if sequence <= last) {
                        continue;
                    }
                    self.from = Cursor::After(sequence);
                    return Followed {
                        sequence,
                        stored_at: Timestamp::from_micros((nanos / 1000) as i64),
                        subject: message.subject.to_string(),
                        payload: message.payload.clone(),
                    };
                }
                Some(Err(error)) => {
                    tracing::debug!(%error, filter = self.filter, "follows again");
                    self.open = None;
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
                None => {
                    self.open = None;
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
            }
        }
    }
}

//! Bodies of requests, within a size and a time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName};
use tokio::time::{Instant, Sleep};

use crate::error::Error;

/// Reads a whole body of at most `limit` bytes.
pub async fn whole(
    headers: &HeaderMap,
    body: Body,
    limit: u64,
    idle: Duration,
) -> Result<Bytes, Error> {
    let announced = length(headers)?.unwrap_or(0);
    if announced > limit {
        return Err(Error::BodyTooLarge { limit });
    }
    let mut bytes = BytesMut::with_capacity(usize::try_from(announced).unwrap_or_default());
    let mut stream = chunks(body, idle);
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| Error::BodyIncomplete(error.to_string()))?;
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(Error::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

/// Returns the length that a body announces.
pub fn length(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(value) = headers.get(CONTENT_LENGTH) else {
        return Ok(None);
    };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    let refuse = || Error::BodyIncomplete("content-length is no number".to_owned());
    length.map(Some).ok_or_else(refuse)
}

/// Returns the media type of a body without its parameters, in lower case.
pub fn media_type(headers: &HeaderMap) -> String {
    let kind = text(headers, CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    kind.trim().to_ascii_lowercase()
}

/// Returns a header as text, where it is there and is text.
pub fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub enum CutOff {
    /// Nothing came for too long.
    #[error("nothing came for {} s", .0.as_secs())]
    Idle(Duration),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
    /// It is not what it should be.
    #[error("its digest is not the one in its address")]
    OtherDigest,
}

/// Returns the chunks of a body; one that stands still for `idle` is cut off.
pub fn chunks(body: Body, idle: Duration) -> Chunks {
    Chunks {
        stream: body.into_data_stream(),
        alarm: Box::pin(tokio::time::sleep(idle)),
        idle,
    }
}

/// See [`chunks`].
#[derive(Debug)]
pub struct Chunks {
    stream: axum::body::BodyDataStream,
    alarm: Pin<Box<Sleep>>,
    idle: Duration,
}

impl Stream for Chunks {
    type Item = Result<Bytes, CutOff>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Poll::Ready(chunk) = this.stream.poll_next_unpin(context) {
            let deadline = Instant::now() + this.idle;
            this.alarm.as_mut().reset(deadline);
            return Poll::Ready(chunk.map(|chunk| chunk.map_err(CutOff::Broken)));
        }
        match this.alarm.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(CutOff::Idle(this.idle)))),
            Poll::Pending => Poll::Pending,
        }
    }
}

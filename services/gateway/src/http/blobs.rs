//! Blobs at signed addresses: read, also in ranges, and written once with the right digest.

use std::ops::Range;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use kit::blobs::{Access, BlobKey, Blobs};
use kit::{Fault, Kind};

use super::body::{self, CutOff};
use super::problem::Problem;
use crate::error::Error;
use crate::gateway::Shared;

/// What is read from the store at a time for a range.
const CHUNK: u64 = 1 << 20;
/// As much as tells pictures apart.
const MAGIC_LENGTH: u64 = 12;
/// Content never changes under its address; the address itself ends on its own.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("private, max-age=86400, immutable");
/// Whatever somebody uploaded must not run as one of our pages.
const SANDBOX: HeaderValue = HeaderValue::from_static("default-src 'none'; sandbox");

/// `GET` and `HEAD /v1/blobs/…`: returns a blob or a range of it.
pub async fn get(State(gateway): State<Shared>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    match read(&gateway, &parts).await {
        Ok(response) => response,
        Err(error) => Problem::from(error).into_response(),
    }
}

/// `PUT /v1/blobs/…`: stores the content that the address names.
pub async fn put(State(gateway): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    match write(&gateway, &parts, body).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

fn verified(gateway: &Shared, parts: &Parts) -> Result<(BlobKey, Access), Fault> {
    let (context, uri) = (&gateway.context, &parts.uri);
    let query = uri.query().unwrap_or_default();
    let urls = context.blobs().urls();
    urls.verify(&parts.method, uri.path(), query, context.now())
}

async fn read(gateway: &Shared, parts: &Parts) -> Result<Response, Error> {
    let (key, _) = verified(gateway, parts)?;
    let blobs = gateway.context.blobs();
    let not_found = || {
        Fault::new(
            Kind::NotFound,
            "BLOB_NOT_FOUND",
            "kit",
            "there is no such blob",
        )
    };
    let size = blobs.size(&key).await?.ok_or_else(not_found)?;
    let etag = format!("\"{}\"", key.hash().to_hex());
    let mut headers = HeaderMap::new();
    headers.insert(ETAG, text(&etag));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, IMMUTABLE);
    if is_known(&parts.headers, &etag) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }
    headers.insert(CONTENT_TYPE, media_type(blobs, &key, size).await?);
    headers.insert(CONTENT_SECURITY_POLICY, SANDBOX);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let (status, range) = match asked_range(&parts.headers, &etag, size) {
        Asked::Whole => (StatusCode::OK, 0..size),
        Asked::Part(range) => {
            let text = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            headers.insert(CONTENT_RANGE, self::text(&text));
            (StatusCode::PARTIAL_CONTENT, range)
        }
        Asked::Impossible => {
            let range = text(&format!("bytes */{size}"));
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            return Ok((status, [(CONTENT_RANGE, range)]).into_response());
        }
    };
    headers.insert(CONTENT_LENGTH, (range.end - range.start).into());
    let body = match parts.method == Method::HEAD {
        true => Body::empty(),
        false if range.end - range.start == size => {
            Body::from_stream(blobs.get_stream(&key).await?)
        }
        false => Body::from_stream(ranged(blobs.clone(), key, range)),
    };
    Ok((status, headers, body).into_response())
}

async fn write(gateway: &Shared, parts: &Parts, body: Body) -> Result<(), Error> {
    let (key, access) = verified(gateway, parts)?;
    let Access::Write { max_bytes } = access else {
        return Err(Error::RouteUnknown {
            path: parts.uri.path().to_owned(),
        });
    };
    if body::length(&parts.headers)?.is_some_and(|length| length > max_bytes) {
        return Err(Error::BodyTooLarge { limit: max_bytes });
    }
    let blobs = gateway.context.blobs();
    if blobs.exists(&key).await? {
        return Ok(());
    }
    let _place = gateway.enter_part()?;
    let chunks = body::chunks(body, gateway.config.body_idle_timeout);
    let chunks = checked(chunks, key.hash());
    let blobs = blobs.of(key.service());
    let stored = blobs.put_stream(key.workspace(), chunks, max_bytes).await;
    stored
        .map(drop)
        .map_err(|fault| match fault.reason.as_ref() {
            "BLOB_TOO_LARGE" => Error::BodyTooLarge { limit: max_bytes },
            "BLOB_CUT_OFF" => Error::BodyIncomplete(fault.chain()),
            _ => fault.into(),
        })
}

/// Passes chunks on and fails at their end where they were not what they should be: so that
/// nothing is stored under another address than the one that was signed.
fn checked(
    chunks: impl Stream<Item = Result<Bytes, CutOff>> + Send + Unpin,
    expected: blake3::Hash,
) -> impl Stream<Item = Result<Bytes, CutOff>> + Send {
    let state = Some((chunks, blake3::Hasher::new()));
    stream::try_unfold(state, move |state| async move {
        let Some((mut chunks, mut hasher)) = state else {
            return Ok(None);
        };
        match chunks.try_next().await? {
            Some(chunk) => {
                hasher.update(&chunk);
                Ok(Some((chunk, Some((chunks, hasher)))))
            }
            None if hasher.finalize() == expected => Ok(None),
            None => Err(CutOff::OtherDigest),
        }
    })
}

fn ranged(
    blobs: Blobs,
    key: BlobKey,
    range: Range<u64>,
) -> impl Stream<Item = Result<Bytes, Fault>> + Send {
    stream::try_unfold((blobs, key, range), |(blobs, key, range)| async move {
        if range.is_empty() {
            return Ok(None);
        }
        let end = range.end.min(range.start + CHUNK);
        let bytes = blobs.get_range(&key, range.start..end).await?;
        Ok(Some((bytes, (blobs, key, end..range.end))))
    })
    .boxed()
}

/// Names pictures; everything else is bytes.
async fn media_type(blobs: &Blobs, key: &BlobKey, size: u64) -> Result<HeaderValue, Fault> {
    let magic = match size {
        0 => Bytes::new(),
        size => blobs.get_range(key, 0..size.min(MAGIC_LENGTH)).await?,
    };
    let kind = match &*magic {
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [0x89, b'P', b'N', b'G', ..] => "image/png",
        [b'G', b'I', b'F', b'8', ..] => "image/gif",
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => "image/webp",
        [b'B', b'M', ..] => "image/bmp",
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => "image/tiff",
        _ => "application/octet-stream",
    };
    Ok(HeaderValue::from_static(kind))
}

fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let known = body::text(headers, IF_NONE_MATCH);
    known.is_some_and(|known| {
        let mut tags = known.split(',').map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    Part(Range<u64>),
    Impossible,
}

/// Reads the `range` header. One range is served; of several, and of what is no range, the whole.
fn asked_range(headers: &HeaderMap, etag: &str, size: u64) -> Asked {
    if body::text(headers, IF_RANGE).is_some_and(|known| known != etag) {
        return Asked::Whole;
    }
    let range = body::text(headers, RANGE).and_then(|text| text.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return Asked::Whole;
    };
    let range = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.trim().is_empty() => first..size,
        (Err(_), Ok(count)) if first.trim().is_empty() => size.saturating_sub(count)..size,
        _ => return Asked::Whole,
    };
    if range.is_empty() {
        Asked::Impossible
    } else {
        Asked::Part(range)
    }
}

fn text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("invariant: digits and letters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_one_stretch_within_the_blob() {
        let asked = |range: &str, if_range: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RANGE, text(range));
            if let Some(tag) = if_range {
                headers.insert(IF_RANGE, text(tag));
            }
            asked_range(&headers, "\"x\"", 100)
        };
        assert_eq!(asked("bytes=0-9", None), Asked::Part(0..10));
        assert_eq!(asked("bytes=90-", None), Asked::Part(90..100));
        assert_eq!(asked("bytes=-5", None), Asked::Part(95..100));
        assert_eq!(asked("bytes=50-1000", None), Asked::Part(50..100));
        assert_eq!(asked("bytes=100-", None), Asked::Impossible);
        assert_eq!(asked("bytes=-0", None), Asked::Impossible);
        for whole in ["bytes=9-1", "bytes=0-1,5-6", "items=0-1", "bytes=a-b"] {
            assert_eq!(asked(whole, None), Asked::Whole, "{whole}");
        }
        assert_eq!(asked("bytes=0-9", Some("\"y\"")), Asked::Whole);
        assert_eq!(asked("bytes=0-9", Some("\"x\"")), Asked::Part(0..10));
    }
}

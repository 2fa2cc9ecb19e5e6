//! Uploads in resumable parts: bytes go to the blob store, then `datasets` records the part.

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_RANGE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use kit::auth::{Caller, Role, act_for};
use prost_reflect::DynamicMessage;
use proto::fovea::datasets::v1::dataset_service_client::DatasetServiceClient;
use proto::fovea::datasets::v1::{
    GetUploadRequest, GetUploadResponse, RecordUploadPartRequest, Upload,
};

use super::problem::Problem;
use super::{body, transcode};
use crate::authenticate::unavailable_or;
use crate::error::Error;
use crate::gateway::{Gateway, Shared};

const DATASETS: &str = "datasets";
/// How much has arrived: where the next part starts.
pub const UPLOAD_OFFSET: HeaderName = HeaderName::from_static("upload-offset");
/// How much there will be.
pub const UPLOAD_LENGTH: HeaderName = HeaderName::from_static("upload-length");

/// Where a part belongs: `content-range: bytes <first>-<last>/<size>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    first: u64,
    length: u64,
    size: u64,
}

/// `PUT /v1/uploads/{id}`: adds the next part.
pub async fn put(
    State(gateway): State<Shared>,
    Path(upload_id): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    match receive(&gateway, upload_id, &parts, body).await {
        Ok(upload) => respond(upload),
        Err(error) => {
            let expected = match &error {
                Error::OffsetMismatch { expected, .. } => Some(*expected),
                _ => None,
            };
            let problem = Problem::from(error);
            match expected {
                Some(offset) => problem.header(UPLOAD_OFFSET, offset).into_response(),
                None => problem.into_response(),
            }
        }
    }
}

/// `HEAD /v1/uploads/{id}`: tells where to go on.
pub async fn head(
    State(gateway): State<Shared>,
    Path(upload_id): Path<String>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let found = async {
        let caller = gateway.authenticator.caller(&parts).await?;
        caller.require(Role::Viewer)?;
        get(&gateway, &caller, upload_id).await
    };
    match found.await {
        Ok(upload) => (StatusCode::OK, headers(&upload)).into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

async fn receive(
    gateway: &Gateway,
    upload_id: String,
    parts: &Parts,
    body: Body,
) -> Result<Upload, Error> {
    let caller = gateway.authenticator.caller(parts).await?;
    caller.require(Role::Editor)?;
    let part = part(&parts.headers)?;
    let limit = gateway.config.part_bytes_max;
    if part.length > limit {
        return Err(Error::BodyTooLarge { limit });
    }
    let upload = get(gateway, &caller, upload_id).await?;
    let expected = u64::try_from(upload.received_bytes).unwrap_or_default();
    if i64::try_from(part.size) != Ok(upload.size_bytes) {
        let rule = format!("the upload was announced with {} bytes", upload.size_bytes);
        return Err(Error::RangeInvalid(rule));
    }
    if part.first != expected {
        return Err(Error::OffsetMismatch {
            expected,
            given: part.first,
        });
    }
    let _place = gateway.enter_part()?;
    let chunks = body::chunks(body, gateway.config.body_idle_timeout);
    let blobs = gateway.context.blobs().of(DATASETS);
    let stored = blobs
        .put_stream(caller.workspace()?, chunks, part.length)
        .await
        .map_err(|fault| cut_off(fault, part))?;
    if stored.size_bytes != part.length {
        let message = format!("{} of {} bytes came", stored.size_bytes, part.length);
        return Err(Error::BodyIncomplete(message));
    }
    record(gateway, &caller, upload.id, part, stored.key.hash()).await
}

fn cut_off(fault: kit::Fault, part: Part) -> Error {
    if fault.is("BLOB_TOO_LARGE") {
        let rule = format!("it announces {} bytes, the body has more", part.length);
        return Error::RangeInvalid(rule);
    }
    if fault.is("BLOB_CUT_OFF") {
        return Error::BodyIncomplete(fault.chain());
    }
    fault.into()
}

async fn get(gateway: &Gateway, caller: &Caller, upload_id: String) -> Result<Upload, Error> {
    let request = act_for(caller, GetUploadRequest { upload_id });
    let answer = client(gateway).get_upload(request).await;
    let answer = answer.map_err(|status| unavailable_or(status, DATASETS))?;
    uploaded(answer.into_inner().upload)
}

async fn record(
    gateway: &Gateway,
    caller: &Caller,
    upload_id: String,
    part: Part,
    digest: impl std::fmt::Display,
) -> Result<Upload, Error> {
    let request = RecordUploadPartRequest {
        upload_id,
        offset_bytes: signed(part.first),
        size_bytes: signed(part.length),
        digest: digest.to_string(),
    };
    let answer = client(gateway)
        .record_upload_part(act_for(caller, request))
        .await;
    let answer = answer.map_err(|status| unavailable_or(status, DATASETS))?;
    uploaded(answer.into_inner().upload)
}

fn client(gateway: &Gateway) -> DatasetServiceClient<kit::service::Channel> {
    DatasetServiceClient::new(gateway.channel(DATASETS))
}

fn uploaded(upload: Option<Upload>) -> Result<Upload, Error> {
    let missing = || kit::Fault::internal("datasets answered without an upload");
    Ok(upload.ok_or_else(missing)?)
}

/// Every size of a part is below the size of an upload, which is an `int64`.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn respond(upload: Upload) -> Response {
    let headers = headers(&upload);
    let answer = GetUploadResponse {
        upload: Some(upload),
    };
    let descriptor = proto::pool().get_message_by_name("fovea.datasets.v1.GetUploadResponse");
    let mut message =
        DynamicMessage::new(descriptor.expect("invariant: the contract has this message"));
    let written = message
        .transcode_from(&answer)
        .map_err(kit::Fault::internal);
    match written
        .map_err(Problem::from)
        .and_then(|()| transcode::respond(&message))
    {
        Ok(response) => (headers, response).into_response(),
        Err(problem) => problem.into_response(),
    }
}

fn headers(upload: &Upload) -> [(HeaderName, HeaderValue); 3] {
    [
        (UPLOAD_OFFSET, upload.received_bytes.into()),
        (UPLOAD_LENGTH, upload.size_bytes.into()),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ]
}

fn part(headers: &HeaderMap) -> Result<Part, Error> {
    let text = body::text(headers, CONTENT_RANGE)
        .ok_or_else(|| Error::RangeInvalid("the header is missing".to_owned()))?;
    let part = parse(text).map_err(|rule| Error::RangeInvalid(rule.to_owned()))?;
    match body::length(headers)? {
        Some(length) if length != part.length => Err(Error::RangeInvalid(format!(
            "the range has {} bytes, the body {length}",
            part.length
        ))),
        _ => Ok(part),
    }
}

fn parse(text: &str) -> Result<Part, &'static str> {
    let number = |text: &str| {
        let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        is_digits.then(|| text.parse::<u64>().ok()).flatten()
    };
    let range = text
        .strip_prefix("bytes ")
        .ok_or("the unit is not 'bytes'")?;
    let (range, size) = range.split_once('/').ok_or("the size is missing")?;
    let (first, last) = range.split_once('-').ok_or("the last byte is missing")?;
    let numbers = (number(first), number(last), number(size));
    let (Some(first), Some(last), Some(size)) = numbers else {
        return Err("a part of it is no number");
    };
    if first > last {
        return Err("the last byte is before the first");
    }
    if last >= size {
        return Err("the last byte is beyond the size");
    }
    Ok(Part {
        first,
        length: last - first + 1,
        size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_or_refused_with_the_rule() {
        let part = Part {
            first: 10,
            length: 90,
            size: 100,
        };
        assert_eq!(parse("bytes 10-99/100"), Ok(part));
        for (text, rule) in [
            ("items 0-1/2", "the unit is not 'bytes'"),
            ("bytes 0-1", "the size is missing"),
            ("bytes 0/2", "the last byte is missing"),
            ("bytes 0-+1/2", "a part of it is no number"),
            ("bytes 0-1/*", "a part of it is no number"),
            ("bytes 2-1/3", "the last byte is before the first"),
            ("bytes 0-3/3", "the last byte is beyond the size"),
        ] {
            assert_eq!(parse(text), Err(rule), "{text}");
        }
    }
}

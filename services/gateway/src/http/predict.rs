//! `Predict` with the picture itself as body, beside the JSON that the transcoder takes.

use axum::body::Body;
use http::HeaderMap;
use http::request::Parts;
use prost_reflect::{DynamicMessage, Kind, Value};

use super::{body, json, transcode};
use crate::contract::Method;
use crate::error::Error;
use crate::gateway::Gateway;

const PREDICT: &str = "fovea.endpoints.v1.EndpointService.Predict";
const PICTURE_FIELD: &str = "image";

/// Tells whether a call sends a picture as its body.
pub fn is_picture(method: &Method, headers: &HeaderMap) -> bool {
    is_predict(method) && body::media_type(headers).starts_with("image/")
}

/// Returns what a call's body may be, for a refusal.
pub fn media_types(method: &Method) -> &'static str {
    if is_predict(method) {
        "application/json or image/*"
    } else {
        "application/json"
    }
}

/// Returns how much JSON a call takes for the bytes it carries in base64: 4 letters for 3 bytes.
pub fn json_limit(gateway: &Gateway, method: &Method) -> u64 {
    let carries_bytes = method
        .input()
        .fields()
        .any(|field| field.kind() == Kind::Bytes);
    match carries_bytes {
        true => gateway.config.picture_bytes_max / 3 * 4 + gateway.config.json_bytes_max,
        false => 0,
    }
}

/// Reads the request: the picture from the body, everything else from path and query.
pub async fn read(
    gateway: &Gateway,
    method: &Method,
    values: &[(&str, String)],
    parts: &Parts,
    body: Body,
) -> Result<DynamicMessage, Error> {
    let mut message = transcode::from_path(method, values);
    let mut taken: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    taken.push(PICTURE_FIELD);
    let pairs = transcode::pairs(&parts.uri)?;
    json::read_query(&mut message, &pairs, &taken).map_err(Error::RequestInvalid)?;
    let config = &gateway.config;
    let limit = config.picture_bytes_max;
    let picture = body::whole(&parts.headers, body, limit, config.body_idle_timeout).await?;
    message.set_field_by_name(PICTURE_FIELD, Value::Bytes(picture));
    Ok(message)
}

fn is_predict(method: &Method) -> bool {
    method.descriptor.full_name() == PREDICT
}

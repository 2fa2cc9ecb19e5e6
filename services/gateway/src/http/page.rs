//! The page: a client of the public API, embedded in the binary.

use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::body;
use super::problem::Problem;
use crate::error::Error;

/// Nothing from elsewhere, and no script or style that is not a file of ours.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; \
    frame-ancestors 'none'";

const ASSETS: [(&str, &str, &str); 4] = [
    (
        "app.js",
        "text/javascript; charset=utf-8",
        include_str!("../ui/app.js"),
    ),
    (
        "chart.js",
        "text/javascript; charset=utf-8",
        include_str!("../ui/chart.js"),
    ),
    (
        "theme.css",
        "text/css; charset=utf-8",
        include_str!("../ui/theme.css"),
    ),
    ("mark.svg", "image/svg+xml", include_str!("../ui/mark.svg")),
];

/// `GET /`: the page.
pub async fn index(headers: HeaderMap) -> Response {
    let html = include_str!("../ui/index.html");
    embedded(&headers, "text/html; charset=utf-8", html)
}

/// `GET /assets/…`: what the page is made of.
pub async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => embedded(&headers, kind, text),
        None => {
            let path = format!("/assets/{name}");
            Problem::from(Error::RouteUnknown { path }).into_response()
        }
    }
}

fn embedded(headers: &HeaderMap, kind: &'static str, text: &'static str) -> Response {
    let etag = format!("\"{}\"", &blake3::hash(text.as_bytes()).to_hex()[..16]);
    let known = body::text(headers, IF_NONE_MATCH);
    let tag = HeaderValue::from_str(&etag).expect("invariant: hexadecimal digits");
    // Asked for each time: after an update page and parts must be of one build.
    let caching = [
        (ETAG, tag),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    if known == Some(etag.as_str()) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (
        caching,
        [(CONTENT_TYPE, HeaderValue::from_static(kind))],
        text,
    )
        .into_response()
}

/// What every answer says to browsers; an answer that says it itself is left alone.
pub fn protective_headers() -> [(HeaderName, HeaderValue); 4] {
    [
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            HeaderValue::from_static("same-origin"),
        ),
    ]
}

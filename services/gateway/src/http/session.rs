//! Signing a browser in and out: a key or a one-time token becomes an HttpOnly cookie.

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{Html, IntoResponse, Redirect, Response};
use http::header::{CACHE_CONTROL, SET_COOKIE};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode};
use proto::fovea::accounts::v1::{CreateSessionRequest, CreateSessionResponse};
use serde::Deserialize;

use super::body;
use super::json::{Place, Refusal};
use super::problem::Problem;
use crate::authenticate::{COOKIE_NAME, source};
use crate::domain;
use crate::error::Error;
use crate::gateway::{Gateway, Shared};

const BODY_BYTES_MAX: u64 = 4096;
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const LINK_REFUSED: &str = include_str!("../ui/link_refused.html");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SignIn {
    #[serde(default)]
    key: String,
    #[serde(default)]
    token: String,
}

/// `POST /v1/session`: makes a session for a key or a token.
pub async fn create(State(gateway): State<Shared>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let made = async {
        // A page of another site must not sign its visitor in as somebody else.
        if source(&parts).origin.is_some() && !domain::is_same_origin(source(&parts)) {
            return Err(Error::CrossOrigin);
        }
        let sign_in = read(&gateway, &parts, body).await?;
        let request = CreateSessionRequest {
            key_secret: sign_in.key,
            sign_in_token: sign_in.token,
        };
        gateway.authenticator.create_session(request, &parts).await
    };
    match made.await {
        Ok(session) => {
            let cookie = cookie(&session, gateway.authenticator.is_https(&parts));
            let headers = [(SET_COOKIE, cookie), (CACHE_CONTROL, NO_STORE)];
            (StatusCode::NO_CONTENT, headers).into_response()
        }
        Err(error) => Problem::from(error).into_response(),
    }
}

/// `DELETE /v1/session`: ends the session.
pub async fn end(State(gateway): State<Shared>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    match gateway.authenticator.end_session(&parts).await {
        Ok(()) => {
            let gone = CreateSessionResponse::default();
            let cookie = cookie(&gone, gateway.authenticator.is_https(&parts));
            (StatusCode::NO_CONTENT, [(SET_COOKIE, cookie)]).into_response()
        }
        Err(error) => Problem::from(error).into_response(),
    }
}

/// The query of a sign-in link.
#[derive(Deserialize)]
pub struct Link {
    #[serde(default)]
    token: String,
}

/// `GET /sign-in?token=…`: makes a session for the token of a one-time link and goes to the page.
pub async fn link(
    State(gateway): State<Shared>,
    Query(link): Query<Link>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    if parts.method == Method::HEAD {
        // Whoever only looks at a link must not use it up.
        return StatusCode::OK.into_response();
    }
    let request = CreateSessionRequest {
        key_secret: String::new(),
        sign_in_token: link.token,
    };
    match gateway.authenticator.create_session(request, &parts).await {
        Ok(session) => {
            let cookie = cookie(&session, gateway.authenticator.is_https(&parts));
            let headers = [(SET_COOKIE, cookie), (CACHE_CONTROL, NO_STORE)];
            (headers, Redirect::to("/")).into_response()
        }
        Err(Error::CredentialsInvalid) => {
            (StatusCode::UNAUTHORIZED, Html(LINK_REFUSED)).into_response()
        }
        Err(error) => Problem::from(error).into_response(),
    }
}

async fn read(gateway: &Gateway, parts: &Parts, body: Body) -> Result<SignIn, Error> {
    let kind = body::media_type(&parts.headers);
    if kind != "application/json" {
        return Err(Error::MediaTypeUnsupported {
            given: kind,
            expected: "application/json",
        });
    }
    let idle = gateway.config.body_idle_timeout;
    let bytes = body::whole(&parts.headers, body, BODY_BYTES_MAX, idle).await?;
    let sign_in: SignIn =
        serde_json::from_slice(&bytes).map_err(|error| Error::BodyMalformed(error.to_string()))?;
    if sign_in.key.is_empty() == sign_in.token.is_empty() {
        return Err(Error::RequestInvalid(vec![Refusal {
            place: Place::Pointer(String::new()),
            rule: "must have either 'key' or 'token'".to_owned(),
        }]));
    }
    Ok(sign_in)
}

/// Returns the cookie of a session; one without a secret removes the cookie.
fn cookie(session: &CreateSessionResponse, is_https: bool) -> HeaderValue {
    let secure = if is_https { "; Secure" } else { "" };
    let text = format!(
        "{COOKIE_NAME}={}; Path=/; HttpOnly; SameSite=Lax; Max-Age={}{secure}",
        session.session_secret,
        session.max_age_seconds.max(0),
    );
    let mut value =
        HeaderValue::try_from(text).expect("invariant: accounts makes secrets that fit a cookie");
    value.set_sensitive(true);
    value
}

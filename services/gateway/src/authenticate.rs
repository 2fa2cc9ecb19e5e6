//! Who is calling: a key in the `authorization` header or a session cookie, looked up in `accounts`
//! and believed for a short while.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, request::Parts};
use kit::auth::{Caller, Identity, Principal, Role};
use kit::cache::Cache;
use kit::service::{Channel, Context};
use kit::{Fault, Id, Kind};
use proto::fovea::accounts::v1 as accounts;
use proto::fovea::accounts::v1::account_service_client::AccountServiceClient;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::domain::{self, Source};
use crate::error::Error;

/// The name of the session cookie.
pub const COOKIE_NAME: &str = "fovea_session";
/// Pages of other sites can't send it without asking first; its value does not matter.
pub const OWN_HEADER: HeaderName = HeaderName::from_static("x-fovea-request");
/// How long a wrong secret is known to be wrong.
const REFUSAL_TTL: Duration = Duration::from_secs(5);
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// The longest secret that is looked up.
const SECRET_LENGTH_MAX: usize = 256;

/// The address that a request came from; the listener puts it into the extensions.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

/// Finds out who is calling.
#[derive(Debug)]
pub struct Authenticator {
    accounts: AccountServiceClient<Channel>,
    cache: Cache,
    identity_ttl: Duration,
    failures_max: u32,
    proxies: Vec<IpAddr>,
    is_https: bool,
}

/// What is kept of an answer.
#[derive(Debug, Serialize, Deserialize)]
enum Known {
    Nobody,
    Somebody(Identity),
}

enum Secret<'a> {
    Key(&'a str),
    Session(&'a str),
}

impl Authenticator {
    /// Returns the authenticator that asks this service.
    pub fn new(context: &Context, config: &Config, accounts: Channel) -> Self {
        Self {
            accounts: AccountServiceClient::new(accounts),
            cache: context.cache().clone(),
            identity_ttl: config.identity_ttl,
            failures_max: config.failures_per_minute,
            proxies: config.trusted_proxies.clone(),
            is_https: config.is_https(),
        }
    }

    /// Returns the caller of a request.
    pub async fn caller(&self, parts: &Parts) -> Result<Caller, Error> {
        let secret = match secret(&parts.headers)? {
            Secret::Key(secret) => secret,
            Secret::Session(secret) => {
                domain::admit_session(&parts.method, source(parts))?;
                secret
            }
        };
        let identity = self.look_up(secret, self.client(parts)).await?;
        Ok(Caller::new(identity))
    }

    /// Makes a session, or refuses and counts the failure.
    pub async fn create_session(
        &self,
        request: accounts::CreateSessionRequest,
        parts: &Parts,
    ) -> Result<accounts::CreateSessionResponse, Error> {
        let client = self.client(parts);
        self.refuse_guessing(client).await?;
        let made = self.accounts.clone().create_session(request).await;
        match made.map_err(|status| unavailable_or(status, "accounts")) {
            Ok(answer) => Ok(answer.into_inner()),
            Err(Error::Relayed(fault)) if is_refusal(&fault) => {
                self.count_failure(client).await;
                Err(Error::CredentialsInvalid)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the session of a request, if it has one.
    pub async fn end_session(&self, parts: &Parts) -> Result<(), Error> {
        let Some(secret) = session_cookie(&parts.headers) else {
            return Ok(());
        };
        domain::admit_session(&parts.method, source(parts))?;
        let request = accounts::EndSessionRequest {
            session_secret: secret.to_owned(),
        };
        let ended = self.accounts.clone().end_session(request).await;
        ended.map_err(|status| unavailable_or(status, "accounts"))?;
        self.cache.remove(&cache_key(secret)).await;
        Ok(())
    }

    /// Tells whether the request reached us by `https`, as far as we can know.
    pub fn is_https(&self, parts: &Parts) -> bool {
        let forwarded = parts.headers.get("x-forwarded-proto");
        self.is_https
            || (self.is_proxied(parts) && forwarded.is_some_and(|scheme| scheme == "https"))
    }

    /// Returns the address of the client, as a trusted proxy tells it.
    pub fn client(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = peer(parts)?;
        if !self.is_proxied(parts) {
            return Some(peer);
        }
        // The last entry that no proxy of ours has written: what stands before it anybody can claim.
        let entries = parts.headers.get_all("x-forwarded-for").iter();
        let entries: Vec<IpAddr> = entries
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|entry| entry.trim().parse().ok())
            .collect();
        let foreign = entries
            .iter()
            .rev()
            .find(|entry| !self.proxies.contains(entry));
        Some(foreign.copied().unwrap_or(peer))
    }

    fn is_proxied(&self, parts: &Parts) -> bool {
        peer(parts).is_some_and(|peer| self.proxies.contains(&peer))
    }

    async fn look_up(&self, secret: &str, client: Option<IpAddr>) -> Result<Identity, Error> {
        if secret.len() > SECRET_LENGTH_MAX {
            return Err(Error::CredentialsInvalid);
        }
        let key = cache_key(secret);
        let known = self.cache.get(&key).await;
        if let Some(known) = known.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
            return match known {
                Known::Somebody(identity) => Ok(identity),
                Known::Nobody => Err(Error::CredentialsInvalid),
            };
        }
        self.refuse_guessing(client).await?;
        let request = accounts::AuthenticateRequest {
            secret: secret.to_owned(),
        };
        let answer = self.accounts.clone().authenticate(request).await;
        match answer.map_err(|status| unavailable_or(status, "accounts")) {
            Ok(answer) => {
                let identity = identity(&answer.into_inner())?;
                self.keep(&key, &Known::Somebody(identity.clone()), self.identity_ttl)
                    .await;
                Ok(identity)
            }
            Err(Error::Relayed(fault)) if is_refusal(&fault) => {
                self.keep(&key, &Known::Nobody, REFUSAL_TTL).await;
                self.count_failure(client).await;
                Err(Error::CredentialsInvalid)
            }
            Err(error) => Err(error),
        }
    }

    async fn keep(&self, key: &str, known: &Known, ttl: Duration) {
        let bytes = serde_json::to_vec(known).expect("invariant: an identity is plain data");
        self.cache.set(key, &bytes, ttl).await;
    }

    async fn refuse_guessing(&self, client: Option<IpAddr>) -> Result<(), Error> {
        match client {
            Some(client) if self.cache.get(&blocked_key(client)).await.is_some() => {
                Err(Error::TooManyFailures {
                    limit: self.failures_max,
                    retry_after: FAILURE_WINDOW,
                })
            }
            _ => Ok(()),
        }
    }

    async fn count_failure(&self, client: Option<IpAddr>) {
        let Some(client) = client else { return };
        let group = domain::address_group(client);
        let count = self
            .cache
            .increment(&format!("failures:{group}"), FAILURE_WINDOW)
            .await;
        if count >= u64::from(self.failures_max) {
            let key = blocked_key(client);
            self.cache.set(&key, b"1", FAILURE_WINDOW).await;
        }
    }
}

/// Turns what a client got into a refusal; what no service said means that none answered.
pub fn unavailable_or(status: tonic::Status, service: &'static str) -> Error {
    use std::error::Error as _;
    let is_ours = !status.details().is_empty();
    let is_broken = status.source().is_some() || status.code() == tonic::Code::Unavailable;
    match status.code() {
        _ if is_ours => Error::Relayed(status.into()),
        tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => Error::ServiceTimeout {
            service,
            limit: kit::service::CALL_TIMEOUT,
        },
        _ if is_broken => Error::ServiceUnavailable(service),
        _ => Error::Relayed(status.into()),
    }
}

fn is_refusal(fault: &Fault) -> bool {
    matches!(
        fault.kind,
        Kind::Unauthenticated | Kind::Invalid | Kind::NotFound
    )
}

fn secret(headers: &HeaderMap) -> Result<Secret<'_>, Error> {
    if let Some(value) = headers.get(AUTHORIZATION) {
        let text = value.to_str().map_err(|_| Error::CredentialsMalformed)?;
        let (scheme, secret) = text.split_once(' ').ok_or(Error::CredentialsMalformed)?;
        let secret = secret.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || secret.is_empty() || secret.contains(' ') {
            return Err(Error::CredentialsMalformed);
        }
        return Ok(Secret::Key(secret));
    }
    let cookie = session_cookie(headers).map(Secret::Session);
    cookie.ok_or(Error::CredentialsMissing)
}

/// Returns the value of the session cookie. HTTP/2 may split cookies over several headers.
fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let values = headers.get_all(COOKIE).iter();
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == COOKIE_NAME && !value.is_empty())
        .map(|(_, value)| value)
}

/// Returns what a browser said about where a request comes from.
pub fn source(parts: &Parts) -> Source<'_> {
    let text = |name: HeaderName| parts.headers.get(name).and_then(|v| v.to_str().ok());
    Source {
        origin: text(ORIGIN),
        host: text(HOST).or_else(|| parts.uri.authority().map(|authority| authority.as_str())),
        has_own_header: parts.headers.contains_key(OWN_HEADER),
    }
}

fn peer(parts: &Parts) -> Option<IpAddr> {
    let peer = parts.extensions.get::<Peer>();
    peer.map(|Peer(address)| address.ip().to_canonical())
}

fn identity(answer: &accounts::AuthenticateResponse) -> Result<Identity, Fault> {
    let odd = |what: &str| Fault::internal(format!("accounts answered with an odd {what}"));
    let workspace: Id<_> = answer
        .workspace_id
        .parse()
        .map_err(|_| odd("workspace id"))?;
    let principal: Principal = answer.principal.parse().map_err(|_| odd("principal"))?;
    let role = match answer.role() {
        accounts::Role::Viewer => Role::Viewer,
        accounts::Role::Editor => Role::Editor,
        accounts::Role::Admin => Role::Admin,
        accounts::Role::Owner => Role::Owner,
        accounts::Role::Worker => Role::Worker,
        accounts::Role::Operator => Role::Operator,
        accounts::Role::Unspecified => return Err(odd("role")),
    };
    Ok(Identity::member(workspace, principal, role))
}

/// Secrets are no keys of a cache: whoever reads it must not learn any.
fn cache_key(secret: &str) -> String {
    let digest = kit::auth::hash_api_key(secret);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("identity:{hex}")
}

fn blocked_key(client: IpAddr) -> String {
    format!("blocked:{}", domain::address_group(client))
}

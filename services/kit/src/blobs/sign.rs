//! Signed paths, for stores that can't sign URLs themselves: the gateway serves them.

use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use http::Method;
use sha2::Sha256;

use super::BlobKey;
use crate::auth::Signer;
use crate::fault::{Fault, Kind};
use crate::time::Timestamp;

/// Where the gateway serves blobs; the key follows.
pub const BLOBS_PATH: &str = "/v1/blobs/";
const PURPOSE: &str = "fovea 2026 blob URLs";

/// What a signed URL allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// GET and HEAD, also of a range.
    Read,
    /// PUT of the content that the key names.
    Write {
        /// The most bytes that may come.
        max_bytes: u64,
    },
}

impl Access {
    /// Returns the HTTP method.
    pub fn method(self) -> Method {
        match self {
            Self::Read => Method::GET,
            Self::Write { .. } => Method::PUT,
        }
    }
}

/// Signs and verifies the paths of blobs.
#[derive(Clone)]
pub struct UrlSigner(Arc<[u8; 32]>);

impl UrlSigner {
    /// Returns the signer that everybody with this key shares.
    pub fn new(signer: &Signer) -> Self {
        Self(Arc::new(signer.derive(PURPOSE)))
    }

    /// Returns a path with its query.
    pub fn sign(&self, key: &BlobKey, access: Access, expires: Timestamp) -> String {
        // Whole seconds: the text is what is signed.
        let expires = expires.micros().div_euclid(1_000_000);
        let signature = self.mac(key, access, expires).finalize().into_bytes();
        let signature: String = signature.iter().map(|byte| format!("{byte:02x}")).collect();
        let limit = match access {
            Access::Read => String::new(),
            Access::Write { max_bytes } => format!("&max_bytes={max_bytes}"),
        };
        format!("{BLOBS_PATH}{key}?expires={expires}{limit}&signature={signature}")
    }

    /// Verifies a request for a signed path and returns the blob and what is allowed.
    ///
    /// `path` is all of the URL before the question mark, `query` what follows it.
    pub fn verify(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        now: Timestamp,
    ) -> Result<(BlobKey, Access), Fault> {
        let refuse =
            |message: &str| Fault::new(Kind::Denied, "URL_SIGNATURE_INVALID", "kit", message);
        let key = path.strip_prefix(BLOBS_PATH).unwrap_or(path);
        let key: BlobKey = key.parse().map_err(|_| refuse("the URL names no blob"))?;
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let expires: i64 = value("expires")
            .and_then(|seconds| seconds.parse().ok())
            .ok_or_else(|| refuse("the URL has no expiry"))?;
        let access = match *method {
            Method::GET | Method::HEAD => Access::Read,
            Method::PUT => Access::Write {
                max_bytes: value("max_bytes")
                    .and_then(|bytes| bytes.parse().ok())
                    .ok_or_else(|| refuse("the URL does not allow writing"))?,
            },
            _ => return Err(refuse("the URL allows GET, HEAD or PUT")),
        };
        let signature = value("signature")
            .and_then(from_hex)
            .ok_or_else(|| refuse("the URL has no signature"))?;
        // Constant-time, and before the expiry: what was not signed learns nothing.
        self.mac(&key, access, expires)
            .verify_slice(&signature)
            .map_err(|_| refuse("the URL was not signed by this fleet, or was changed"))?;
        if Timestamp::from_seconds(expires) < now {
            let message = format!("the URL ended at {}", Timestamp::from_seconds(expires));
            return Err(Fault::new(Kind::Denied, "URL_EXPIRED", "kit", message));
        }
        Ok((key, access))
    }

    fn mac(&self, key: &BlobKey, access: Access, expires: i64) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&*self.0).expect("invariant: HMAC takes any key");
        let max_bytes = match access {
            Access::Read => 0,
            Access::Write { max_bytes } => max_bytes,
        };
        mac.update(format!("{}\n{key}\n{expires}\n{max_bytes}", access.method()).as_bytes());
        mac
    }
}

impl std::fmt::Debug for UrlSigner {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("UrlSigner(***)")
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    (0..32)
        .map(|place| u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Id;
    use crate::time::Clock;

    fn signed(access: Access) -> (UrlSigner, BlobKey, String) {
        let urls = UrlSigner::new(&Signer::ephemeral(Clock::system()));
        let key = BlobKey::new("datasets", Id::from_bytes([7; 16]), blake3::hash(b"x"));
        let url = urls.sign(&key, access, Timestamp::from_seconds(1000));
        (urls, key, url)
    }

    fn verify(urls: &UrlSigner, method: Method, url: &str, now: i64) -> Result<Access, Fault> {
        let (path, query) = url.split_once('?').unwrap();
        let now = Timestamp::from_seconds(now);
        urls.verify(&method, path, query, now)
            .map(|(_, access)| access)
    }

    #[test]
    fn a_signed_url_reads_until_it_ends() {
        let (urls, key, url) = signed(Access::Read);
        assert!(
            url.starts_with(&format!("/v1/blobs/{key}?expires=1000&signature=")),
            "{url}"
        );
        assert_eq!(
            verify(&urls, Method::GET, &url, 1000).unwrap(),
            Access::Read
        );
        assert_eq!(
            verify(&urls, Method::HEAD, &url, 999).unwrap(),
            Access::Read
        );
        assert!(
            verify(&urls, Method::GET, &url, 1001)
                .unwrap_err()
                .is("URL_EXPIRED")
        );
    }

    #[test]
    fn a_signed_url_binds_method_key_expiry_and_size() {
        let write = Access::Write { max_bytes: 10 };
        let (urls, _, url) = signed(write);
        assert_eq!(verify(&urls, Method::PUT, &url, 1).unwrap(), write);
        let other = Id::<crate::id::Workspace>::from_bytes([8; 16]).to_string();
        let mine = Id::<crate::id::Workspace>::from_bytes([7; 16]).to_string();
        for (method, url) in [
            (Method::GET, url.clone()),
            (Method::DELETE, url.clone()),
            (Method::PUT, url.replace("max_bytes=10", "max_bytes=11")),
            (Method::PUT, url.replace("expires=1000", "expires=1001")),
            (Method::PUT, url.replace(&mine, &other)),
            (Method::PUT, url.replace("datasets", "projects")),
            (Method::PUT, url.replace("&signature=", "&signature=0")),
        ] {
            let fault = verify(&urls, method, &url, 1).unwrap_err();
            assert!(fault.is("URL_SIGNATURE_INVALID"), "{url}");
        }
        let (read_urls, _, read) = signed(Access::Read);
        assert!(verify(&read_urls, Method::PUT, &read, 1).is_err());
        assert!(verify(&urls, Method::GET, &read, 1).is_err());
    }
}

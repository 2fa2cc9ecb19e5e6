//! Secrets: made here, shown once, kept as hashes. What one begins with tells what it is for.

use kit::auth::{API_KEY_PREFIX, ApiKey, hash_api_key};
use kit::config::Secret;

/// What the secret of a browser session begins with.
const SESSION_PREFIX: &str = "fvs_";
/// What a one-time sign-in token begins with.
const TOKEN_PREFIX: &str = "fvt_";
/// No secret of ours is longer.
const LENGTH_MAX: usize = 100;

/// What the store keeps of a secret.
pub type Hash = [u8; 32];

/// What a presented secret claims to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presented {
    Key(Hash),
    Session(Hash),
}

/// Returns a new browser session's secret and its hash.
pub fn session() -> (Secret<String>, Hash) {
    generate(SESSION_PREFIX)
}

/// Returns a new sign-in token and its hash.
pub fn token() -> (Secret<String>, Hash) {
    generate(TOKEN_PREFIX)
}

/// Returns what a secret claims to be, as it came in a header or a cookie; none where it is none of ours.
pub fn read(text: &str) -> Option<Presented> {
    let text = text.trim();
    let text = match text.split_once(' ') {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => rest.trim(),
        _ => text,
    };
    if text.len() > LENGTH_MAX {
        None
    } else if text.starts_with(SESSION_PREFIX) {
        Some(Presented::Session(hash_api_key(text)))
    } else if text.starts_with(API_KEY_PREFIX) {
        Some(Presented::Key(hash_api_key(text)))
    } else {
        None
    }
}

/// Returns the hash of what claims to be a sign-in token.
pub fn read_token(text: &str) -> Option<Hash> {
    let is_token = text.len() <= LENGTH_MAX && text.starts_with(TOKEN_PREFIX);
    is_token.then(|| hash_api_key(text))
}

/// The noise of an API key behind another prefix.
fn generate(prefix: &str) -> (Secret<String>, Hash) {
    let key = ApiKey::generate();
    let noise = &key.secret.expose()[API_KEY_PREFIX.len()..];
    let text = format!("{prefix}{noise}");
    let hash = hash_api_key(&text);
    (Secret::new(text), hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_tells_what_it_is_for() {
        let key = ApiKey::generate();
        assert_eq!(read(key.secret.expose()), Some(Presented::Key(key.hash)));
        let bearer = format!("Bearer {}", key.secret.expose());
        assert_eq!(read(&bearer), Some(Presented::Key(key.hash)));
        let (session, hash) = session();
        assert_eq!(read(session.expose()), Some(Presented::Session(hash)));
        let (token, hash) = token();
        assert_eq!(read(token.expose()), None, "a token only makes a session");
        assert_eq!(read_token(token.expose()), Some(hash));
        assert_eq!(read_token(session.expose()), None);
        for text in ["", "Bearer ", "hunter2", &format!("fv_{}", "x".repeat(200))] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}

//! API keys: shown once, kept as a hash.

use crate::config::Secret;

/// What every key begins with, so that scanners can find a leaked one.
pub const API_KEY_PREFIX: &str = "fv_";
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 40 characters of 5 bits: 200 bits, beyond any guessing.
const LENGTH: usize = 40;
const CONTEXT: &str = "fovea 2026 API key";

/// A new API key and what is kept of it.
pub struct ApiKey {
    /// The key itself, for its owner's eyes.
    pub secret: Secret<String>,
    /// What the store keeps.
    pub hash: [u8; 32],
    /// The first characters, by which the owner tells keys apart.
    pub hint: String,
}

impl ApiKey {
    /// Makes a key.
    pub fn generate() -> Self {
        let noise: [u8; LENGTH] = rand::random();
        let letters = noise.map(|byte| ALPHABET[usize::from(byte & 31)]);
        let text = letters
            .iter()
            .fold(API_KEY_PREFIX.to_owned(), |mut text, letter| {
                text.push(char::from(*letter));
                text
            });
        let hash = hash_api_key(&text);
        let hint = text[..API_KEY_PREFIX.len() + 4].to_owned();
        Self {
            secret: Secret::new(text),
            hash,
            hint,
        }
    }
}

/// Returns what the store keeps of a key. A fast hash will do: nobody can guess 200 bits.
pub fn hash_api_key(text: &str) -> [u8; 32] {
    blake3::derive_key(CONTEXT, text.as_bytes())
}

/// Tells whether a key is the one of this hash, in a time that says nothing about it.
pub fn matches_api_key(text: &str, hash: &[u8; 32]) -> bool {
    // The comparison of `blake3::Hash` is constant-time.
    blake3::Hash::from_bytes(hash_api_key(text)) == blake3::Hash::from_bytes(*hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_matches_its_hash_and_no_other() {
        let (one, other) = (ApiKey::generate(), ApiKey::generate());
        let text = one.secret.expose();
        assert!(text.starts_with("fv_") && text.len() == 43);
        assert!(matches_api_key(text, &one.hash));
        assert!(!matches_api_key(text, &other.hash));
        assert!(!matches_api_key("", &one.hash));
    }
}

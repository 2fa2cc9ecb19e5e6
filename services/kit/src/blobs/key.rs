//! The names of blobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::SERVICES;
use crate::id::{Id, Workspace};

/// Where a blob is: `<service>/<workspace>/<blake3>`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobKey {
    service: String,
    workspace: Id<Workspace>,
    hash: [u8; 32],
}

/// A blob that is there: its key and how large it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// Where it is.
    pub key: BlobKey,
    /// How large it is.
    pub size_bytes: u64,
}

impl BlobKey {
    /// Returns the key of this content.
    pub fn new(service: &str, workspace: Id<Workspace>, hash: blake3::Hash) -> Self {
        Self {
            service: service.to_owned(),
            workspace,
            hash: *hash.as_bytes(),
        }
    }

    /// Returns the service that owns the blob.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Returns the workspace that owns the blob.
    pub fn workspace(&self) -> Id<Workspace> {
        self.workspace
    }

    /// Returns the BLAKE3 hash of the content.
    pub fn hash(&self) -> blake3::Hash {
        blake3::Hash::from_bytes(self.hash)
    }
}

impl fmt::Display for BlobKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}/{}/{}",
            self.service,
            self.workspace,
            self.hash().to_hex()
        )
    }
}

impl fmt::Debug for BlobKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Why a text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not the key of a blob: expected <service>/<workspace>/<64 hexadecimal digits>")]
pub struct ParseError(String);

impl FromStr for BlobKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let refuse = || ParseError(text.chars().take(140).collect());
        let mut parts = text.split('/');
        let (Some(service), Some(workspace), Some(hash), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refuse());
        };
        let hash = blake3::Hash::from_hex(hash).map_err(|_| refuse())?;
        let workspace = workspace.parse().map_err(|_| refuse())?;
        let key = Self::new(service, workspace, hash);
        // One key has one text: no upper-case digits, no service that isn't one.
        if SERVICES.contains(&service) && key.to_string() == text {
            Ok(key)
        } else {
            Err(refuse())
        }
    }
}

impl Serialize for BlobKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BlobKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_nothing_else_is_one() {
        let key = BlobKey::new("datasets", Id::from_bytes([7; 16]), blake3::hash(b"x"));
        let text = key.to_string();
        assert_eq!(text.parse(), Ok(key));
        for bad in [
            "",
            "datasets/../x",
            &text.to_uppercase(),
            &text.replace("datasets", "nobody"),
            &format!("{text}/"),
            &text[..text.len() - 1],
        ] {
            assert!(bad.parse::<BlobKey>().is_err(), "{bad}");
        }
    }
}

//! The key pair behind identities, and the compact form in which they travel:
//! `v1.<claims>.<signature>`, both parts in URL-safe base64.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use super::Identity;
use crate::fault::{Fault, Kind};
use crate::time::{Clock, Timestamp};

/// How long a signed identity is valid.
pub const IDENTITY_TTL: Duration = Duration::from_secs(60);
/// How far the clocks of two machines may be apart.
const CLOCK_SLACK: Duration = Duration::from_secs(5);
/// The longest token that is looked at.
const TOKEN_LENGTH_MAX: usize = 4096;
const VERSION: &str = "v1";

/// Signs identities; whoever has it is trusted by the whole fleet.
#[derive(Clone)]
pub struct Signer {
    key: Arc<SigningKey>,
    clock: Clock,
}

/// Verifies identities, offline.
#[derive(Clone)]
pub struct Verifier {
    key: VerifyingKey,
    clock: Clock,
}

impl Signer {
    /// Reads the key pair, or makes it where there is none. Of several processes that start at
    /// once one makes it and the others read it.
    pub fn open(path: &Path, clock: Clock) -> Result<Self, Fault> {
        let failed = |error: std::io::Error| Fault::internal(error).with("path", path.display());
        if !path.exists() {
            create(path).map_err(failed)?;
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let seed = BASE64_URL_SAFE_NO_PAD.decode(text.trim()).ok();
        let seed: [u8; 32] = seed.and_then(|seed| seed.try_into().ok()).ok_or_else(|| {
            let message = format!("{}: is not a key of 32 bytes in base64", path.display());
            Fault::new(Kind::Invalid, "IDENTITY_KEY_INVALID", "kit", message)
        })?;
        Ok(Self {
            key: Arc::new(SigningKey::from_bytes(&seed)),
            clock,
        })
    }

    /// Returns a signer with a key of its own; for tests.
    pub fn ephemeral(clock: Clock) -> Self {
        Self {
            key: Arc::new(SigningKey::from_bytes(&rand::random())),
            clock,
        }
    }

    /// Returns who can verify what this signs.
    pub fn verifier(&self) -> Verifier {
        Verifier {
            key: self.key.verifying_key(),
            clock: self.clock.clone(),
        }
    }

    /// Signs an identity for the next minute.
    pub fn sign(&self, identity: &Identity) -> String {
        let expires = self.clock.now() + IDENTITY_TTL;
        let identity = Identity {
            expires,
            ..identity.clone()
        };
        let claims = serde_json::to_vec(&identity).expect("invariant: an identity is plain data");
        let signed = format!("{VERSION}.{}", BASE64_URL_SAFE_NO_PAD.encode(claims));
        let signature = self.key.sign(signed.as_bytes());
        format!(
            "{signed}.{}",
            BASE64_URL_SAFE_NO_PAD.encode(signature.to_bytes())
        )
    }

    /// Returns a key for another use that can't be traced back to this one.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, self.key.as_bytes())
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Signer(***)")
    }
}

impl Verifier {
    /// Returns the identity in a token, unless it was tampered with or has ended.
    pub fn verify(&self, token: &str) -> Result<Identity, Fault> {
        let refuse =
            |message: &str| Fault::new(Kind::Unauthenticated, "IDENTITY_INVALID", "kit", message);
        if token.len() > TOKEN_LENGTH_MAX {
            return Err(refuse("the identity is too long"));
        }
        let (signed, signature) = token
            .rsplit_once('.')
            .ok_or_else(|| refuse("the identity has no signature"))?;
        let claims = signed
            .strip_prefix(VERSION)
            .and_then(|rest| rest.strip_prefix('.'))
            .ok_or_else(|| refuse("the identity is of an unknown version"))?;
        let signature = BASE64_URL_SAFE_NO_PAD
            .decode(signature)
            .ok()
            .and_then(|bytes| Signature::from_slice(&bytes).ok())
            .ok_or_else(|| refuse("the identity's signature is malformed"))?;
        self.key
            .verify_strict(signed.as_bytes(), &signature)
            .map_err(|_| refuse("the identity was not signed by this fleet"))?;
        let claims = BASE64_URL_SAFE_NO_PAD
            .decode(claims)
            .map_err(|_| refuse("the identity is malformed"))?;
        let identity: Identity =
            serde_json::from_slice(&claims).map_err(|_| refuse("the identity is malformed"))?;
        if identity.expires + CLOCK_SLACK < self.now() {
            return Err(Fault::new(
                Kind::Unauthenticated,
                "IDENTITY_EXPIRED",
                "kit",
                format!("the identity ended at {}", identity.expires),
            ));
        }
        Ok(identity)
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Verifier")
    }
}

/// Writes a new key beside its place and links it there, so that no one ever reads half a key
/// and the first of several writers wins.
fn create(path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let draft = path.with_extension(format!("{:08x}.new", rand::random::<u32>()));
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    let seed: [u8; 32] = rand::random();
    writeln!(file, "{}", BASE64_URL_SAFE_NO_PAD.encode(seed))?;
    file.sync_all()?;
    let linked = match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    };
    fs::remove_file(&draft)?;
    linked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::{Principal, Role};
    use crate::id::Id;

    fn identity(now: Timestamp) -> Identity {
        Identity::member(Id::new(now), Principal::User(Id::new(now)), Role::Editor)
    }

    #[test]
    fn a_signed_identity_is_what_was_signed() {
        let clock = Clock::manual(Timestamp::from_seconds(1000));
        let signer = Signer::ephemeral(clock.clone());
        let identity = Identity {
            scopes: vec!["runs:read".to_owned()],
            on_behalf_of: Some(Box::new(identity(clock.now()))),
            ..Identity::service("billing")
        };
        let verified = signer.verifier().verify(&signer.sign(&identity)).unwrap();
        let expires = Timestamp::from_seconds(1060);
        assert_eq!(
            verified,
            Identity {
                expires,
                ..identity
            }
        );
    }

    #[test]
    fn an_identity_that_was_tampered_with_is_refused() {
        let clock = Clock::manual(Timestamp::from_seconds(1000));
        let signer = Signer::ephemeral(clock.clone());
        let token = signer.sign(&identity(clock.now()));
        for place in 0..token.len() {
            let mut bytes = token.clone().into_bytes();
            bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
            let tampered = String::from_utf8(bytes).unwrap();
            let fault = signer.verifier().verify(&tampered).unwrap_err();
            assert_eq!(fault.kind, Kind::Unauthenticated, "{tampered}");
        }
        let foreign = Signer::ephemeral(clock).verifier();
        assert!(foreign.verify(&token).unwrap_err().is("IDENTITY_INVALID"));
        assert!(signer.verifier().verify("").is_err());
    }

    #[test]
    fn an_identity_ends_after_a_minute() {
        let clock = Clock::manual(Timestamp::from_seconds(1000));
        let signer = Signer::ephemeral(clock.clone());
        let token = signer.sign(&identity(clock.now()));
        clock.advance(IDENTITY_TTL + CLOCK_SLACK);
        assert!(signer.verifier().verify(&token).is_ok());
        clock.advance(Duration::from_micros(1));
        assert!(
            signer
                .verifier()
                .verify(&token)
                .unwrap_err()
                .is("IDENTITY_EXPIRED")
        );
    }

    #[test]
    fn of_processes_that_start_at_once_all_have_the_same_key() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data/identity.key");
        let open = || Signer::open(&path, Clock::system()).unwrap().key.to_bytes();
        let keys = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}

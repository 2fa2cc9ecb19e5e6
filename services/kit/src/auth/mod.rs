//! Who is calling: an identity that one service signs and every other verifies offline.
//!
//! The gateway authenticates people and keys and signs a 60-second [`Identity`] into the
//! metadata; services sign their own. A service reads it with [`caller`] and asks it for what
//! the call needs.

mod caller;
mod identity;
mod key;
mod layer;
mod secret;

pub use caller::{Caller, OnBehalfOf, act_for, caller};
pub use identity::{Identity, Principal, Role};
pub use key::{IDENTITY_TTL, Signer, Verifier};
pub use layer::{AuthLayer, AuthService, HEADER, SignLayer, SignService};
pub use secret::{API_KEY_PREFIX, ApiKey, hash_api_key, matches_api_key};

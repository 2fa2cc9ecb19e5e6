//! One function per thing billing can be asked.

/// The longest idempotency key, in characters.
pub const KEY_CHARACTERS_MAX: usize = 200;

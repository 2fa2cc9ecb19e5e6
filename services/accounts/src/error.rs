//! Every way accounts says no. `errors.md` tells people what each reason means.

use kit::auth::Role;
use kit::fault::{Fault, Kind};
use kit::id::{Id, Key, User, Workspace};
use kit::store;

use crate::domain::{EMAIL_CHARACTERS_MAX, KEYS_MAX, MEMBERS_MAX, NAME_CHARACTERS_MAX};

const DOMAIN: &str = "accounts";

/// A refusal, or a failure from below.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("nobody has this key or session")]
    SecretUnknown,
    #[error("the key {0} is revoked")]
    KeyRevoked(Id<Key>),
    #[error("the session has ended: sign in again")]
    SessionEnded,
    #[error("the sign-in token was used or is too old: ask for a new one")]
    TokenSpent,
    #[error("exactly one of key_secret and sign_in_token must be set")]
    CredentialAmbiguous,
    #[error(
        "slug: '{0}' is no slug: expected 3 to 40 lower-case letters, digits and dashes, a letter or digit at both ends"
    )]
    SlugInvalid(String),
    #[error("slug: '{0}' is taken")]
    SlugTaken(String),
    #[error("{field}: must have 1 to {NAME_CHARACTERS_MAX} characters and none that can't be seen")]
    NameInvalid { field: &'static str },
    #[error("{field}: must be an e-mail address of at most {EMAIL_CHARACTERS_MAX} characters")]
    EmailInvalid { field: &'static str },
    #[error("role: {rule}")]
    RoleInvalid { rule: String },
    #[error("plan: must be free, pro or enterprise")]
    PlanInvalid,
    #[error("{actor} can't give, change or take away the role {role}")]
    RoleEscalation { actor: Role, role: Role },
    #[error("the last owner can be neither demoted nor removed: make another owner first")]
    LastOwner,
    #[error("nobody could manage the workspace without this key: make another owner's key first")]
    LastOwnerKey,
    #[error(
        "nobody could operate the installation without this key: make another operator's key first"
    )]
    LastOperatorKey,
    #[error("email: the workspace has a member with this address")]
    MemberExists,
    #[error("member {0} does not exist")]
    MemberNotFound(Id<User>),
    #[error("key {0} does not exist")]
    KeyNotFound(Id<Key>),
    #[error("workspace {0} does not exist")]
    WorkspaceNotFound(Id<Workspace>),
    #[error("the workspace has {MEMBERS_MAX} members, which is the limit")]
    MembersExhausted,
    #[error("the workspace has {KEYS_MAX} keys, which is the limit: revoke some")]
    KeysExhausted,
    #[error(transparent)]
    Store(#[from] store::Error),
    #[error(transparent)]
    Other(#[from] Fault),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let refuse = |kind, reason| Fault::new(kind, reason, DOMAIN, message.clone());
        let field = |kind, reason, name: &str| {
            let rule = message
                .strip_prefix(name)
                .and_then(|rest| rest.strip_prefix(": "));
            refuse(kind, reason).violation(name, rule.unwrap_or(&message))
        };
        match error {
            Error::SecretUnknown => refuse(Kind::Unauthenticated, "SECRET_UNKNOWN"),
            Error::KeyRevoked(key) => {
                refuse(Kind::Unauthenticated, "KEY_REVOKED").with("key_id", key)
            }
            Error::SessionEnded => refuse(Kind::Unauthenticated, "SESSION_ENDED"),
            Error::TokenSpent => refuse(Kind::Unauthenticated, "TOKEN_SPENT"),
            Error::CredentialAmbiguous => refuse(Kind::Invalid, "CREDENTIAL_AMBIGUOUS"),
            Error::SlugInvalid(_) => field(Kind::Invalid, "SLUG_INVALID", "slug"),
            Error::SlugTaken(_) => field(Kind::Conflict, "SLUG_TAKEN", "slug"),
            Error::NameInvalid { field: name } => field(Kind::Invalid, "NAME_INVALID", name),
            Error::EmailInvalid { field: name } => field(Kind::Invalid, "EMAIL_INVALID", name),
            Error::RoleInvalid { .. } => field(Kind::Invalid, "ROLE_INVALID", "role"),
            Error::PlanInvalid => field(Kind::Invalid, "PLAN_INVALID", "plan"),
            Error::RoleEscalation { actor, role } => refuse(Kind::Denied, "ROLE_ESCALATION")
                .with("caller_role", actor)
                .with("role", role),
            Error::LastOwner => refuse(Kind::Precondition, "LAST_OWNER"),
            Error::LastOwnerKey => refuse(Kind::Precondition, "LAST_OWNER_KEY"),
            Error::LastOperatorKey => refuse(Kind::Precondition, "LAST_OPERATOR_KEY"),
            Error::MemberExists => field(Kind::Conflict, "MEMBER_EXISTS", "email"),
            Error::MemberNotFound(user) => {
                refuse(Kind::NotFound, "MEMBER_NOT_FOUND").with("user_id", user)
            }
            Error::KeyNotFound(key) => refuse(Kind::NotFound, "KEY_NOT_FOUND").with("key_id", key),
            Error::WorkspaceNotFound(workspace) => {
                refuse(Kind::NotFound, "WORKSPACE_NOT_FOUND").with("workspace_id", workspace)
            }
            Error::MembersExhausted => refuse(Kind::Exhausted, "MEMBERS_EXHAUSTED"),
            Error::KeysExhausted => refuse(Kind::Exhausted, "KEYS_EXHAUSTED"),
            Error::Store(error) => error.into(),
            Error::Other(fault) => fault,
        }
    }
}

impl From<Error> for tonic::Status {
    fn from(error: Error) -> Self {
        Fault::from(error).into()
    }
}

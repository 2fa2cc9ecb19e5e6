//! What an identity says.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::{Id, Key, User, Worker, Workspace};
use crate::time::Timestamp;

/// Who calls, for which workspace, and what it may do; valid for a minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The workspace it acts in; none for services, and for people who have not chosen one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Id<Workspace>>,
    /// Who it is.
    pub principal: Principal,
    /// What it may do.
    pub role: Role,
    /// What a key was narrowed to, such as `runs:read`; empty means all that the role may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Whose call a service passes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_behalf_of: Option<Box<Identity>>,
    /// When it ends; the signer sets it.
    pub expires: Timestamp,
}

impl Identity {
    /// Returns the identity of a service itself.
    pub fn service(name: &str) -> Self {
        Self {
            workspace: None,
            principal: Principal::Service(name.to_owned()),
            role: Role::Service,
            scopes: Vec::new(),
            on_behalf_of: None,
            expires: Timestamp::EPOCH,
        }
    }

    /// Returns the identity of a member of a workspace.
    pub fn member(workspace: Id<Workspace>, principal: Principal, role: Role) -> Self {
        Self {
            workspace: Some(workspace),
            principal,
            role,
            scopes: Vec::new(),
            on_behalf_of: None,
            expires: Timestamp::EPOCH,
        }
    }
}

/// Somebody or something that can call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    /// A person.
    User(Id<User>),
    /// An API key.
    Key(Id<Key>),
    /// A machine that trains.
    Worker(Id<Worker>),
    /// One of our own services.
    Service(String),
}

impl fmt::Display for Principal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(id) => id.fmt(out),
            Self::Key(id) => id.fmt(out),
            Self::Worker(id) => id.fmt(out),
            Self::Service(name) => write!(out, "service:{name}"),
        }
    }
}

impl FromStr for Principal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(name) = text.strip_prefix("service:") {
            return Ok(Self::Service(name.to_owned()));
        }
        let user = text.parse().map(Self::User);
        let key = || text.parse().map(Self::Key);
        let worker = || text.parse().map(Self::Worker);
        user.or_else(|_| key()).or_else(|_| worker()).map_err(|_| {
            format!("'{text}' is no principal: expected usr_…, key_…, wrk_… or service:…")
        })
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// What a principal may do. The first five are a ladder within a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May look.
    Viewer,
    /// May also label.
    Annotator,
    /// May also change data, train and deploy.
    Editor,
    /// May also manage members, keys and limits.
    Admin,
    /// May also close the workspace and pay.
    Owner,
    /// Runs this installation; stands above every workspace's ladder.
    Operator,
    /// A machine that trains; on no ladder.
    Worker,
    /// One of our own services.
    Service,
}

impl Role {
    /// Returns the role's place on the ladder of a workspace.
    const fn rank(self) -> Option<u8> {
        match self {
            Self::Viewer => Some(0),
            Self::Annotator => Some(1),
            Self::Editor => Some(2),
            Self::Admin => Some(3),
            Self::Owner => Some(4),
            Self::Operator => Some(5),
            Self::Worker | Self::Service => None,
        }
    }

    /// Tells whether who has this role may do what needs `other`.
    pub const fn covers(self, other: Self) -> bool {
        match (self.rank(), other.rank()) {
            (Some(mine), Some(needed)) => mine >= needed,
            (None, _) | (_, None) => self as u8 == other as u8,
        }
    }

    /// Returns the role's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Annotator => "annotator",
            Self::Editor => "editor",
            Self::Admin => "admin",
            Self::Owner => "owner",
            Self::Operator => "operator",
            Self::Worker => "worker",
            Self::Service => "service",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        use Role::{Admin, Annotator, Editor, Operator, Owner, Service, Viewer, Worker};
        let all = [
            Viewer, Annotator, Editor, Admin, Owner, Operator, Worker, Service,
        ];
        let found = all.into_iter().find(|role| role.name() == text);
        found.ok_or_else(|| format!("'{text}' is no role: expected viewer, annotator, editor, admin, owner, operator, worker or service"))
    }
}

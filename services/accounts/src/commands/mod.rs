//! One function per thing accounts can be asked: load, decide, save the change with its facts and its line in the audit
//! log, commit.

mod members;
mod sign_in;
mod start;
mod workspaces;

use std::sync::Arc;

use kit::auth::{ApiKey, Caller, Principal, Role};
use kit::config::Secret;
use kit::id::{Id, User, Workspace as WorkspaceId};
use kit::store::{Store, Tx};
use proto::fovea::accounts::v1 as wire;

use crate::config::Config;
use crate::domain::{Actor, Key, Plan};
use crate::error::Error;
use crate::store::{self, Credential};
use crate::tasks::LastUsed;

pub use sign_in::SignIn;
pub use start::ADMIN_KEY_FILE;
pub use workspaces::NewWorkspace;

/// Does what accounts is asked. Clones share everything.
#[derive(Clone)]
pub struct Accounts {
    pub(crate) store: Store,
    pub(crate) config: Arc<Config>,
    pub(crate) default_plan: Plan,
    pub(crate) last_used: Arc<LastUsed>,
}

/// A key that was just made, with the only copy of its secret.
pub struct NewKey {
    pub key: Key,
    pub secret: Secret<String>,
}

impl Accounts {
    /// Returns accounts on this store.
    pub fn new(store: Store, config: Config, default_plan: Plan) -> Self {
        Self {
            store,
            config: Arc::new(config),
            default_plan,
            last_used: Arc::default(),
        }
    }
}

/// Returns who acts, with what they may do at this moment: an identity is a minute old at most, a key may have been
/// revoked since.
async fn actor(tx: &Tx, caller: &Caller) -> Result<Actor, Error> {
    let principal = caller.principal().clone();
    let workspace = caller.workspace()?;
    let (user, role) = match &principal {
        Principal::Key(id) => {
            let credential = store::credential_by_key(tx, *id).await?;
            let credential = credential.filter(|found| found.key.workspace == workspace);
            let (key, role) = valid(credential)?;
            (Some(key.user), role)
        }
        Principal::User(id) => {
            let member = store::member(tx, workspace, *id).await?;
            (Some(*id), member.ok_or(Error::SecretUnknown)?.role)
        }
        Principal::Worker(_) | Principal::Service(_) => (None, caller.party().role),
    };
    Ok(Actor {
        principal,
        workspace,
        user,
        role,
    })
}

/// As `actor`, for what needs a role at this moment.
async fn actor_with(tx: &Tx, caller: &Caller, role: Role) -> Result<Actor, Error> {
    caller.require(role)?;
    let actor = actor(tx, caller).await?;
    if actor.role.covers(role) {
        Ok(actor)
    } else {
        Err(Error::RoleEscalation {
            actor: actor.role,
            role,
        })
    }
}

/// Returns a credential's key and what it may do, unless it is worthless.
fn valid(credential: Option<Credential>) -> Result<(Key, Role), Error> {
    let credential = credential.ok_or(Error::SecretUnknown)?;
    if credential.key.revoked_at.is_some() {
        return Err(Error::KeyRevoked(credential.key.id));
    }
    let role = credential.role().ok_or(Error::SecretUnknown)?;
    Ok((credential.key, role))
}

/// Makes a key, with its fact.
async fn make_key(
    tx: &Tx,
    workspace: Id<WorkspaceId>,
    user: Id<User>,
    name: &str,
    role: Role,
    secret: ApiKey,
) -> Result<NewKey, Error> {
    let key = Key {
        id: Id::new(tx.now()),
        workspace,
        user,
        name: name.to_owned(),
        role,
        hint: secret.hint,
        created_at: tx.now(),
        revoked_at: None,
        last_used_at: None,
    };
    store::add_key(tx, &key, &secret.hash).await?;
    let fact = wire::KeyCreated {
        key_id: key.id.to_string(),
        role: role_to_wire(role).into(),
    };
    tx.tell(Some(workspace), key.id, &fact).await?;
    Ok(NewKey {
        key,
        secret: secret.secret,
    })
}

/// Makes a key worthless, with its fact.
async fn drop_key(tx: &Tx, key: &Key) -> Result<(), Error> {
    store::revoke_key(tx, key.id).await?;
    let fact = wire::KeyRevoked {
        key_id: key.id.to_string(),
    };
    tx.tell(Some(key.workspace), key.id, &fact).await?;
    Ok(())
}

/// Returns what the wire calls a role.
pub fn role_to_wire(role: Role) -> wire::Role {
    match role {
        // Nobody is given this role yet: it may look, and that is what the wire can say.
        Role::Viewer | Role::Annotator => wire::Role::Viewer,
        Role::Editor => wire::Role::Editor,
        Role::Admin => wire::Role::Admin,
        Role::Owner => wire::Role::Owner,
        Role::Worker => wire::Role::Worker,
        Role::Operator => wire::Role::Operator,
        Role::Service => wire::Role::Unspecified,
    }
}

/// Returns what the wire calls a plan.
pub fn plan_to_wire(plan: Plan) -> wire::Plan {
    match plan {
        Plan::Free => wire::Plan::Free,
        Plan::Pro => wire::Plan::Pro,
        Plan::Enterprise => wire::Plan::Enterprise,
    }
}

//! People of a workspace, and their keys.

use kit::auth::{ApiKey, Caller, Role};
use kit::id::{Id, Key as KeyId, User};
use proto::fovea::accounts::v1 as wire;

use super::{Accounts, NewKey, actor, actor_with, drop_key, make_key, role_to_wire};
use crate::domain::{
    KEYS_MAX, Key, MEMBERS_MAX, Member, check_grant, check_member_role, check_remove, check_revoke,
    check_set_role, clean_email, clean_name,
};
use crate::error::Error;
use crate::store;

impl Accounts {
    /// Adds a person to the caller's workspace, with a first key of the same role.
    pub async fn add_member(
        &self,
        caller: &Caller,
        email: &str,
        name: &str,
        role: Role,
    ) -> Result<(Member, NewKey), Error> {
        check_member_role(role)?;
        let (email, name) = (&clean_email("email", email)?, &clean_name("name", name)?);
        self.store
            .write(|tx| async move {
                let actor = actor_with(&tx, caller, Role::Admin).await?;
                check_grant(actor.role, role)?;
                if store::member_count(&tx, actor.workspace).await? >= MEMBERS_MAX {
                    return Err(Error::MembersExhausted);
                }
                if store::live_key_count(&tx, actor.workspace).await? >= KEYS_MAX {
                    return Err(Error::KeysExhausted);
                }
                let member = Member {
                    user: Id::new(tx.now()),
                    workspace: actor.workspace,
                    email: email.clone(),
                    name: name.clone(),
                    role,
                    joined_at: tx.now(),
                };
                store::add_member(&tx, &member).await.map_err(|error| {
                    if error.is_duplicate() {
                        Error::MemberExists
                    } else {
                        error.into()
                    }
                })?;
                let fact = wire::MemberAdded {
                    user_id: member.user.to_string(),
                    role: role_to_wire(role).into(),
                };
                tx.tell(Some(actor.workspace), member.user, &fact).await?;
                let secret = ApiKey::generate();
                let key = make_key(&tx, actor.workspace, member.user, name, role, secret).await?;
                let principal = &actor.principal;
                store::audit(&tx, actor.workspace, principal, "AddMember", &member.user).await?;
                Ok((member, key))
            })
            .await
    }

    /// Changes what a person may do.
    pub async fn set_member_role(
        &self,
        caller: &Caller,
        user: Id<User>,
        role: Role,
    ) -> Result<Member, Error> {
        self.store
            .write(|tx| async move {
                let actor = actor_with(&tx, caller, Role::Admin).await?;
                let workspace = actor.workspace;
                let found = store::member(&tx, workspace, user).await?;
                let mut member = found.ok_or(Error::MemberNotFound(user))?;
                let remaining = store::remaining_without(&tx, workspace, None, Some(user)).await?;
                check_set_role(&actor, &member, role, remaining)?;
                if member.role != role {
                    member.role = role;
                    store::set_role(&tx, user, role).await?;
                    let principal = &actor.principal;
                    store::audit(&tx, workspace, principal, "SetMemberRole", &user).await?;
                }
                Ok(member)
            })
            .await
    }

    /// Removes a person and revokes their keys.
    pub async fn remove_member(&self, caller: &Caller, user: Id<User>) -> Result<(), Error> {
        self.store
            .write(|tx| async move {
                let actor = actor_with(&tx, caller, Role::Admin).await?;
                let workspace = actor.workspace;
                let found = store::member(&tx, workspace, user).await?;
                let member = found.ok_or(Error::MemberNotFound(user))?;
                let remaining = store::remaining_without(&tx, workspace, None, Some(user)).await?;
                check_remove(&actor, &member, remaining)?;
                for key in store::live_keys_of(&tx, user).await? {
                    drop_key(&tx, &key).await?;
                }
                store::remove_member(&tx, user).await?;
                let fact = wire::MemberRemoved {
                    user_id: user.to_string(),
                };
                tx.tell(Some(workspace), user, &fact).await?;
                store::audit(&tx, workspace, &actor.principal, "RemoveMember", &user).await?;
                Ok(())
            })
            .await
    }

    /// Makes a key for the calling person.
    pub async fn create_key(
        &self,
        caller: &Caller,
        name: &str,
        role: Role,
    ) -> Result<NewKey, Error> {
        let name = &clean_name("name", name)?;
        self.store
            .write(|tx| async move {
                let actor = actor_with(&tx, caller, Role::Admin).await?;
                check_grant(actor.role, role)?;
                if store::live_key_count(&tx, actor.workspace).await? >= KEYS_MAX {
                    return Err(Error::KeysExhausted);
                }
                let user = actor.user.ok_or(Error::SecretUnknown)?;
                let secret = ApiKey::generate();
                let key = make_key(&tx, actor.workspace, user, name, role, secret).await?;
                let principal = &actor.principal;
                store::audit(&tx, actor.workspace, principal, "CreateKey", &key.key.id).await?;
                Ok(key)
            })
            .await
    }

    /// Makes a key worthless; doing it twice is fine.
    pub async fn revoke_key(&self, caller: &Caller, id: Id<KeyId>) -> Result<Key, Error> {
        self.store
            .write(|tx| async move {
                caller.require(Role::Admin)?;
                let actor = actor(&tx, caller).await?;
                let workspace = actor.workspace;
                let found = store::key(&tx, workspace, id).await?;
                let mut key = found.ok_or(Error::KeyNotFound(id))?;
                if key.revoked_at.is_some() {
                    return Ok(key);
                }
                let remaining = store::remaining_without(&tx, workspace, Some(id), None).await?;
                check_revoke(&actor, &key, remaining)?;
                drop_key(&tx, &key).await?;
                store::audit(&tx, workspace, &actor.principal, "RevokeKey", &id).await?;
                key.revoked_at = Some(tx.now());
                Ok(key)
            })
            .await
    }
}

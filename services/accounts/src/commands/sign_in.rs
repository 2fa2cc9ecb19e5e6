//! Who is calling: keys, browser sessions and one-time tokens.

use std::time::Duration;

use kit::auth::{Caller, Role};
use kit::config::Secret;
use kit::id::Workspace as WorkspaceId;
use kit::id::{Id, Key as KeyId};
use kit::store::Tx;

use super::{Accounts, actor, valid};
use crate::domain::Plan;
use crate::error::Error;
use crate::secret::{self, Presented};
use crate::store::{self, Credential};

/// Who a secret belongs to.
#[derive(Debug, Clone)]
pub struct Authenticated {
    pub workspace: Id<WorkspaceId>,
    pub key: Id<KeyId>,
    pub role: Role,
    pub plan: Plan,
}

/// What makes a session.
#[derive(Debug, Clone)]
pub enum SignIn {
    Key(String),
    Token(String),
}

impl Accounts {
    /// Returns who a secret belongs to.
    ///
    /// Nothing is written here: the minute of use is noted in memory and stored in batches.
    pub async fn authenticate(&self, secret: &str) -> Result<Authenticated, Error> {
        let now = self.store.clock().now();
        let sql = self.store.read();
        let found = match secret::read(secret).ok_or(Error::SecretUnknown)? {
            Presented::Key(hash) => store::credential_by_secret(sql, &hash).await?,
            Presented::Session(hash) => {
                let found = store::credential_by_session(sql, &hash).await?;
                let found = found.ok_or(Error::SessionEnded)?;
                if found.session_expires_at.is_none_or(|end| end <= now) {
                    return Err(Error::SessionEnded);
                }
                Some(found)
            }
        };
        let plan = found.as_ref().map(|found| found.plan);
        let (key, role) = valid(found)?;
        self.last_used.note(&key, now);
        Ok(Authenticated {
            workspace: key.workspace,
            key: key.id,
            role,
            plan: plan.unwrap_or_default(),
        })
    }

    /// Makes a browser session that acts as a key; returns its secret and how long it holds.
    pub async fn create_session(
        &self,
        sign_in: &SignIn,
    ) -> Result<(Secret<String>, Duration), Error> {
        let ttl = self.config.session_ttl;
        let outcome = self
            .store
            .write(|tx| async move {
                // A token is used up even where its key turns out worthless: so the refusal is no failure here.
                let credential = match self.sign_in(&tx, sign_in).await? {
                    Ok(credential) => credential,
                    Err(refusal) => return Ok(Err(refusal)),
                };
                let (session, hash) = secret::session();
                let (key, _) = match valid(Some(credential)) {
                    Ok(key) => key,
                    Err(refusal) => return Ok(Err(refusal)),
                };
                store::add_session(&tx, &hash, key.id, tx.now() + ttl).await?;
                Ok::<_, Error>(Ok((session, key)))
            })
            .await?;
        let (session, key) = outcome?;
        self.last_used.note(&key, self.store.clock().now());
        Ok((session, ttl))
    }

    async fn sign_in(&self, tx: &Tx, sign_in: &SignIn) -> Result<Result<Credential, Error>, Error> {
        let found = match sign_in {
            SignIn::Key(text) => match secret::read(text) {
                Some(Presented::Key(hash)) => store::credential_by_secret(tx, &hash).await?,
                _ => None,
            },
            SignIn::Token(text) => {
                let Some(hash) = secret::read_token(text) else {
                    return Ok(Err(Error::TokenSpent));
                };
                match store::take_token(tx, &hash).await? {
                    Some(key) => store::credential_by_key(tx, key).await?,
                    None => return Ok(Err(Error::TokenSpent)),
                }
            }
        };
        Ok(found.ok_or(Error::SecretUnknown))
    }

    /// Ends a browser session; one that has ended is fine.
    pub async fn end_session(&self, session_secret: &str) -> Result<(), Error> {
        let Some(Presented::Session(hash)) = secret::read(session_secret) else {
            return Ok(());
        };
        let hash = &hash;
        self.store
            .write(|tx| async move { Ok(store::remove_session(&tx, hash).await?) })
            .await
    }

    /// Makes a one-time token with which the caller's key can be signed in elsewhere.
    pub async fn create_sign_in_token(&self, caller: &Caller) -> Result<Secret<String>, Error> {
        let ttl = self.config.sign_in_token_ttl;
        self.store
            .write(|tx| async move {
                caller.require(Role::Viewer)?;
                let actor = actor(&tx, caller).await?;
                let kit::auth::Principal::Key(key) = actor.principal else {
                    return Err(Error::SecretUnknown);
                };
                let (token, hash) = secret::token();
                store::add_token(&tx, &hash, key, tx.now() + ttl).await?;
                let principal = &actor.principal;
                let workspace = actor.workspace;
                store::audit(&tx, workspace, principal, "CreateSignInToken", &key).await?;
                Ok(token)
            })
            .await
    }
}

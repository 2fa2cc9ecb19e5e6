//! All SQL of accounts: rows in, domain types out.

use kit::auth::{Principal, Role};
use kit::id::{Event, Id, Key as KeyId, User, Workspace as WorkspaceId};
use kit::params;
use kit::store::{Error, FromRow, Migration, Row, Sql, Tx};
use kit::time::Timestamp;

use crate::domain::{Key, Member, Plan, Remaining, Workspace, effective_role};
use crate::secret::Hash;

/// The steps of the schema.
pub const MIGRATIONS: &[Migration] = &[Migration::new(
    1,
    "accounts",
    include_str!("migrations/0001_accounts.sql"),
)];

/// Rows that one sweep removes from each table.
const SWEEP_MAX: i64 = 10_000;
/// Keys of one person that are revoked when they are removed: more than a workspace may have.
const KEYS_OF_USER_MAX: i64 = 2000;

/// A key with what it needs to say who is calling.
#[derive(Debug, Clone)]
pub struct Credential {
    pub key: Key,
    /// None when its user is gone.
    pub user_role: Option<Role>,
    pub plan: Plan,
    /// When the session ends, where it was found by one.
    pub session_expires_at: Option<Timestamp>,
}

impl Credential {
    /// Returns what the key may do now; nothing where its user is gone.
    pub fn role(&self) -> Option<Role> {
        self.user_role
            .map(|user| effective_role(self.key.role, user))
    }
}

/// One line of the audit log.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    pub id: Id<Event>,
    pub at: Timestamp,
    pub principal: String,
    pub action: String,
    pub subject: String,
}

/// Tells whether there is any workspace: false only before the first start has ended.
pub async fn has_workspaces(sql: &Sql) -> Result<bool, Error> {
    let found = sql
        .query_optional::<Id<WorkspaceId>>("select id from workspaces limit 1", params![])
        .await?;
    Ok(found.is_some())
}

const WORKSPACE: &str = "select id, slug, name, plan, created_at from workspaces";

/// Returns a workspace.
pub async fn workspace(sql: &Sql, id: Id<WorkspaceId>) -> Result<Option<Workspace>, Error> {
    sql.query_optional(&format!("{WORKSPACE} where id = $1"), params![id])
        .await
}

/// Returns one page of all workspaces, oldest first.
pub async fn workspaces(
    sql: &Sql,
    after: Id<WorkspaceId>,
    limit: i64,
) -> Result<Vec<Workspace>, Error> {
    let query = format!("{WORKSPACE} where id > $1 order by id limit $2");
    sql.query_all(&query, params![after, limit]).await
}

/// Adds a workspace; a slug that is taken is refused by the database.
pub async fn add_workspace(tx: &Tx, workspace: &Workspace) -> Result<(), Error> {
    tx.execute(
        "insert into workspaces (id, slug, name, plan, created_at) values ($1, $2, $3, $4, $5)",
        params![
            workspace.id,
            workspace.slug.as_str(),
            workspace.name.as_str(),
            workspace.plan.as_str(),
            workspace.created_at
        ],
    )
    .await
    .map(drop)
}

/// Moves a workspace to another plan.
pub async fn set_plan(tx: &Tx, id: Id<WorkspaceId>, plan: Plan) -> Result<(), Error> {
    let statement = "update workspaces set plan = $2 where id = $1";
    tx.execute(statement, params![id, plan.as_str()])
        .await
        .map(drop)
}

const MEMBER: &str = "select id, workspace_id, email, name, role, joined_at from members";

/// Returns a member of this workspace.
pub async fn member(
    sql: &Sql,
    workspace: Id<WorkspaceId>,
    user: Id<User>,
) -> Result<Option<Member>, Error> {
    let query = format!("{MEMBER} where workspace_id = $1 and id = $2");
    sql.query_optional(&query, params![workspace, user]).await
}

/// Returns one page of a workspace's members, oldest first.
pub async fn members(
    sql: &Sql,
    workspace: Id<WorkspaceId>,
    after: Id<User>,
    limit: i64,
) -> Result<Vec<Member>, Error> {
    let query = format!("{MEMBER} where workspace_id = $1 and id > $2 order by id limit $3");
    sql.query_all(&query, params![workspace, after, limit])
        .await
}

/// Returns how many members a workspace has.
pub async fn member_count(sql: &Sql, workspace: Id<WorkspaceId>) -> Result<i64, Error> {
    let query = "select count(*) from members where workspace_id = $1";
    sql.query_one(query, params![workspace]).await
}

/// Adds a member; an address the workspace has is refused by the database.
pub async fn add_member(tx: &Tx, member: &Member) -> Result<(), Error> {
    tx.execute(
        "insert into members (id, workspace_id, email, name, role, joined_at)
         values ($1, $2, $3, $4, $5, $6)",
        params![
            member.user,
            member.workspace,
            member.email.as_str(),
            member.name.as_str(),
            member.role.name(),
            member.joined_at
        ],
    )
    .await
    .map(drop)
}

/// Changes what a member may do.
pub async fn set_role(tx: &Tx, user: Id<User>, role: Role) -> Result<(), Error> {
    let statement = "update members set role = $2 where id = $1";
    tx.execute(statement, params![user, role.name()])
        .await
        .map(drop)
}

/// Removes a member.
pub async fn remove_member(tx: &Tx, user: Id<User>) -> Result<(), Error> {
    tx.execute("delete from members where id = $1", params![user])
        .await
        .map(drop)
}

const KEY: &str = "select k.id, k.workspace_id, k.user_id, k.name, k.role, k.hint, k.created_at,
    k.revoked_at, k.last_used_at";

/// Returns a key of this workspace.
pub async fn key(
    sql: &Sql,
    workspace: Id<WorkspaceId>,
    id: Id<KeyId>,
) -> Result<Option<Key>, Error> {
    let query = format!("{KEY} from keys k where k.workspace_id = $1 and k.id = $2");
    sql.query_optional(&query, params![workspace, id]).await
}

/// Returns one page of a workspace's keys, newest first.
pub async fn keys(
    sql: &Sql,
    workspace: Id<WorkspaceId>,
    before: Id<KeyId>,
    limit: i64,
) -> Result<Vec<Key>, Error> {
    let query = format!(
        "{KEY} from keys k where k.workspace_id = $1 and k.id < $2 order by k.id desc limit $3"
    );
    sql.query_all(&query, params![workspace, before, limit])
        .await
}

/// Returns the keys of a person that aren't revoked.
pub async fn live_keys_of(sql: &Sql, user: Id<User>) -> Result<Vec<Key>, Error> {
    let query = format!(
        "{KEY} from keys k where k.user_id = $1 and k.revoked_at is null order by k.id limit $2"
    );
    sql.query_all(&query, params![user, KEYS_OF_USER_MAX]).await
}

/// Returns how many keys of a workspace aren't revoked.
pub async fn live_key_count(sql: &Sql, workspace: Id<WorkspaceId>) -> Result<i64, Error> {
    let query = "select count(*) from keys where workspace_id = $1 and revoked_at is null";
    sql.query_one(query, params![workspace]).await
}

/// Adds a key.
pub async fn add_key(tx: &Tx, key: &Key, hash: &Hash) -> Result<(), Error> {
    tx.execute(
        "insert into keys
         (id, workspace_id, user_id, name, role, hint, secret_hash, created_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8)",
        params![
            key.id,
            key.workspace,
            key.user,
            key.name.as_str(),
            key.role.name(),
            key.hint.as_str(),
            hash.to_vec(),
            key.created_at
        ],
    )
    .await
    .map(drop)
}

/// Makes a key worthless, and with it its sessions and tokens.
pub async fn revoke_key(tx: &Tx, id: Id<KeyId>) -> Result<(), Error> {
    let revoke = "update keys set revoked_at = $2 where id = $1 and revoked_at is null";
    tx.execute(revoke, params![id, tx.now()]).await?;
    tx.execute("delete from sessions where key_id = $1", params![id])
        .await?;
    tx.execute("delete from sign_in_tokens where key_id = $1", params![id])
        .await
        .map(drop)
}

/// Notes the minute at which a key was last used.
pub async fn note_last_used(tx: &Tx, id: Id<KeyId>, minute: Timestamp) -> Result<(), Error> {
    tx.execute(
        "update keys set last_used_at = $2
         where id = $1 and (last_used_at is null or last_used_at < $2)",
        params![id, minute],
    )
    .await
    .map(drop)
}

const CREDENTIAL: &str = "m.role as user_role, w.plan as plan";
const CREDENTIAL_TABLES: &str = "join workspaces w on w.id = k.workspace_id
    left join members m on m.id = k.user_id and m.workspace_id = k.workspace_id";

/// Returns the key with this secret.
pub async fn credential_by_secret(sql: &Sql, hash: &Hash) -> Result<Option<Credential>, Error> {
    let query = format!(
        "{KEY}, {CREDENTIAL}, cast(null as bigint) as session_expires_at
         from keys k {CREDENTIAL_TABLES} where k.secret_hash = $1"
    );
    sql.query_optional(&query, params![hash.to_vec()]).await
}

/// Returns the key that a session acts as.
pub async fn credential_by_session(sql: &Sql, hash: &Hash) -> Result<Option<Credential>, Error> {
    let query = format!(
        "{KEY}, {CREDENTIAL}, s.expires_at as session_expires_at
         from sessions s join keys k on k.id = s.key_id {CREDENTIAL_TABLES}
         where s.secret_hash = $1"
    );
    sql.query_optional(&query, params![hash.to_vec()]).await
}

/// Returns the key with this id.
pub async fn credential_by_key(sql: &Sql, id: Id<KeyId>) -> Result<Option<Credential>, Error> {
    let query = format!(
        "{KEY}, {CREDENTIAL}, cast(null as bigint) as session_expires_at
         from keys k {CREDENTIAL_TABLES} where k.id = $1"
    );
    sql.query_optional(&query, params![id]).await
}

/// Returns what would be left without this key and without the rights of this person.
pub async fn remaining_without(
    tx: &Tx,
    workspace: Id<WorkspaceId>,
    key: Option<Id<KeyId>>,
    user: Option<Id<User>>,
) -> Result<Remaining, Error> {
    // An id that nobody has stands for none: `<>` then leaves nobody out.
    let key = key.unwrap_or(Id::from_bytes([0; 16]));
    let user = user.unwrap_or(Id::from_bytes([0; 16]));
    let owners = tx
        .query_one::<i64>(
            "select count(*) from members where workspace_id = $1 and role = 'owner' and id <> $2",
            params![workspace, user],
        )
        .await?;
    let live = "select count(*) from keys k join members m on m.id = k.user_id
        where k.revoked_at is null and m.role = 'owner' and k.id <> $1 and m.id <> $2";
    let owner_keys = tx
        .query_one::<i64>(
            &format!("{live} and k.role in ('owner', 'operator') and k.workspace_id = $3"),
            params![key, user, workspace],
        )
        .await?;
    let operator_keys = tx
        .query_one::<i64>(
            &format!("{live} and k.role = 'operator'"),
            params![key, user],
        )
        .await?;
    Ok(Remaining {
        owners,
        owner_keys,
        operator_keys,
    })
}

/// Adds a session of a key.
pub async fn add_session(
    tx: &Tx,
    hash: &Hash,
    key: Id<KeyId>,
    expires_at: Timestamp,
) -> Result<(), Error> {
    tx.execute(
        "insert into sessions (secret_hash, key_id, created_at, expires_at)
         values ($1, $2, $3, $4)",
        params![hash.to_vec(), key, tx.now(), expires_at],
    )
    .await
    .map(drop)
}

/// Ends a session.
pub async fn remove_session(tx: &Tx, hash: &Hash) -> Result<(), Error> {
    let statement = "delete from sessions where secret_hash = $1";
    tx.execute(statement, params![hash.to_vec()])
        .await
        .map(drop)
}

/// Adds a one-time sign-in token of a key.
pub async fn add_token(
    tx: &Tx,
    hash: &Hash,
    key: Id<KeyId>,
    expires_at: Timestamp,
) -> Result<(), Error> {
    tx.execute(
        "insert into sign_in_tokens (secret_hash, key_id, expires_at) values ($1, $2, $3)",
        params![hash.to_vec(), key, expires_at],
    )
    .await
    .map(drop)
}

/// Uses a token up and returns its key, unless it was used before or is too old.
pub async fn take_token(tx: &Tx, hash: &Hash) -> Result<Option<Id<KeyId>>, Error> {
    let query = "select key_id from sign_in_tokens where secret_hash = $1 and expires_at > $2";
    let found = tx
        .query_optional(query, params![hash.to_vec(), tx.now()])
        .await?;
    let taken = tx
        .execute(
            "delete from sign_in_tokens where secret_hash = $1",
            params![hash.to_vec()],
        )
        .await?;
    Ok(found.filter(|_| taken == 1))
}

/// Removes ended sessions and unused tokens; returns how many.
pub async fn sweep(tx: &Tx) -> Result<u64, Error> {
    let mut removed = 0;
    for table in ["sessions", "sign_in_tokens"] {
        let statement = format!(
            "delete from {table} where secret_hash in
             (select secret_hash from {table} where expires_at <= $1 limit $2)"
        );
        removed += tx.execute(&statement, params![tx.now(), SWEEP_MAX]).await?;
    }
    Ok(removed)
}

/// Writes a line of the audit log.
pub async fn audit(
    tx: &Tx,
    workspace: Id<WorkspaceId>,
    principal: &Principal,
    action: &str,
    subject: &(dyn std::fmt::Display + Sync),
) -> Result<(), Error> {
    tx.execute(
        "insert into audit_entries (id, workspace_id, at, principal, action, subject)
         values ($1, $2, $3, $4, $5, $6)",
        params![
            Id::<Event>::new(tx.now()),
            workspace,
            tx.now(),
            principal.to_string(),
            action,
            subject.to_string()
        ],
    )
    .await
    .map(drop)
}

/// Returns one page of a workspace's audit log, newest first.
pub async fn audit_entries(
    sql: &Sql,
    workspace: Id<WorkspaceId>,
    before: Id<Event>,
    limit: i64,
) -> Result<Vec<AuditEntry>, Error> {
    sql.query_all(
        "select id, at, principal, action, subject from audit_entries
         where workspace_id = $1 and id < $2 order by id desc limit $3",
        params![workspace, before, limit],
    )
    .await
}

impl FromRow for Workspace {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            slug: row.get("slug")?,
            name: row.get("name")?,
            plan: row.parse("plan")?,
            created_at: row.get("created_at")?,
        })
    }
}

impl FromRow for Member {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            user: row.get("id")?,
            workspace: row.get("workspace_id")?,
            email: row.get("email")?,
            name: row.get("name")?,
            role: row.parse("role")?,
            joined_at: row.get("joined_at")?,
        })
    }
}

impl FromRow for Key {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            workspace: row.get("workspace_id")?,
            user: row.get("user_id")?,
            name: row.get("name")?,
            role: row.parse("role")?,
            hint: row.get("hint")?,
            created_at: row.get("created_at")?,
            revoked_at: row.get("revoked_at")?,
            last_used_at: row.get("last_used_at")?,
        })
    }
}

impl FromRow for Credential {
    fn from_row(row: &Row) -> Result<Self, Error> {
        let user_role = row.get::<Option<String>>("user_role")?;
        Ok(Self {
            key: Key::from_row(row)?,
            user_role: user_role.map(|_| row.parse("user_role")).transpose()?,
            plan: row.parse("plan")?,
            session_expires_at: row.get("session_expires_at")?,
        })
    }
}

impl FromRow for AuditEntry {
    fn from_row(row: &Row) -> Result<Self, Error> {
        Ok(Self {
            id: row.get("id")?,
            at: row.get("at")?,
            principal: row.get("principal")?,
            action: row.get("action")?,
            subject: row.get("subject")?,
        })
    }
}

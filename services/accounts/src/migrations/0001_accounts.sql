create table workspaces (
    id bytea primary key,
    slug text not null unique,
    name text not null,
    plan text not null,
    created_at bigint not null
);

-- People, each in one workspace: somebody in two is two rows, and neither workspace learns of the other.
create table members (
    id bytea primary key,
    workspace_id bytea not null references workspaces (id),
    email text not null,
    name text not null,
    role text not null,
    joined_at bigint not null,
    unique (workspace_id, email)
);

create index members_workspace on members (workspace_id, id);

create table keys (
    id bytea primary key,
    workspace_id bytea not null references workspaces (id),
    -- No foreign key: revoked keys outlive the person, for the audit log.
    user_id bytea not null,
    name text not null,
    role text not null,
    hint text not null,
    secret_hash bytea not null unique,
    created_at bigint not null,
    revoked_at bigint,
    -- To the minute, and written in batches: nothing depends on it.
    last_used_at bigint
);

create index keys_workspace on keys (workspace_id, id);
create index keys_user on keys (user_id);

-- A browser's session acts as the key it was made with, and ends with it.
create table sessions (
    secret_hash bytea primary key,
    key_id bytea not null references keys (id),
    created_at bigint not null,
    expires_at bigint not null
);

create index sessions_expires_at on sessions (expires_at);

-- Deleted when used.
create table sign_in_tokens (
    secret_hash bytea primary key,
    key_id bytea not null references keys (id),
    expires_at bigint not null
);

create index sign_in_tokens_expires_at on sign_in_tokens (expires_at);

create table audit_entries (
    id bytea primary key,
    workspace_id bytea not null references workspaces (id),
    at bigint not null,
    principal text not null,
    action text not null,
    subject text not null
);

create index audit_entries_workspace on audit_entries (workspace_id, id);

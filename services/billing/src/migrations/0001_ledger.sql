-- Who has accounts here, and on which plan they are as far as was heard.
create table workspaces (
    id bytea primary key,
    plan text not null,
    -- When the plan was told: an older fact that comes late changes nothing.
    plan_at bigint not null,
    opened_at bigint not null
);

-- An account's balance changes only together with entries; the check is the last line of defence.
create table accounts (
    id bytea primary key,
    -- Null for the accounts of the installation.
    workspace_id bytea references workspaces (id),
    place text not null,
    balance bigint not null,
    floor bigint,
    opened_at bigint not null,
    check (floor is null or balance >= floor)
);

create unique index accounts_place on accounts (workspace_id, place);

create table transfers (
    id bytea primary key,
    -- What makes two attempts the same transfer.
    key text not null unique,
    kind text not null,
    amount bigint not null check (amount > 0),
    source_id bytea not null references accounts (id),
    target_id bytea not null references accounts (id),
    workspace_id bytea not null references workspaces (id),
    -- Null for a top-up.
    run_id bytea,
    note text not null,
    created_at bigint not null
);

create index transfers_workspace on transfers (workspace_id, id);
create index transfers_run on transfers (run_id, id);

-- Two for each transfer, which sum to zero.
create table entries (
    transfer_id bytea not null references transfers (id),
    account_id bytea not null references accounts (id),
    amount bigint not null,
    primary key (transfer_id, account_id)
);

create index entries_account on entries (account_id);

create table holds (
    run_id bytea primary key,
    id bytea not null unique,
    workspace_id bytea not null references workspaces (id),
    gpu_type text not null,
    price bigint not null,
    amount bigint not null,
    cap bigint not null,
    held bigint not null check (held >= 0),
    charged bigint not null check (charged >= 0),
    -- Committed and not paid for want of money: found by the next top-up.
    owed bigint not null check (owed >= 0),
    committed_nanos bigint not null,
    last_charge bigint not null,
    state text not null,
    -- Set while the run must still be queued.
    expires_at bigint,
    exhausted text,
    asked_at bigint not null,
    revision bigint not null,
    created_at bigint not null,
    updated_at bigint not null
);

create index holds_workspace on holds (workspace_id);
create index holds_expiring on holds (expires_at) where expires_at is not null;

create table prices (
    gpu_type text not null,
    valid_from bigint not null,
    per_hour bigint not null check (per_hour >= 0),
    plan text not null,
    primary key (gpu_type, valid_from)
);

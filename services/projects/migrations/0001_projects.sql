-- Named places for runs and models.
create table projects (
    id bytea primary key,
    workspace_id bytea not null,
    name text not null,
    description text not null,
    -- Numbers the runs that come without a name; never falls.
    run_number bigint not null,
    created_at bigint not null,
    unique (workspace_id, name)
);

create index projects_newest on projects (workspace_id, id);

create table runs (
    id bytea primary key,
    workspace_id bytea not null,
    project_id bytea not null references projects (id),
    name text not null,
    version_id bytea not null,
    -- JSON of the domain's own types.
    spec text not null,
    class_names text not null,
    estimate text not null,
    gpu_type text not null,
    price_per_hour_micros bigint not null,
    cost_cap_micros bigint not null,
    hold_micros bigint not null,
    -- Null without a key: an empty one is no key, and nulls don't collide.
    idempotency_key text,
    request_digest bytea not null,
    state text not null,
    cause text not null,
    -- cancel, or pause with its cause after a colon.
    wish text,
    epochs_done bigint not null,
    committed_nanos bigint not null,
    -- The newest value of every metric; packed, because JSON has no word for not-a-number.
    metrics bytea not null,
    model_id bytea,
    is_bit_exact boolean not null,
    fence bigint not null,
    fence_closed bigint not null,
    -- Counts everything that happened to the run; whoever writes a run raises it first and so
    -- holds the row until the end of the transaction. Followers read by it.
    position bigint not null,
    -- The position of the newest change that is not telemetry.
    changed_position bigint not null,
    created_at bigint not null,
    started_at bigint,
    finished_at bigint,
    unique (workspace_id, idempotency_key)
);

create index runs_newest on runs (workspace_id, id);
create index runs_of_project on runs (project_id, id);
create index runs_of_state on runs (state, workspace_id, id);

create table attempts (
    id bytea primary key,
    run_id bytea not null references runs (id),
    fence bigint not null,
    worker_id bytea not null,
    device text not null,
    device_kind text not null,
    resumed_from bytea,
    start_step bigint,
    last_step bigint,
    committed_nanos bigint not null,
    started_at bigint not null,
    ended_at bigint,
    outcome text,
    cause text not null,
    unique (run_id, fence)
);

create table checkpoints (
    id bytea primary key,
    run_id bytea not null references runs (id),
    fence bigint not null,
    epoch bigint not null,
    step bigint not null,
    digest text not null,
    size_bytes bigint not null,
    is_best boolean not null,
    created_at bigint not null,
    -- Set when its bytes are no longer needed.
    retired_at bigint
);

create index checkpoints_of_run on checkpoints (run_id, fence, step);

create table models (
    id bytea primary key,
    workspace_id bytea not null,
    project_id bytea not null references projects (id),
    run_id bytea not null unique references runs (id),
    name text not null,
    architecture text not null,
    class_names text not null,
    image_size bigint not null,
    metrics bytea not null,
    version_id bytea not null,
    created_at bigint not null
);

create index models_newest on models (workspace_id, id);
create index models_of_project on models (project_id, id);

create table artifacts (
    model_id bytea not null references models (id),
    place bigint not null,
    kind text not null,
    file_name text not null,
    digest text not null,
    size_bytes bigint not null,
    primary key (model_id, place)
);

-- Which blobs of ours are in use. Content is shared within a workspace: two checkpoints with the
-- same bytes are one blob, which goes when neither needs it.
create table blobs (
    workspace_id bytea not null,
    digest text not null,
    reference_count bigint not null,
    -- Set while the bytes are being removed: nobody may start to use them.
    is_doomed boolean not null,
    touched_at bigint not null,
    primary key (workspace_id, digest)
);

create index blobs_unused on blobs (touched_at) where reference_count = 0;

-- Runs that waited for credit when some came in: their money is held, then they are resumed.
create table resumptions (
    run_id bytea primary key references runs (id),
    asked_at bigint not null
);

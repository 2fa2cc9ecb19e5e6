-- Workers, jobs, leases, and what trainings reached on each kind of device.

create table workers (
    id bytea primary key,
    gpu_type text not null,
    device text not null,
    host text not null,
    state text not null,
    flops_per_second bigint not null,
    bandwidth_bytes_per_second bigint not null,
    memory_bytes bigint not null,
    thread_count bigint not null,
    build text not null,
    registered_at bigint not null,
    last_seen_at bigint not null
);

create table jobs (
    id bytea primary key,
    run_id bytea not null unique,
    workspace_id bytea not null,
    gpu_type text not null,
    state text not null,
    fence bigint not null,
    wish text not null,
    queued_at bigint not null,
    -- The encoded fovea.runs.v1.TrainSpec.
    spec bytea not null,
    lease_id bytea,
    worker_id bytea,
    lease_deadline bigint
);

create index jobs_by_state on jobs (state, gpu_type, queued_at);
create index jobs_by_workspace on jobs (workspace_id, queued_at);
create index jobs_by_lease on jobs (lease_id);

-- Every lease that was ever granted; nothing is erased.
create table leases (
    id bytea primary key,
    job_id bytea not null references jobs (id),
    worker_id bytea not null,
    fence bigint not null,
    granted_at bigint not null,
    -- When the worker gave it back.
    released_at bigint,
    ended_at bigint,
    outcome text
);

create index leases_by_worker on leases (worker_id, ended_at);

-- What a training reached against what the prior said.
create table observations (
    id {{autoincrement}},
    gpu_type text not null,
    model text not null,
    image_size bigint not null,
    batch bigint not null,
    images bigint not null,
    micros bigint not null,
    observed_over_prior double precision not null,
    at bigint not null
);

create index observations_by_gpu_type on observations (gpu_type, id);

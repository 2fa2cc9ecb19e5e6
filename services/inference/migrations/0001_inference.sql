-- Endpoints, and the revisions that were deployed to them. The newest ready revision answers.

create table endpoints (
    id bytea primary key,
    workspace_id bytea not null,
    name text not null,
    created_at bigint not null,
    deleted_at bigint,
    request_count bigint not null,
    error_count bigint not null
);

create unique index endpoints_by_name on endpoints (workspace_id, name) where deleted_at is null;
create index endpoints_by_workspace on endpoints (workspace_id, id);

create table revisions (
    id bytea primary key,
    endpoint_id bytea not null references endpoints (id),
    number bigint not null,
    model_id bytea not null,
    -- The weights, a blob of this service.
    digest text not null,
    size_bytes bigint not null,
    -- JSON: names in the order of their ids.
    class_names text not null,
    image_size bigint not null,
    state text not null,
    cause text not null,
    created_at bigint not null,
    unique (endpoint_id, number)
);

create index revisions_by_state on revisions (state);

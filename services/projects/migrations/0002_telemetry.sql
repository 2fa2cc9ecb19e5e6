-- Metrics and host samples: rows of about 1,000 points in columns; `store/chunk.rs` says how.
create table chunks (
    run_id bytea not null references runs (id),
    -- metrics or samples.
    noun text not null,
    first_position bigint not null,
    last_position bigint not null,
    point_count bigint not null,
    -- False for the newest one, which still grows.
    is_sealed boolean not null,
    bytes bytea not null,
    primary key (run_id, noun, first_position)
);

-- The open tail of each log.
create table log_lines (
    run_id bytea not null references runs (id),
    sequence bigint not null,
    position bigint not null,
    at bigint not null,
    level text not null,
    message text not null,
    primary key (run_id, sequence)
);

-- What was before the tail: a blob each, with an index of byte offsets; `store/segment.rs`.
create table log_segments (
    run_id bytea not null references runs (id),
    first_sequence bigint not null,
    last_sequence bigint not null,
    first_position bigint not null,
    last_position bigint not null,
    digest text not null,
    size_bytes bigint not null,
    offsets bytea not null,
    primary key (run_id, first_sequence)
);

-- Telemetry that was stored, by its place in the stream and when that got it: what is delivered
-- again changes nothing. Kept as long as the stream keeps it.
create table telemetry_seen (
    sequence bigint not null,
    stored_at bigint not null,
    seen_at bigint not null,
    primary key (sequence, stored_at)
);

create index telemetry_seen_at on telemetry_seen (seen_at);

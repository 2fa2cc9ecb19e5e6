-- Uploads on their way in, datasets, immutable versions with their images, and imports.

create table uploads (
    id bytea primary key,
    workspace_id bytea not null,
    file_name text not null,
    size_bytes bigint not null,
    received_bytes bigint not null,
    created_at bigint not null,
    expires_at bigint not null
);

create index uploads_by_expiry on uploads (expires_at);

create table upload_parts (
    upload_id bytea not null references uploads (id),
    offset_bytes bigint not null,
    size_bytes bigint not null,
    digest text not null,
    primary key (upload_id, offset_bytes)
);

-- A dataset without a version is one whose first import isn't over; lists leave it out.
create table datasets (
    id bytea primary key,
    workspace_id bytea not null,
    name text not null,
    task text not null,
    created_at bigint not null,
    deleted_at bigint
);

create index datasets_by_workspace on datasets (workspace_id, id);
create unique index datasets_by_name on datasets (workspace_id, name) where deleted_at is null;

create table versions (
    id bytea primary key,
    dataset_id bytea not null references datasets (id),
    workspace_id bytea not null,
    number bigint not null,
    task text not null,
    -- JSON: names in the order of their ids.
    class_names text not null,
    -- JSON: one summary a split.
    splits text not null,
    digest text not null,
    created_at bigint not null,
    unique (dataset_id, number)
);

-- Annotations are kept encoded with their image (fovea.datasets.v1.ListAnnotationsResponse): a version never changes
-- and is read image by image.
create table images (
    id bytea primary key,
    version_id bytea not null references versions (id),
    -- The place in the order of names.
    place bigint not null,
    name text not null,
    split text not null,
    width bigint not null,
    height bigint not null,
    size_bytes bigint not null,
    digest text not null,
    annotation_count bigint not null,
    annotations bytea not null,
    unique (version_id, place)
);

create index images_by_digest on images (digest);
create index upload_parts_by_digest on upload_parts (digest);
create index images_by_split on images (version_id, split, place);

create table imports (
    id bytea primary key,
    workspace_id bytea not null,
    dataset_id bytea not null,
    upload_id bytea not null references uploads (id),
    state text not null,
    skip_faulty boolean not null,
    version_id bytea,
    -- JSON: the first findings.
    findings text not null,
    finding_count bigint not null,
    images_done bigint not null,
    images_total bigint not null,
    created_at bigint not null,
    -- The last sign of life of whoever works on it.
    claimed_at bigint,
    finished_at bigint
);

create index imports_by_state on imports (state, created_at);

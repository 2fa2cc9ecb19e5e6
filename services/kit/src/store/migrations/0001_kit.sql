-- Facts told in a transaction and not yet known to be in the stream. A sent row stays until the
-- stream itself has dropped the fact, so that a stream that lost data can be filled again.
create table outbox (
    id {{autoincrement}},
    event_id bytea not null unique,
    entity text not null,
    subject text not null,
    envelope text not null,
    created_at bigint not null,
    sent_at bigint
);

create index outbox_unsent on outbox (id) where sent_at is null;

-- Facts that took effect here, by consumer.
create table inbox (
    consumer text not null,
    event_id bytea not null,
    received_at bigint not null,
    primary key (consumer, event_id)
);

create index inbox_received_at on inbox (received_at);

-- Answers to commands that came with a key of the client's.
create table idempotency (
    scope text not null,
    key text not null,
    request_digest bytea not null,
    response bytea not null,
    created_at bigint not null,
    primary key (scope, key)
);

create index idempotency_created_at on idempotency (created_at);

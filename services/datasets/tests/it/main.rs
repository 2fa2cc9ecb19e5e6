//! Datasets as others meet it: gRPC against the running service, on a real NATS server, SQLite and PostgreSQL.

mod archives;
mod imports;
mod isolation;
mod setting;
mod uploads;

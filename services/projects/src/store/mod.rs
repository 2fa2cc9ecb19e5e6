//! All SQL: rows in, domain types out.
//!
//! Whoever changes a run locks it first ([`lock_run`]), which also hands out its next positions:
//! so positions of one run are committed in their order, and a follower that has read up to one
//! has missed nothing before it.

mod blobs;
mod chunk;
mod logs;
mod models;
mod packed;
mod projects;
mod runs;
mod segment;
mod series;

use kit::store::Migration;

pub use blobs::{blob_gone, doom_blobs, refer_blob, touch_blob, unrefer_blob};
pub use logs::{
    Segment, append_lines, lines_after_position, lines_after_sequence, next_sequence,
    replace_by_segment, segments_after_position, segments_after_sequence, tail,
};
pub use models::{insert_model, list_models, model};
pub use projects::{default_project, insert_project, list_projects, next_run_number, project};
pub use runs::{
    Locked, ask_resumptions, attempt, attempt_kind, attempts, best_checkpoint, checkpoint_at,
    checkpoints, created_before, delete_created, forget_resumption, insert_checkpoint, insert_run,
    list_runs, lock_run, newest_checkpoint, resumptions, retire_checkpoint, run, run_by_key,
    save_run,
};
pub use segment::{decode_lines, encode_lines};
pub use series::{append_readings, first_seen, forget_seen, readings, readings_after};

/// The schema.
pub const MIGRATIONS: &[Migration] = &[
    Migration::new(
        1,
        "projects",
        include_str!("../../migrations/0001_projects.sql"),
    ),
    Migration::new(
        2,
        "telemetry",
        include_str!("../../migrations/0002_telemetry.sql"),
    ),
];

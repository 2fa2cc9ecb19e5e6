//! Which waiting job a free worker gets: a pure function of a snapshot, so that a simulator can run the same code.

use std::collections::BTreeMap;

use kit::Timestamp;
use kit::id::{Id, Job, Workspace};

/// A job that waits for a device type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    pub job_id: Id<Job>,
    pub workspace_id: Id<Workspace>,
    pub queued_at: Timestamp,
}

/// Returns the order in which waiting jobs get devices: the workspace with the fewest jobs running or already
/// placed before goes first, then the one that has waited longest.
pub fn order(waiting: &[Waiting], running: &BTreeMap<Id<Workspace>, usize>) -> Vec<Id<Job>> {
    let mut left: Vec<Waiting> = waiting.to_vec();
    left.sort_by_key(|job| (job.queued_at, job.job_id));
    let mut load = running.clone();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let next = left
            .iter()
            .enumerate()
            .min_by_key(|(place, job)| (load.get(&job.workspace_id).copied().unwrap_or(0), *place))
            .map(|(place, _)| place)
            .expect("invariant: something waits");
        let job = left.remove(next);
        *load.entry(job.workspace_id).or_default() += 1;
        order.push(job.job_id);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(workspace: u8, second: i64) -> Waiting {
        Waiting {
            job_id: Id::from_bytes([second as u8; 16]),
            workspace_id: Id::from_bytes([workspace; 16]),
            queued_at: Timestamp::from_seconds(second),
        }
    }

    #[test]
    fn one_workspace_cannot_hold_the_queue() {
        let jobs = [waiting(1, 1), waiting(1, 2), waiting(1, 3), waiting(2, 4)];
        let ids: Vec<u8> = order(&jobs, &BTreeMap::new())
            .iter()
            .map(|id| id.as_bytes()[0])
            .collect();
        assert_eq!(ids, [1, 4, 2, 3]);
        let busy = BTreeMap::from([(Id::from_bytes([1; 16]), 2)]);
        let ids: Vec<u8> = order(&jobs, &busy)
            .iter()
            .map(|id| id.as_bytes()[0])
            .collect();
        assert_eq!(ids, [4, 1, 2, 3]);
    }

    #[test]
    fn within_a_workspace_the_oldest_goes_first() {
        let jobs = [waiting(1, 9), waiting(1, 3), waiting(1, 5)];
        let ids: Vec<u8> = order(&jobs, &BTreeMap::new())
            .iter()
            .map(|id| id.as_bytes()[0])
            .collect();
        assert_eq!(ids, [3, 5, 9]);
    }
}

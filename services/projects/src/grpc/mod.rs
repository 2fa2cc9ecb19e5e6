//! Proto → command or question → proto, and who may call.

mod models;
mod projects;
mod runs;
mod wire;

use kit::auth::{Caller, Role, caller};
use kit::fault::Fault;
use kit::id::{self, Entity, Id};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::commands::Projects;
use crate::error::Error;

pub use wire::{
    estimate_value, host_sample, instant_or, line_message, metric_batch, project_message,
    run_message, sample_values, span_message, spec_message,
};

/// Things of a page where the caller doesn't say.
const PAGE_SIZE_DEFAULT: i32 = 50;
/// The most things of a page.
const PAGE_SIZE_MAX: i32 = 1_000;

type Answer<T> = Result<Response<T>, Status>;

/// Answers the RPCs of all three domains.
#[derive(Clone)]
pub struct Server {
    projects: Projects,
    stop: CancellationToken,
}

impl Server {
    /// Returns a server whose streams end when told to stop.
    pub fn new(projects: Projects, stop: CancellationToken) -> Self {
        Self { projects, stop }
    }
}

/// Takes a request apart: the workspace its caller acts in, and the message.
fn open<T>(request: Request<T>, role: Role) -> Result<(Id<id::Workspace>, T), Fault> {
    let caller = caller(&request)?;
    caller.require(role)?;
    Ok((caller.workspace()?, request.into_inner()))
}

/// Takes a worker's request apart. One of our services may stand in for a worker.
fn open_worker<T>(request: Request<T>) -> Result<T, Fault> {
    let caller: Caller = caller(&request)?;
    if !caller.is_service() {
        caller.require_worker()?;
    }
    Ok(request.into_inner())
}

fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

fn page_size(asked: i32) -> Result<i64, Error> {
    match asked {
        0 => Ok(i64::from(PAGE_SIZE_DEFAULT)),
        1..=PAGE_SIZE_MAX => Ok(i64::from(asked)),
        _ => Err(Error::field(
            "page_size",
            format!("is 0 to {PAGE_SIZE_MAX}, not {asked}"),
        )),
    }
}

/// Reads a page token, which is the id of the last thing of the page before, in hexadecimal.
fn page_after<E: Entity>(token: &str) -> Result<Option<Id<E>>, Error> {
    if token.is_empty() {
        return Ok(None);
    }
    let digits = token.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes = digits
        .collect::<Option<Vec<u8>>>()
        .and_then(|bytes| bytes.try_into().ok());
    let refuse = || Error::field("page_token", "is one that a page before brought");
    bytes
        .map(|bytes| Some(Id::from_bytes(bytes)))
        .ok_or_else(refuse)
}

/// Cuts one thing too many off a page and returns the token of the next.
fn page_cut<T, E: Entity>(page: &mut Vec<T>, size: i64, id: impl Fn(&T) -> Id<E>) -> String {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if page.len() <= size {
        return String::new();
    }
    page.truncate(size);
    let last = page
        .last()
        .map(|last| *id(last).as_bytes())
        .unwrap_or_default();
    last.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use kit::time::Timestamp;

    use super::*;

    #[test]
    fn a_page_token_survives_and_nothing_else_is_one() {
        let ids: Vec<Id<id::Run>> = (0..4).map(|n| Id::new(Timestamp::from_micros(n))).collect();
        let mut page = ids.clone();
        let token = page_cut(&mut page, 3, |id| *id);
        assert_eq!(page, ids[..3]);
        assert_eq!(page_after(&token).unwrap(), Some(ids[2]));
        assert_eq!(page_cut(&mut page, 3, |id| *id), "");
        assert_eq!(page_after::<id::Run>("").unwrap(), None);
        for bad in [
            "x",
            "zz",
            "00",
            &token[1..],
            &format!("{token}00"),
            "ä".repeat(16).as_str(),
        ] {
            assert!(page_after::<id::Run>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_has_at_most_a_thousand_things() {
        assert_eq!(page_size(0).unwrap(), 50);
        assert_eq!(page_size(1_000).unwrap(), 1_000);
        assert!(page_size(1_001).is_err());
        assert!(page_size(-1).is_err());
    }
}

//! What all handlers share: connections to the services, the authenticator, and the limits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use kit::Fault;
use kit::auth::{Caller, Identity};
use kit::id::{Id, Workspace};
use kit::service::{Channel, Context};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::authenticate::Authenticator;
use crate::config::Config;
use crate::contract::Contract;
use crate::error::Error;

/// The state of the gateway. Clones share it.
pub type Shared = Arc<Gateway>;

/// See [`Shared`].
#[derive(Debug)]
pub struct Gateway {
    /// What kit gave the service.
    pub context: Context,
    /// The section `[gateway]`.
    pub config: Config,
    /// Finds out who is calling.
    pub authenticator: Authenticator,
    channels: HashMap<&'static str, Channel>,
    streams: Arc<Streams>,
    requests: Arc<Semaphore>,
    parts: Arc<Semaphore>,
}

impl Gateway {
    /// Connects to every service that owns RPCs; connections are made when they are first used.
    pub fn new(context: Context) -> Result<Self, Fault> {
        let config: Config = context.section()?;
        let mut channels = HashMap::new();
        for method in Contract::get().methods() {
            if method.owner != crate::NAME && !channels.contains_key(method.owner) {
                channels.insert(method.owner, context.channel(method.owner)?);
            }
        }
        let accounts = channels
            .get("accounts")
            .expect("invariant: the contract has accounts")
            .clone();
        let streams = Streams {
            open: Mutex::new(HashMap::new()),
            limit: config.streams_per_workspace,
        };
        Ok(Self {
            authenticator: Authenticator::new(&context, &config, accounts),
            channels,
            streams: Arc::new(streams),
            requests: Arc::new(Semaphore::new(config.requests_in_flight)),
            parts: Arc::new(Semaphore::new(config.parts_in_flight)),
            config,
            context,
        })
    }

    /// Returns the connection to a service.
    pub fn channel(&self, service: &str) -> Channel {
        let channel = self.channels.get(service);
        channel
            .expect("invariant: every owner of an RPC has a channel")
            .clone()
    }

    /// Returns the signed identity of a caller, for the metadata of a call.
    pub fn signed(&self, identity: &Identity) -> HeaderValue {
        let token = self.context.signer().sign(identity);
        let mut value =
            HeaderValue::from_str(&token).expect("invariant: a token is base64 and dots");
        value.set_sensitive(true);
        value
    }

    /// Takes one of the workspace's live streams, until the guard is dropped.
    pub fn open_stream(&self, caller: &Caller) -> Result<StreamGuard, Error> {
        self.streams.clone().open(caller.workspace()?)
    }

    /// Takes a place among the requests in flight.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = self.requests.clone().try_acquire_owned();
        permit.map_err(|_| Error::Overloaded)
    }

    /// Takes a place among the parts of uploads in flight.
    pub fn enter_part(&self) -> Result<OwnedSemaphorePermit, Error> {
        let permit = self.parts.clone().try_acquire_owned();
        permit.map_err(|_| Error::Overloaded)
    }
}

#[derive(Debug)]
struct Streams {
    open: Mutex<HashMap<Id<Workspace>, usize>>,
    limit: usize,
}

/// One open stream of a workspace.
#[derive(Debug)]
pub struct StreamGuard {
    streams: Arc<Streams>,
    workspace: Id<Workspace>,
}

impl Streams {
    fn open(self: Arc<Self>, workspace: Id<Workspace>) -> Result<StreamGuard, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(workspace).or_default();
        if *count >= self.limit {
            return Err(Error::TooManyStreams { limit: self.limit });
        }
        *count += 1;
        drop(open);
        Ok(StreamGuard {
            streams: self,
            workspace,
        })
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let open = self.streams.open.lock();
        let mut open = open.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.workspace) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.workspace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_holds_its_share_of_streams_and_no_more() {
        let streams = Arc::new(Streams {
            open: Mutex::new(HashMap::new()),
            limit: 2,
        });
        let (mine, other) = (Id::from_bytes([1; 16]), Id::from_bytes([2; 16]));
        let first = streams.clone().open(mine).unwrap();
        let _second = streams.clone().open(mine).unwrap();
        assert!(matches!(
            streams.clone().open(mine),
            Err(Error::TooManyStreams { limit: 2 })
        ));
        let third = streams.clone().open(other).unwrap();
        drop((first, third));
        assert!(streams.clone().open(mine).is_ok());
        assert_eq!(streams.open.lock().unwrap().len(), 1);
    }
}

//! Calling another service.

use std::task::{Context as Waker, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, Response};
use tonic::body::Body;
use tonic::transport::Endpoint;
use tower::{Layer, Service};

use super::Context;
use crate::auth::{SignLayer, SignService};
use crate::fault::{Fault, Kind};
use crate::telemetry::{ClientLayer, ClientTelemetry};

/// How long a call may take until its answer begins; a long poll stays well below.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A channel for generated clients. Clones share the connection.
#[derive(Clone, Debug)]
pub struct Channel(ClientTelemetry<SignService<tonic::transport::Channel>>);

impl Channel {
    /// Returns a channel to an address, with calls signed by this layer.
    pub fn to(address: &str, sign: &SignLayer) -> Result<Self, Fault> {
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|error| {
            let message = format!("'{address}' is not the address of a service: {error}");
            Fault::new(Kind::Invalid, "CONFIGURATION_INVALID", "kit", message)
        })?;
        let channel = endpoint
            .timeout(CALL_TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .connect_lazy();
        Ok(Self(ClientLayer.layer(sign.layer(channel))))
    }
}

pub(super) fn open(context: &Context, service: &str) -> Result<Channel, Fault> {
    let address = context.fleet().service_url(service).ok_or_else(|| {
        let message = format!("there is no service '{service}'");
        Fault::new(Kind::Invalid, "SERVICE_UNKNOWN", "kit", message)
    })?;
    Channel::to(
        &address,
        &SignLayer::new(context.signer().clone(), context.service()),
    )
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = tonic::transport::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, tonic::transport::Error>>;

    fn poll_ready(&mut self, context: &mut Waker<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.0.call(request)
    }
}

//! Identities on the wire: the server's layer that refuses calls without one, and the client's
//! that signs them.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{BoxFuture, Either, Ready, ready};
use http::{HeaderValue, Request, Response, header};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::{Identity, OnBehalfOf, Signer, Verifier};
use crate::config::Secret;
use crate::fault::{Fault, Kind};

/// The metadata key of the identity.
pub const HEADER: &str = "fovea-identity";
/// What may be asked without one: probes and tools.
const OPEN_SERVICES: [&str; 2] = ["/grpc.health.", "/grpc.reflection."];

/// Verifies the identity of each call and puts it into the request's extensions.
#[derive(Clone, Debug)]
pub struct AuthLayer(Verifier);

impl AuthLayer {
    /// Returns the layer that trusts this key.
    pub fn new(verifier: Verifier) -> Self {
        Self(verifier)
    }
}

impl<S> Layer<S> for AuthLayer {
    type Service = AuthService<S>;

    fn layer(&self, inner: S) -> AuthService<S> {
        AuthService {
            inner,
            verifier: self.0.clone(),
        }
    }
}

/// See [`AuthLayer`].
#[derive(Clone, Debug)]
pub struct AuthService<S> {
    inner: S,
    verifier: Verifier,
}

impl<S> Service<Request<Body>> for AuthService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        if OPEN_SERVICES.iter().any(|open| path.starts_with(open)) {
            return Either::Left(self.inner.call(request));
        }
        let verified = match request.headers().get(HEADER).map(HeaderValue::to_str) {
            Some(Ok(token)) => self.verifier.verify(token),
            Some(Err(_)) | None => Err(Fault::new(
                Kind::Unauthenticated,
                "IDENTITY_MISSING",
                "kit",
                "the call has no identity: services are called through the gateway",
            )),
        };
        match verified {
            Ok(identity) => {
                // It goes no further: a handler that forwards headers must not forward this one.
                request.headers_mut().remove(HEADER);
                request.extensions_mut().insert(identity);
                Either::Left(self.inner.call(request))
            }
            Err(fault) => Either::Right(ready(Ok(Status::from(fault).into_http()))),
        }
    }
}

/// Signs each call with the service's own identity, for whom it acts included.
#[derive(Clone, Debug)]
pub struct SignLayer(Proof);

#[derive(Clone, Debug)]
enum Proof {
    Identity {
        signer: Signer,
        identity: Arc<Identity>,
    },
    Bearer(HeaderValue),
}

impl SignLayer {
    /// Returns the layer that signs as this service.
    pub fn new(signer: Signer, service: &str) -> Self {
        Self::with_identity(signer, Identity::service(service))
    }

    /// Returns the layer that signs as anybody, such as a worker.
    pub fn with_identity(signer: Signer, identity: Identity) -> Self {
        Self(Proof::Identity {
            signer,
            identity: Arc::new(identity),
        })
    }

    /// Returns the layer of who has an API key and calls through the gateway: people's programs,
    /// and workers on machines that don't share the fleet's key.
    pub fn with_api_key(key: &Secret<String>) -> Result<Self, Fault> {
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", key.expose().trim())).map_err(|_| {
                let message = "the API key has characters that no key has";
                Fault::new(Kind::Invalid, "API_KEY_INVALID", "kit", message)
            })?;
        value.set_sensitive(true);
        Ok(Self(Proof::Bearer(value)))
    }

    fn prove(&self, request: &mut Request<Body>) {
        match &self.0 {
            Proof::Bearer(value) => {
                request
                    .headers_mut()
                    .insert(header::AUTHORIZATION, value.clone());
            }
            // The gateway passes calls on with an identity that it has signed already.
            Proof::Identity { .. } if request.headers().contains_key(HEADER) => {}
            Proof::Identity { signer, identity } => {
                let party = request.extensions().get::<OnBehalfOf>().cloned();
                let token = match party {
                    Some(OnBehalfOf(party)) => signer.sign(&Identity {
                        on_behalf_of: Some(Box::new(party)),
                        ..(**identity).clone()
                    }),
                    None => signer.sign(identity),
                };
                let mut value =
                    HeaderValue::from_str(&token).expect("invariant: a token is base64 and dots");
                value.set_sensitive(true);
                request.headers_mut().insert(HEADER, value);
            }
        }
    }
}

impl<S> Layer<S> for SignLayer {
    type Service = SignService<S>;

    fn layer(&self, inner: S) -> SignService<S> {
        SignService {
            inner,
            layer: self.clone(),
        }
    }
}

/// See [`SignLayer`].
#[derive(Clone, Debug)]
pub struct SignService<S> {
    inner: S,
    layer: SignLayer,
}

impl<S> Service<Request<Body>> for SignService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        self.layer.prove(&mut request);
        Box::pin(self.inner.call(request))
    }
}

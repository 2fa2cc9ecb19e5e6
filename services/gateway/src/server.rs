//! The listener: HTTP/1.1 and HTTP/2 without TLS on one port, so that browsers, curl and gRPC
//! clients all come through the same door.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use kit::service::STOP_TIMEOUT;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::authenticate::Peer;

/// How long a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest head of a request.
const HEAD_BYTES_MAX: u32 = 32 << 10;
/// Calls that one HTTP/2 connection may have in flight.
const CALLS_PER_CONNECTION_MAX: u32 = 256;
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after the system refused to give a connection, such as when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until told to stop; then calls that are being answered get a while to end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    shutdown: &CancellationToken,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(connections_max));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            let place = place.expect("invariant: the semaphore is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accepted => accepted,
        };
        let (stream, peer) = match accepted {
            Ok((stream, address)) => (stream, Peer(address)),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Small answers must not wait for the client's acknowledgement of earlier ones.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "could not switch off Nagle's algorithm");
        }
        let (builder, router, watcher) = (builder.clone(), router.clone(), graceful.watcher());
        tokio::spawn(async move {
            let _place = place;
            if !says_something(&stream).await {
                return;
            }
            let connection = watcher.watch(connection(&builder, stream, router, peer));
            if let Err(error) = connection.await {
                tracing::debug!(error = %*error, "a connection broke");
            }
        });
    }
    if tokio::time::timeout(STOP_TIMEOUT, graceful.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("cut the calls that did not end in time");
    }
}

/// Waits for a first byte: who connects and says nothing must not hold a place.
async fn says_something(stream: &TcpStream) -> bool {
    let mut byte = [0];
    let first = tokio::time::timeout(HEAD_TIMEOUT, stream.peek(&mut byte));
    matches!(first.await, Ok(Ok(length)) if length > 0)
}

fn connection(
    builder: &Builder<TokioExecutor>,
    stream: TcpStream,
    router: Router,
    peer: Peer,
) -> impl hyper_util::server::graceful::GracefulConnection<
    Error = Box<dyn std::error::Error + Send + Sync>,
> + Send
+ 'static {
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let answer = router.clone().oneshot(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    builder
        .serve_connection(TokioIo::new(stream), service)
        .into_owned()
}

//! Bytes over HTTP: pictures and checkpoints from and to the signed addresses that services give.

use std::time::Duration;

use bytes::Bytes;
use kit::fault::{Fault, Kind};
use reqwest::StatusCode;
use tokio_util::sync::CancellationToken;

use crate::error::Error;

/// The largest file that is fetched.
const BYTES_MAX: usize = 4 << 30;
/// The pause before another try, and how many there are: a gateway that restarts is back long before.
const PAUSE: Duration = Duration::from_millis(500);
const TRIES_MAX: u32 = 120;
/// How long one try may take.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Fetches and stores bytes.
#[derive(Clone)]
pub struct Transfer {
    http: reqwest::Client,
    gateway: String,
}

impl Transfer {
    /// Returns a transfer that resolves paths against the gateway's address.
    pub fn new(gateway: String) -> Result<Self, Fault> {
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .build()
            .map_err(Fault::internal)?;
        Ok(Self { http, gateway })
    }

    /// Returns the bytes at an address, checked against their digest.
    pub async fn get(
        &self,
        url: &str,
        digest: &str,
        over: &CancellationToken,
    ) -> Result<Bytes, Error> {
        let bytes = self
            .patiently(over, || self.http.get(self.absolute(url)))
            .await?;
        if blake3::hash(&bytes).to_hex().as_str() != digest {
            return Err(Error::Run(format!("the bytes of {digest} arrived damaged")));
        }
        Ok(bytes)
    }

    /// Stores bytes at an address.
    pub async fn put(
        &self,
        url: &str,
        bytes: Bytes,
        over: &CancellationToken,
    ) -> Result<(), Error> {
        self.patiently(over, || {
            self.http.put(self.absolute(url)).body(bytes.clone())
        })
        .await?;
        Ok(())
    }

    async fn patiently(
        &self,
        over: &CancellationToken,
        request: impl Fn() -> reqwest::RequestBuilder,
    ) -> Result<Bytes, Error> {
        let mut tries = 0;
        loop {
            let attempt = over.run_until_cancelled(once(request())).await;
            match attempt.ok_or(Error::LeaseLost)? {
                Ok(bytes) => return Ok(bytes),
                Err((fault, true)) if tries < TRIES_MAX => {
                    tries += 1;
                    tracing::debug!(error = fault.chain(), tries, "transfers again");
                    over.run_until_cancelled(tokio::time::sleep(PAUSE))
                        .await
                        .ok_or(Error::LeaseLost)?;
                }
                Err((fault, _)) => return Err(fault.into()),
            }
        }
    }

    fn absolute(&self, url: &str) -> String {
        if url.starts_with('/') {
            format!("{}{url}", self.gateway)
        } else {
            url.to_owned()
        }
    }
}

/// One try; an error says whether another may help.
async fn once(request: reqwest::RequestBuilder) -> Result<Bytes, (Fault, bool)> {
    let away = |error: reqwest::Error| {
        (
            Fault::new(
                Kind::Unavailable,
                "TRANSFER_FAILED",
                "worker",
                error.to_string(),
            ),
            true,
        )
    };
    let response = request.send().await.map_err(away)?;
    let status = response.status();
    if !status.is_success() {
        let is_passing = status.is_server_error()
            || matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
            );
        let message = format!("the transfer was answered with {status}");
        return Err((
            Fault::new(Kind::Precondition, "TRANSFER_REFUSED", "worker", message),
            is_passing,
        ));
    }
    let length = response.content_length().unwrap_or(0);
    if usize::try_from(length).map_or(true, |length| length > BYTES_MAX) {
        let message = format!("{length} bytes, at most {BYTES_MAX} are fetched");
        return Err((
            Fault::new(Kind::Invalid, "TRANSFER_TOO_BIG", "worker", message),
            false,
        ));
    }
    response.bytes().await.map_err(away)
}

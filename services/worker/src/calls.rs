//! Calling the fleet: what fails in passing is tried again until it works or the attempt is over.

use std::time::Duration;

use kit::fault::{Fault, Kind};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status};

use crate::error::Error;

/// The first pause before another try; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Calls until an answer comes that another try wouldn't change, or `over` says to give up.
pub async fn patiently<T, F, Fut>(over: &CancellationToken, call: F) -> Result<T, Error>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let mut pause = PAUSE;
    loop {
        let answer = over
            .run_until_cancelled(call())
            .await
            .ok_or(Error::LeaseLost)?;
        match answer {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if is_passing(&status) => {
                tracing::debug!(%status, "tries again");
                over.run_until_cancelled(tokio::time::sleep(pause))
                    .await
                    .ok_or(Error::LeaseLost)?;
                pause = Ord::min(pause * 2, PAUSE_MAX);
            }
            Err(status) => {
                let fault = Fault::from_status(&status);
                return Err(if Error::is_fenced(&fault) {
                    Error::LeaseLost
                } else {
                    fault.into()
                });
            }
        }
    }
}

/// Tells whether the other side is only away: it restarts, or the bus or its store does.
pub fn is_passing(status: &Status) -> bool {
    let fault = Fault::from_status(status);
    matches!(fault.kind, Kind::Unavailable | Kind::Timeout)
        || matches!(
            status.code(),
            Code::Cancelled | Code::Unknown | Code::Internal
        )
}

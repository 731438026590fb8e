//! Calls of other services, with a timeout of their own.

use std::time::Duration;

use microblog_chassis::context;
use tokio::time::timeout;
use tonic::{Response, Status};

/// The timeout of one response. A hung peer must not stop a worker; calls also have their own
/// deadline.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the message of a response.
pub(crate) async fn call<T>(
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    Ok(with_timeout(answer).await?.into_inner())
}

/// Waits for a response, or for the next message of a stream.
pub(crate) async fn with_timeout<T>(
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    // Shorter than the caller's deadline, so the error names the service.
    let remaining =
        context::remaining().map_or(RESPONSE_TIMEOUT, |remaining| remaining.mul_f64(0.8));
    timeout(RESPONSE_TIMEOUT.min(remaining), answer)
        .await
        .unwrap_or_else(|_| Err(Status::unavailable("the service timed out")))
}

//! Client calls to a running microblog: channels, deadlines, retries and error messages.
//! Independent of the individual services.

use std::{error::Error as _, iter, time::Duration};

use anyhow::{Context as _, bail};
use backon::{ExponentialBuilder, Retryable as _};
use tokio::time::{Instant, sleep};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_types::StatusExt as _;

use crate::tls::secured;

/// The default URL of the gateway of `microblog up`.
pub const GATEWAY_URL: &str = "http://127.0.0.1:50050";
/// The default URL of the user service.
pub const USER_URL: &str = "http://127.0.0.1:50051";
/// The default URL of the relation service.
pub const RELATION_URL: &str = "http://127.0.0.1:50052";
/// The default URL of the post service.
pub const POST_URL: &str = "http://127.0.0.1:50053";
/// The default URL of the timeline service.
pub const TIMELINE_URL: &str = "http://127.0.0.1:50054";
/// The default URL of the notice service.
pub const NOTICE_URL: &str = "http://127.0.0.1:50055";

/// The deadline of a call; servers allow 60 s.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(10);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
const READY_TIMEOUT: Duration = Duration::from_secs(10);
const READY_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns a lazily connecting channel.
pub fn channel(url: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .with_context(|| format!("`{url}` is not the URL of a server, such as {GATEWAY_URL}"))?;
    Ok(secured(endpoint)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_lazy())
}

/// Returns a channel to a serving server, or an error with a hint.
pub async fn connect(url: &str) -> anyhow::Result<Channel> {
    let channel = channel(url)?;
    match wait_until_serving(channel.clone()).await {
        Ok(true) => Ok(channel),
        Ok(false) => bail!("the server at {url} is not ready: its store or a peer is unavailable"),
        Err(status) if status.code() == Code::Unavailable => {
            bail!("nothing answers at {url}: is `microblog up` running? ({})", root_cause(&status))
        }
        // A broken connection, not a response of the server. Its form depends on which side notices
        // first.
        Err(status) if status.source().is_some() => {
            let hint = if url.starts_with("https:") {
                "does it require a client certificate (--cert-file)"
            } else {
                "does it use TLS (https)"
            };
            let (message, cause) = (error_message(&status), root_cause(&status));
            bail!("health check of {url} failed: {message} ({cause}): {hint}?")
        }
        Err(status) => {
            bail!("health check of {url} failed: {}", error_message(&status))
        }
    }
}

/// Returns the root cause of an error, such as an expired certificate.
fn root_cause(status: &Status) -> String {
    let causes = iter::successors(status.source(), |&cause| cause.source());
    causes.last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// Polls a server's health for some seconds, since its store may be slow briefly.
async fn wait_until_serving(channel: Channel) -> Result<bool, Status> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        let is_ready = is_serving(channel.clone()).await?;
        if is_ready || Instant::now() >= deadline {
            return Ok(is_ready);
        }
        sleep(READY_POLL_INTERVAL).await;
    }
}

/// Returns whether the server's overall health is SERVING.
pub async fn is_serving(channel: Channel) -> Result<bool, Status> {
    let request = request(HealthCheckRequest { service: String::new() }, HEALTH_TIMEOUT);
    let response = HealthClient::new(channel).check(request).await?.into_inner();
    Ok(response.status() == ServingStatus::Serving)
}

/// Returns a request with a deadline.
pub fn request<T>(message: T, within: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    request
}

/// Makes an idempotent call and retries transient errors for up to about 15 s.
pub async fn retry<T, F>(call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let backoff = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(3))
        .with_max_times(9)
        .with_jitter();
    call.retry(backoff).when(is_transient).await
}

/// Returns whether a repeated call may succeed.
pub fn is_transient(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => true,
        Code::ResourceExhausted => reason(status) == "OVERLOADED",
        // A status with a source is a broken connection, not a response: tonic reports one that breaks
        // during a call as UNKNOWN.
        _ => status.source().is_some(),
    }
}

/// Returns the machine-readable reason of an error, or an empty string.
pub fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

/// Returns a readable message: code, reason and text.
pub fn error_message(status: &Status) -> String {
    let code = format!("{:?}", status.code());
    match reason(status) {
        reason if reason.is_empty() => format!("{code}: {}", status.message()),
        reason => format!("{code} ({reason}): {}", status.message()),
    }
}

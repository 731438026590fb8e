//! Calling the services of a running microblog as a client: channels, time limits, repeats, and
//! errors told to people. Knows no service in particular.

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

/// Where the gateway of `microblog up` listens unless told otherwise.
pub const GATEWAY_URL: &str = "http://127.0.0.1:50050";
/// Where its user service listens.
pub const USER_URL: &str = "http://127.0.0.1:50051";
/// Where its relation service listens.
pub const RELATION_URL: &str = "http://127.0.0.1:50052";
/// Where its post service listens.
pub const POST_URL: &str = "http://127.0.0.1:50053";
/// Where its timeline service listens.
pub const TIMELINE_URL: &str = "http://127.0.0.1:50054";

/// The longest wait for one answer; servers allow 60 s.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(60);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVE: Duration = Duration::from_secs(10);
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);
const READY_MAX: Duration = Duration::from_secs(10);
const READY_POLL: Duration = Duration::from_millis(200);

/// Returns a channel to a server; it connects with its first call.
pub fn channel(url: &str) -> anyhow::Result<Channel> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .with_context(|| format!("`{url}` is not the address of a server, like {GATEWAY_URL}"))?;
    Ok(secured(endpoint)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_while_idle(true)
        .connect_lazy())
}

/// Returns a channel to a server that says it is serving, or an error that tells people what to do.
pub async fn serving(url: &str) -> anyhow::Result<Channel> {
    let channel = channel(url)?;
    match becomes_ready(channel.clone()).await {
        Ok(true) => Ok(channel),
        Ok(false) => bail!("the server at {url} is not ready: its store or a peer is unavailable"),
        Err(status) if status.code() == Code::Unavailable => {
            bail!("nothing answers at {url}: is `microblog up` running? ({})", cause(&status))
        }
        // Not what a server answered: the connection ended. How that looks depends on who is first
        // to notice.
        Err(status) if status.source().is_some() => {
            let question = if url.starts_with("https:") {
                "does it ask for a certificate (--cert-file)"
            } else {
                "does it speak TLS (https)"
            };
            let (told, cause) = (told(&status), cause(&status));
            bail!(
                "the server at {url} cannot be asked for its health: {told} ({cause}): {question}?"
            )
        }
        Err(status) => {
            bail!("the server at {url} cannot be asked for its health: {}", told(&status))
        }
    }
}

/// Returns what is at the bottom of an error, such as a certificate that has expired.
fn cause(status: &Status) -> String {
    let causes = iter::successors(status.source(), |&cause| cause.source());
    causes.last().map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// Asks a server whether it serves, for some seconds if it does not: its store may have been slow for a
/// moment.
async fn becomes_ready(channel: Channel) -> Result<bool, Status> {
    let give_up = Instant::now() + READY_MAX;
    loop {
        let is_ready = is_serving(channel.clone()).await?;
        if is_ready || Instant::now() >= give_up {
            return Ok(is_ready);
        }
        sleep(READY_POLL).await;
    }
}

/// Asks a server whether it serves, as a whole.
pub async fn is_serving(channel: Channel) -> Result<bool, Status> {
    let request = request(HealthCheckRequest { service: String::new() }, HEALTH_TIMEOUT);
    let response = HealthClient::new(channel).check(request).await?.into_inner();
    Ok(response.status() == ServingStatus::Serving)
}

/// Returns a request that the server may work on for so long.
pub fn request<T>(message: T, within: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(within);
    request
}

/// Makes a call that may be repeated, and repeats it for up to about 15 s while it fails for a
/// reason that may pass.
pub async fn repeatedly<T, F>(call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let pauses = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(3))
        .with_max_times(9)
        .with_jitter();
    call.retry(pauses).when(may_pass).await
}

fn may_pass(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => true,
        Code::ResourceExhausted => reason(status) == "OVERLOADED",
        _ => false,
    }
}

/// Returns the machine-readable reason of an error; empty if it has none.
pub fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

/// Returns an error as people read it: code, reason, text.
pub fn told(status: &Status) -> String {
    let code = format!("{:?}", status.code());
    match reason(status) {
        reason if reason.is_empty() => format!("{code}: {}", status.message()),
        reason => format!("{code} ({reason}): {}", status.message()),
    }
}

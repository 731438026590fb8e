//! Waiting for a condition with a timeout.

use std::time::Duration;

use tokio::time::Instant;

/// The timeout for an expected event. It is far longer than the event takes, since test machines
/// are shared and busy.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until a condition holds.
///
/// # Panics
/// With `what` if the condition does not hold within the timeout.
pub async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

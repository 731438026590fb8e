//! Waiting for a condition, with a bound.

use std::time::Duration;

use tokio::time::Instant;

const POLL: Duration = Duration::from_millis(20);

/// Waits until a condition holds.
///
/// # Panics
/// With `what` when it does not hold within the time.
pub async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(POLL).await;
    }
}

//! Waiting for a condition, with a bound.

use std::time::Duration;

use tokio::time::Instant;

/// How long a test waits for what it expects to happen: far longer than it takes, since machines are
/// shared, and processors may be busy with something else. A wait is for the thing itself; this only
/// ends one for what never comes.
pub const PATIENCE: Duration = Duration::from_secs(60);

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

//! Waiting for a condition with a timeout.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

/// The timeout for an expected event. It is far longer than the event takes, since test machines
/// are shared and busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Polls until a condition holds.
///
/// # Panics
/// With `what` if the condition does not hold within the timeout.
pub async fn eventually(what: &str, within: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns when the current millisecond is over: what happens in one, in different partitions, has no
/// set order.
pub async fn next_millisecond() {
    sleep(Duration::from_millis(2)).await;
}

/// Waits for the next day (UTC) if this one ends within three minutes: for tests of what happens within
/// a day.
pub async fn at_daytime() {
    const DAY: u64 = 24 * 60 * 60;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let left = DAY - now.as_secs() % DAY;
    if left < 180 {
        sleep(Duration::from_secs(left)).await;
    }
}

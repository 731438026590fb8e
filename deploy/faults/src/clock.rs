//! Time in milliseconds since the Unix epoch, as Redis and the databases have it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub(crate) type Millis = u64;

/// Returns the time.
pub(crate) fn now() -> Millis {
    millis(SystemTime::now())
}

fn millis(time: SystemTime) -> Millis {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as Millis
}

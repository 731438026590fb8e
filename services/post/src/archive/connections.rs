//! How many connections to the archive there are, as OpenTelemetry's conventions for connection pools
//! have it (<https://opentelemetry.io/docs/specs/semconv/db/database-metrics/>). Looked at whenever
//! metrics are collected.

use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use opentelemetry::{KeyValue, global, metrics::AsyncInstrument};
use sqlx::AnyPool;

use super::Inner;

/// The archives of all workers of the process, whose connections add up.
static ARCHIVES: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

static OBSERVED: Once = Once::new();

/// Has the connections of an archive counted as long as there is that archive.
pub(super) fn observe(archive: &Arc<Inner>) {
    ARCHIVES.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(archive));
    OBSERVED.call_once(|| {
        global::meter("microblog-post")
            .i64_observable_up_down_counter("db.client.connection.count")
            .with_unit("{connection}")
            .with_description("Connections to a store that there are")
            .with_callback(count)
            .build();
    });
}

fn count(observer: &dyn AsyncInstrument<i64>) {
    let mut archives = ARCHIVES.lock().unwrap_or_else(PoisonError::into_inner);
    archives.retain(|archive| archive.strong_count() > 0);
    let open: Vec<_> = archives.iter().filter_map(Weak::upgrade).collect();
    drop(archives);
    count_of(observer, "archive reading", open.iter().map(|archive| &archive.reading));
    count_of(observer, "archive writing", open.iter().map(|archive| &archive.writing));
}

fn count_of<'a>(
    observer: &dyn AsyncInstrument<i64>,
    name: &'static str,
    pools: impl Iterator<Item = &'a AnyPool>,
) {
    let (mut idle, mut used) = (0, 0);
    for pool in pools {
        let (all, resting) = (i64::from(pool.size()), pool.num_idle() as i64);
        idle += resting;
        // The two are not read at one moment.
        used += (all - resting).max(0);
    }
    for (state, count) in [("idle", idle), ("used", used)] {
        let attributes = [
            KeyValue::new("db.client.connection.pool.name", name),
            KeyValue::new("db.client.connection.state", state),
        ];
        observer.observe(count, &attributes);
    }
}

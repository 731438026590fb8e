//! Round trips have spans only within a recorded span.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use microblog_testkit::RedisServer;
use support::{USER, key, open_ready, put, send};
use tracing::{Instrument as _, Subscriber, info_span, span};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
};

/// Counts the spans of this crate.
struct Spans(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, span: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if span.metadata().target() == "microblog::redis" {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test]
async fn round_trips_have_spans_only_within_a_recorded_span() {
    let count = Arc::new(AtomicUsize::new(0));
    let subscriber = tracing_subscriber::registry().with(Spans(count.clone()));
    let _set = tracing::subscriber::set_default(subscriber);
    let server = RedisServer::start().await;
    let keyspace = open_ready(server.url(USER)).await;
    let key = key(3, "spans");
    put(&keyspace, &key, "a").await.unwrap();
    send(&keyspace, 5, "b").await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 0);
    put(&keyspace, &key, "a").instrument(info_span!("a call")).await.unwrap();
    send(&keyspace, 5, "b").instrument(info_span!("a call")).await.unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2, "one span for each round trip");
}

//! Spans of the archive: an operation of a traced call is in its trace; other calls have none.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex},
};

use tracing::{Instrument as _, Subscriber, field, info_span, span};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

use crate::{
    aging::{Aging, on_both},
    support::{
        self,
        archives::{ArchiveServer, connect, execute},
        id,
    },
};

on_both! {
    a_traced_read_of_an_archived_post_has_a_span
}

const AUTHOR: u64 = id(1);

/// The fields of a span, and the name of its parent.
type SpanFields = BTreeMap<&'static str, String>;

/// The spans of the archive.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<(span::Id, SpanFields)>>>);

impl Spans {
    /// Returns the spans since the last call.
    fn take(&self) -> Vec<SpanFields> {
        self.0.lock().unwrap().drain(..).map(|(_, fields)| fields).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, span: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if span.metadata().target() != "microblog::sql" {
            return;
        }
        let mut fields = SpanFields::new();
        let parent = context.span(id).and_then(|span| span.parent());
        fields.extend(parent.map(|parent| ("parent", parent.name().to_owned())));
        span.record(&mut Reading(&mut fields));
        self.0.lock().unwrap().push((id.clone(), fields));
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        let mut spans = self.0.lock().unwrap();
        if let Some((_, fields)) = spans.iter_mut().find(|(known, _)| known == id) {
            values.record(&mut Reading(fields));
        }
    }
}

struct Reading<'a>(&'a mut SpanFields);

impl field::Visit for Reading<'_> {
    fn record_str(&mut self, field: &field::Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &field::Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

async fn a_traced_read_of_an_archived_post_has_a_span(archives: &ArchiveServer) {
    let aging = Aging::start(archives, 0).await;
    let mut posts = Vec::new();
    for text in ["old words", "older words"] {
        posts.push(support::post(aging.system.create(AUTHOR, text).await.unwrap().id));
    }
    aging.evict(&[posts[0].get(), posts[1].get()]).await;
    let (system, tiered) = (aging.url.split(':').next().unwrap(), aging.tiered());
    let (system, refused) = match system {
        "sqlite" => ("sqlite", "1"),
        _ => ("postgresql", "42P01"),
    };
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    let _set = tracing::subscriber::set_default(subscriber);

    assert!(tiered.post(posts[0], None).await.unwrap().is_some());
    assert!(spans.take().is_empty(), "untraced calls have no span");
    let read = tiered.post(posts[0], None).instrument(info_span!("a call"));
    assert!(read.await.unwrap().is_some());
    let fields = spans.take();
    assert_eq!(fields.len(), 1, "one span for each operation: {fields:?}");
    for (name, value) in [
        ("parent", "a call"),
        ("otel.name", "SELECT posts"),
        ("otel.kind", "client"),
        ("db.system.name", system),
        ("db.operation.name", "SELECT"),
        ("db.query.summary", "SELECT posts"),
    ] {
        assert_eq!(fields[0].get(name).map(String::as_str), Some(value), "{name} of {fields:?}");
    }
    assert!(!fields[0].contains_key("error.type"), "{fields:?}");
    assert!(fields[0].values().all(|value| !value.contains("words")), "{fields:?}");

    let mut archive = connect(&aging.url).await;
    execute(&mut archive, "ALTER TABLE posts RENAME TO elsewhere").await;
    let read = tiered.post(posts[1], None).instrument(info_span!("a call"));
    read.await.unwrap_err();
    let fields = spans.take();
    for name in ["error.type", "db.response.status_code"] {
        assert_eq!(fields[0].get(name).map(String::as_str), Some(refused), "{name} of {fields:?}");
    }
    assert_eq!(fields[0]["otel.status_code"], "ERROR");
}

//! OpenTelemetry instruments of the notice service.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use microblog_proto::notice::NoticeKind;
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge},
};

use crate::{
    acts::{AccountChange, What},
    notice::KINDS,
    source::Source,
};

/// The instruments.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    acts: Counter<u64>,
    gaps: Counter<u64>,
    read_until: Gauge<f64>,
    /// The sources whose `read_until` is exported.
    is_exported: Arc<[AtomicBool; Source::ALL.len()]>,
}

impl Metrics {
    /// Creates the instruments on the global meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-notice");
        let gaps = meter
            .u64_counter("microblog.notice.feed.gaps")
            .with_unit("{gap}")
            .with_description(
                "Restarts at the start of a change feed that did not continue the position, by service",
            )
            .build();
        // Exported from the start: `rate()` cannot see the increase before the first sample.
        for source in Source::ALL {
            gaps.add(0, &[service(source)]);
        }
        let acts = meter
            .u64_counter("microblog.notice.acts")
            .with_unit("{act}")
            .with_description("Acts applied to notices, by kind")
            .build();
        for kind in KINDS {
            acts.add(0, &[KeyValue::new("kind", name(kind))]);
        }
        Self {
            acts,
            gaps,
            // A time and not an age: the age of a feed that nobody follows grows on.
            read_until: meter
                .f64_gauge("microblog.notice.feed.read_until")
                .with_unit("s")
                .with_description("The Unix time until when all changes are applied, by service")
                .build(),
            is_exported: Arc::default(),
        }
    }

    /// Counts the acts among changes.
    pub(crate) fn applied(&self, changes: &[AccountChange]) {
        for (_, change) in changes {
            if let What::Begin(subject) | What::Follow(subject) | What::Mention(subject, _) =
                change.what
            {
                self.acts.add(1, &[KeyValue::new("kind", name(subject.kind()))]);
            }
        }
    }

    /// Records until when a feed was read, in milliseconds since 1970; nothing if it is not known.
    pub(crate) fn read(&self, source: Source, until: u64) {
        if until > 0 {
            self.is_exported[source as usize].store(true, Ordering::Relaxed);
            self.read_until.record(until as f64 / 1000.0, &[service(source)]);
        }
    }

    /// Records until when a feed was read by the processes before, likewise.
    pub(crate) fn taken_over(&self, source: Source, until: u64) {
        if !self.is_exported[source as usize].load(Ordering::Relaxed) {
            self.read(source, until);
        }
    }

    /// Records that a feed cannot be read. If nobody has read it, that is since now: otherwise nothing
    /// would tell how late it is.
    pub(crate) fn cannot_read(&self, source: Source) {
        self.taken_over(source, now());
    }

    /// Counts a gap in a feed.
    pub(crate) fn gap(&self, source: Source) {
        self.gaps.add(1, &[service(source)]);
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64
}

fn service(source: Source) -> KeyValue {
    KeyValue::new("service", source.name())
}

fn name(kind: NoticeKind) -> &'static str {
    match kind {
        NoticeKind::Unspecified => "unspecified",
        NoticeKind::Follow => "follow",
        NoticeKind::Mutual => "mutual",
        NoticeKind::Mention => "mention",
        NoticeKind::Comment => "comment",
        NoticeKind::Reply => "reply",
        NoticeKind::Repost => "repost",
        NoticeKind::Like => "like",
    }
}

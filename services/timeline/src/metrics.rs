//! What is measured of timelines, for OpenTelemetry. Where nothing is exported, it costs next to
//! nothing.

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge},
};

/// Why a home timeline is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// It was not there.
    First,
    /// Somebody is followed since.
    AfterFollow,
    /// Somebody is followed no more.
    Cleaning,
}

/// The instruments of the service.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    posts: Counter<u64>,
    deliveries: Counter<u64>,
    builds: Counter<u64>,
    refusals: Counter<u64>,
    depth: Gauge<u64>,
    age: Gauge<f64>,
}

impl Metrics {
    /// Returns the instruments of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-timeline");
        Self {
            posts: meter
                .u64_counter("microblog.timeline.posts")
                .with_description("Posts taken in, by how they reach followers")
                .with_unit("{post}")
                .build(),
            deliveries: meter
                .u64_counter("microblog.timeline.deliveries")
                .with_description("Posts written into home timelines")
                .with_unit("{delivery}")
                .build(),
            builds: meter
                .u64_counter("microblog.timeline.builds")
                .with_description("Home timelines built, by why and whether it came to an end")
                .with_unit("{build}")
                .build(),
            refusals: meter
                .u64_counter("microblog.timeline.refusals")
                .with_description("Calls refused or failed, by code")
                .with_unit("{call}")
                .build(),
            depth: meter
                .u64_gauge("microblog.timeline.queue.depth")
                .with_description("Steps that wait in the fan-out streams or are under way")
                .with_unit("{step}")
                .build(),
            age: meter
                .f64_gauge("microblog.timeline.queue.age")
                .with_description("Age of the oldest step in the fan-out streams")
                .with_unit("s")
                .build(),
        }
    }

    /// Notes that a post was taken in.
    pub(crate) fn posted(&self, is_pulled: bool) {
        let how = if is_pulled { "pull" } else { "push" };
        self.posts.add(1, &[KeyValue::new("how", how)]);
    }

    /// Notes that a post was written into so many home timelines.
    pub(crate) fn delivered(&self, count: u64) {
        self.deliveries.add(count, &[]);
    }

    /// Notes that a home timeline was built; or that somebody else changed it meanwhile.
    pub(crate) fn built(&self, build: Build, is_done: bool) {
        let why = match build {
            Build::First => "first",
            Build::AfterFollow => "follow",
            Build::Cleaning => "unfollow",
        };
        self.builds.add(1, &[KeyValue::new("why", why), KeyValue::new("done", is_done)]);
    }

    /// Notes that a call was refused or failed.
    pub(crate) fn refused(&self, code: tonic::Code) {
        self.refusals.add(1, &[KeyValue::new("code", format!("{code:?}"))]);
    }

    /// Notes what waits in all streams: how many steps, and since how many seconds.
    pub(crate) fn queued(&self, depth: u64, age: f64) {
        self.depth.record(depth, &[]);
        self.age.record(age, &[]);
    }
}

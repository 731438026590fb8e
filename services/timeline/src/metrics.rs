//! What is measured of timelines, for OpenTelemetry. Where nothing is exported, it costs next to
//! nothing.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};

use crate::job::Kind;

// In seconds: a step is some hundredths of one, and a job many steps.
const STEP_BOUNDARIES: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 8.0];
const JOB_BOUNDARIES: [f64; 12] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// How a step of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// It is left for another time.
    Failed,
}

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
    steps: Histogram<f64>,
    jobs: Histogram<f64>,
}

impl Metrics {
    /// Returns the instruments of the process's meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-timeline");
        let metrics = Self {
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
            steps: meter
                .f64_histogram("microblog.timeline.step.duration")
                .with_description(
                    "How long steps of fan-out jobs take, with the wait for their turn",
                )
                .with_unit("s")
                .with_boundaries(STEP_BOUNDARIES.to_vec())
                .build(),
            jobs: meter
                .f64_histogram("microblog.timeline.job.duration")
                .with_description("How long after fan-out jobs were added their last step ended")
                .with_unit("s")
                .with_boundaries(JOB_BOUNDARIES.to_vec())
                .build(),
        };
        metrics.begin();
        metrics
    }

    // Counters are there from the start: a rate knows nothing of what came before the first number.
    fn begin(&self) {
        for is_pulled in [false, true] {
            self.posts.add(0, &[how(is_pulled)]);
        }
        self.deliveries.add(0, &[]);
        for build in [Build::First, Build::AfterFollow, Build::Cleaning] {
            for is_done in [false, true] {
                self.builds.add(0, &end_of(build, is_done));
            }
        }
    }

    /// Notes that a post was taken in.
    pub(crate) fn posted(&self, is_pulled: bool) {
        self.posts.add(1, &[how(is_pulled)]);
    }

    /// Notes that a post was written into so many home timelines.
    pub(crate) fn delivered(&self, count: u64) {
        self.deliveries.add(count, &[]);
    }

    /// Notes that a home timeline was built; or that somebody else changed it meanwhile.
    pub(crate) fn built(&self, build: Build, is_done: bool) {
        self.builds.add(1, &end_of(build, is_done));
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

    /// Notes that a step of a job ended. One that is repeated was left by a worker that died, or
    /// failed.
    pub(crate) fn stepped(&self, kind: Kind, outcome: Outcome, is_repeat: bool, took: Duration) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
        };
        let attributes = [
            kind_of(kind),
            KeyValue::new("outcome", outcome),
            KeyValue::new("repeated", is_repeat),
        ];
        self.steps.record(took.as_secs_f64(), &attributes);
    }

    /// Notes that a job is done, so long after it was added.
    pub(crate) fn finished(&self, kind: Kind, age: Duration) {
        self.jobs.record(age.as_secs_f64(), &[kind_of(kind)]);
    }
}

fn how(is_pulled: bool) -> KeyValue {
    KeyValue::new("how", if is_pulled { "pull" } else { "push" })
}

fn end_of(build: Build, is_done: bool) -> [KeyValue; 2] {
    let why = match build {
        Build::First => "first",
        Build::AfterFollow => "follow",
        Build::Cleaning => "unfollow",
    };
    [KeyValue::new("why", why), KeyValue::new("done", is_done)]
}

fn kind_of(kind: Kind) -> KeyValue {
    let kind = match kind {
        Kind::Unspecified => "unspecified",
        Kind::Push => "push",
        Kind::Cross => "cross",
        Kind::Weigh => "weigh",
    };
    KeyValue::new("kind", kind)
}

//! OpenTelemetry instruments of the timeline service.

use std::time::Duration;

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Gauge, Histogram},
};

use crate::job::Kind;

// In seconds. A step takes some hundredths of a second; a job has many steps.
const STEP_BOUNDARIES: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 8.0];
const JOB_BOUNDARIES: [f64; 12] =
    [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The outcome of a fan-out step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// It stays pending and is retried.
    Failed,
}

/// Why a home timeline is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuildReason {
    /// It did not exist.
    FirstRead,
    /// The reader followed an author.
    Backfill,
    /// The reader unfollowed an author, or the daily rebuild is due.
    Cleanup,
}

/// The instruments.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    posts: Counter<u64>,
    deliveries: Counter<u64>,
    builds: Counter<u64>,
    rejections: Counter<u64>,
    depth: Gauge<u64>,
    age: Gauge<f64>,
    steps: Histogram<f64>,
    jobs: Histogram<f64>,
}

impl Metrics {
    /// Creates the instruments on the global meter.
    pub(crate) fn new() -> Self {
        let meter = global::meter("microblog-timeline");
        let metrics = Self {
            posts: meter
                .u64_counter("microblog.timeline.posts")
                .with_description("Posts delivered, by fan-out on write (push) or on read (pull)")
                .with_unit("{post}")
                .build(),
            deliveries: meter
                .u64_counter("microblog.timeline.deliveries")
                .with_description("Pushes into home timelines")
                .with_unit("{delivery}")
                .build(),
            builds: meter
                .u64_counter("microblog.timeline.builds")
                .with_description("Home timelines built, by reason and whether the build completed")
                .with_unit("{build}")
                .build(),
            rejections: meter
                .u64_counter("microblog.timeline.rejections")
                .with_description("Calls rejected or failed, by code")
                .with_unit("{call}")
                .build(),
            depth: meter
                .u64_gauge("microblog.timeline.queue.depth")
                .with_description("Steps in the fan-out streams, pending ones included")
                .with_unit("{step}")
                .build(),
            age: meter
                .f64_gauge("microblog.timeline.queue.age")
                .with_description("Age of the oldest job in the fan-out streams")
                .with_unit("s")
                .build(),
            steps: meter
                .f64_histogram("microblog.timeline.step.duration")
                .with_description("Duration of fan-out steps, with the wait for a permit")
                .with_unit("s")
                .with_boundaries(STEP_BOUNDARIES.to_vec())
                .build(),
            jobs: meter
                .f64_histogram("microblog.timeline.job.duration")
                .with_description("Time from enqueue to completion of fan-out jobs")
                .with_unit("s")
                .with_boundaries(JOB_BOUNDARIES.to_vec())
                .build(),
        };
        metrics.begin();
        metrics
    }

    // Initializes the counters: a rate needs a value before the first event.
    fn begin(&self) {
        for is_pulled in [false, true] {
            self.posts.add(0, &[fanout_label(is_pulled)]);
        }
        self.deliveries.add(0, &[]);
        for reason in [BuildReason::FirstRead, BuildReason::Backfill, BuildReason::Cleanup] {
            for is_done in [false, true] {
                self.builds.add(0, &build_labels(reason, is_done));
            }
        }
    }

    /// Counts a delivered post.
    pub(crate) fn posted(&self, is_pulled: bool) {
        self.posts.add(1, &[fanout_label(is_pulled)]);
    }

    /// Counts pushes into home timelines.
    pub(crate) fn delivered(&self, count: u64) {
        self.deliveries.add(count, &[]);
    }

    /// Counts a build. `is_done` is false if another builder replaced the edition.
    pub(crate) fn built(&self, reason: BuildReason, is_done: bool) {
        self.builds.add(1, &build_labels(reason, is_done));
    }

    /// Counts a rejected or failed call.
    pub(crate) fn rejected(&self, code: tonic::Code) {
        self.rejections.add(1, &[KeyValue::new("code", format!("{code:?}"))]);
    }

    /// Sets the backlog: the number of steps and the age of the oldest job in seconds.
    pub(crate) fn queued(&self, depth: u64, age: f64) {
        self.depth.record(depth, &[]);
        self.age.record(age, &[]);
    }

    /// Records a step. A repeat was claimed from a worker that died or failed.
    pub(crate) fn stepped(&self, kind: Kind, outcome: Outcome, is_repeat: bool, took: Duration) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
        };
        let attributes = [
            kind_label(kind),
            KeyValue::new("outcome", outcome),
            KeyValue::new("repeated", is_repeat),
        ];
        self.steps.record(took.as_secs_f64(), &attributes);
    }

    /// Records a completed job with the time since it was enqueued.
    pub(crate) fn finished(&self, kind: Kind, age: Duration) {
        self.jobs.record(age.as_secs_f64(), &[kind_label(kind)]);
    }
}

fn fanout_label(is_pulled: bool) -> KeyValue {
    KeyValue::new("mode", if is_pulled { "pull" } else { "push" })
}

fn build_labels(reason: BuildReason, is_done: bool) -> [KeyValue; 2] {
    let reason = match reason {
        BuildReason::FirstRead => "first_read",
        BuildReason::Backfill => "backfill",
        BuildReason::Cleanup => "cleanup",
    };
    [KeyValue::new("reason", reason), KeyValue::new("done", is_done)]
}

fn kind_label(kind: Kind) -> KeyValue {
    let kind = match kind {
        Kind::Unspecified => "unspecified",
        Kind::Push => "push",
        Kind::SwitchToRead => "switch_to_read",
        Kind::Reevaluate => "reevaluate",
    };
    KeyValue::new("kind", kind)
}

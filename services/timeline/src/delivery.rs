//! Delivery of new posts: writes them into user timelines and then enqueues their fan-out. After a
//! crash in between, the caller gets no response and retries both.

use std::sync::Arc;

use microblog_chassis::message;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    config::Mode,
    entry::Entry,
    error::Error,
    job::{Job, Kind, QUEUE},
    metrics::Metrics,
    store::{FanoutState, Published, Store, UNPUSHED_MAX},
};

/// Delivers posts.
#[derive(Clone)]
pub(crate) struct Delivery {
    store: Store,
    mode: Mode,
    // When the last record was written.
    unpushed_recorded_at: Arc<Mutex<Option<Instant>>>,
    metrics: Metrics,
}

impl Delivery {
    pub(crate) fn new(store: Store, mode: Mode, metrics: Metrics) -> Self {
        Self { store, mode, unpushed_recorded_at: Arc::default(), metrics }
    }

    /// Delivers posts. Idempotent.
    pub(crate) async fn deliver(&self, posts: &[Entry]) -> Result<(), Error> {
        if self.mode == Mode::Pull {
            self.record_unpushed().await?;
        }
        let published = self.store.publish(posts).await?;
        let with_outcome = || posts.iter().zip(&published);
        let sending = message::send(QUEUE, posts.len());
        let job = |(post, published)| {
            Some(self.job(post, published)?.with_traceparent(sending.traceparent()))
        };
        let jobs: Vec<_> = with_outcome().filter_map(job).collect();
        sending.run(self.store.enqueue(&jobs)).await?;
        for (_, published) in with_outcome().filter(|(_, published)| published.is_new) {
            self.metrics.posted(self.mode == Mode::Pull || published.state == FanoutState::OnRead);
        }
        Ok(())
    }

    // Home timelines built in another mode become stale: pull mode does not push posts to them.
    async fn record_unpushed(&self) -> Result<(), Error> {
        // One call writes the record; concurrent calls wait for it.
        let mut recorded_at = self.unpushed_recorded_at.lock().await;
        if recorded_at.is_none_or(|at| at.elapsed() > UNPUSHED_MAX / 3) {
            let now = Instant::now();
            self.store.record_unpushed(UNPUSHED_MAX).await?;
            *recorded_at = Some(now);
        }
        Ok(())
    }

    fn job(&self, post: &Entry, published: &Published) -> Option<Job> {
        let kind = match (self.mode, published.state) {
            (Mode::Pull, _) => return None,
            (Mode::Hybrid, FanoutState::OnRead) => Kind::Reevaluate,
            (Mode::Hybrid | Mode::Push, _) => Kind::Push,
        };
        Some(Job::of_post(kind, post))
    }
}

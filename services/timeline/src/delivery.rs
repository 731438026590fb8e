//! Posts taken in: into their authors' timelines first, and then on the way to followers. A crash in
//! between leaves the caller without an answer, who then repeats all of it.

use std::{sync::Arc, time::Duration};

use microblog_chassis::message;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    config::Mode,
    entry::Entry,
    error::Error,
    job::{Job, Kind, QUEUE},
    metrics::Metrics,
    store::{Published, State, Store},
};

/// For how long it is noted at once that posts are not pushed: far longer than one takes to be taken
/// in after that.
const UNPUSHED_MAX: Duration = Duration::from_secs(60);

/// Takes posts in.
#[derive(Clone)]
pub(crate) struct Delivery {
    store: Store,
    mode: Mode,
    // When it was last noted that posts are not pushed.
    unpushed_noted: Arc<Mutex<Option<Instant>>>,
    metrics: Metrics,
}

impl Delivery {
    pub(crate) fn new(store: Store, mode: Mode, metrics: Metrics) -> Self {
        Self { store, mode, unpushed_noted: Arc::default(), metrics }
    }

    /// Takes posts in. May be repeated.
    pub(crate) async fn deliver(&self, posts: &[Entry]) -> Result<(), Error> {
        if self.mode == Mode::Pull {
            self.note_unpushed().await?;
        }
        let published = self.store.publish(posts).await?;
        let with_outcome = || posts.iter().zip(&published);
        let sending = message::send(QUEUE, posts.len());
        let job = |(post, published)| Some(self.job(post, published)?.from(sending.traceparent()));
        let jobs: Vec<_> = with_outcome().filter_map(job).collect();
        sending.run(self.store.enqueue(&jobs)).await?;
        for (_, published) in with_outcome().filter(|(_, published)| published.is_new) {
            self.metrics.posted(self.mode == Mode::Pull || published.state == State::Pulled);
        }
        Ok(())
    }

    // Home timelines that were built in another mode are not to be trusted in that mode again.
    async fn note_unpushed(&self) -> Result<(), Error> {
        // Whoever finds it too old notes it; the others wait until that is done.
        let mut noted = self.unpushed_noted.lock().await;
        if noted.is_none_or(|noted| noted.elapsed() > UNPUSHED_MAX / 3) {
            let now = Instant::now();
            self.store.note_unpushed(UNPUSHED_MAX).await?;
            *noted = Some(now);
        }
        Ok(())
    }

    fn job(&self, post: &Entry, published: &Published) -> Option<Job> {
        let kind = match (self.mode, published.state) {
            (Mode::Pull, _) => return None,
            (Mode::Hybrid, State::Pulled) => Kind::Weigh,
            (Mode::Hybrid | Mode::Push, _) => Kind::Push,
        };
        // What was taken in before may be on its way already, or may have arrived.
        Some(Job::of_post(kind, post, !published.is_new))
    }
}

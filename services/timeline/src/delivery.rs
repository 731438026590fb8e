//! Posts taken in: into their authors' timelines first, and then on the way to followers. A crash in
//! between leaves the caller without an answer, who then repeats all of it.

use crate::{
    config::Mode,
    entry::Entry,
    error::Error,
    job::{Job, Kind},
    metrics::Metrics,
    store::{Published, State, Store},
};

/// Takes posts in.
#[derive(Clone)]
pub(crate) struct Delivery {
    store: Store,
    mode: Mode,
    metrics: Metrics,
}

impl Delivery {
    pub(crate) fn new(store: Store, mode: Mode, metrics: Metrics) -> Self {
        Self { store, mode, metrics }
    }

    /// Takes posts in. May be repeated.
    pub(crate) async fn deliver(&self, posts: &[Entry]) -> Result<(), Error> {
        let published = self.store.publish(posts).await?;
        let with_outcome = || posts.iter().zip(&published);
        let jobs: Vec<_> =
            with_outcome().filter_map(|(post, published)| self.job(post, published)).collect();
        self.store.enqueue(&jobs).await?;
        for (_, published) in with_outcome().filter(|(_, published)| published.is_new) {
            self.metrics.posted(self.mode == Mode::Pull || published.state == State::Pulled);
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

//! The switch of an author between fan-out on write and fan-out on read, in hybrid mode.
//!
//! An author with more followers than the threshold switches from `OnWrite` through `Switching` to
//! `OnRead`. While `Switching`, posts are still pushed, and a job adds the author to the pulled
//! authors of every cached home timeline. A home timeline that is built or backfilled after the job
//! began sees the state and adds the author by itself. The job updates those that existed before.
//! So each post always reaches a follower by push or by pull, or by both, and then it shows once.
//!
//! Switching back to `OnWrite` only changes the state. Home timelines keep the pulled author until
//! they are rebuilt.

use std::ops::Range;

use microblog_chassis::message;
use microblog_domain::UserId;

use crate::{
    config::Mode,
    error::Error,
    job::{Job, QUEUE},
    store::{FanoutState, Store},
};

/// Switches authors.
#[derive(Clone)]
pub(crate) struct FanoutSwitch {
    store: Store,
    /// The follower count above which an author uses fan-out on read.
    threshold: u64,
}

impl FanoutSwitch {
    pub(crate) fn new(store: Store, mode: Mode, threshold: u64) -> Self {
        let threshold = if mode == Mode::Hybrid { threshold } else { u64::MAX };
        Self { store, threshold }
    }

    /// Enqueues the job that switches an author, if the number of followers that a push has reached
    /// passed the threshold in this step.
    pub(crate) async fn enqueue_if_due(
        &self,
        author: UserId,
        reached: Range<u64>,
    ) -> Result<(), Error> {
        let is_passed = reached.start <= self.threshold && reached.end > self.threshold;
        if is_passed && self.store.is_fanout_switch_due(author).await? {
            let sending = message::send(QUEUE, 1);
            let job = Job::switch_to_read(author).with_traceparent(sending.traceparent());
            sending.run(self.store.enqueue(&[job])).await?;
        }
        Ok(())
    }

    /// Begins a switch to fan-out on read. Returns false if it is complete already: several of these
    /// jobs may run for one author, and the first to complete has updated all home timelines.
    pub(crate) async fn begin(&self, author: UserId) -> Result<bool, Error> {
        let (from, to) = (FanoutState::OnWrite, FanoutState::Switching);
        Ok(self.store.switch_fanout(author, from, to).await? != FanoutState::OnRead)
    }

    /// Completes a switch to fan-out on read.
    pub(crate) async fn complete(&self, author: UserId, followers: u64) -> Result<(), Error> {
        self.store.switch_fanout(author, FanoutState::Switching, FanoutState::OnRead).await?;
        tracing::info!(author = author.get(), followers, "author switched to fan-out on read");
        Ok(())
    }

    /// Switches an author with few followers back to fan-out on write. Returns whether it did.
    pub(crate) async fn switch_back(&self, author: UserId, followers: u64) -> Result<bool, Error> {
        // Half of the threshold, so that authors near it do not switch repeatedly.
        if followers >= self.threshold / 2 {
            return Ok(false);
        }
        self.store.switch_fanout(author, FanoutState::OnRead, FanoutState::OnWrite).await?;
        tracing::info!(author = author.get(), followers, "author switched to fan-out on write");
        Ok(true)
    }
}

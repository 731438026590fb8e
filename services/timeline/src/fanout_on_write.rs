//! Fan-out on write (push): brings posts to followers. A job runs in steps of some thousand
//! followers. Each step re-enqueues the rest of the job behind other jobs. So an author with
//! millions of followers does not block others, and a crashed worker loses only one step.
//!
//! **Switch to fan-out on read.** An author with more followers than the threshold switches from
//! `OnWrite` through `Switching` to `OnRead`. While `Switching`, posts are still pushed, and a job
//! adds the author to the pulled authors of every cached home timeline. A home timeline that is
//! built or backfilled after the job began sees the state and adds the author by itself. The job
//! updates those that existed before. So each post always reaches a follower by push or by pull, or
//! by both, and then it shows once. Switching back to `OnWrite` only changes the state. Home
//! timelines keep the pulled author until they are rebuilt.

use microblog_chassis::message;
use microblog_domain::UserId;

use crate::{
    config::Mode,
    error::Error,
    graph::{Followers, Graph},
    job::{Job, Kind, QUEUE},
    metrics::Metrics,
    store::{FanoutState, Store},
};

/// Followers per step: enough for several in each partition, few enough for a fraction of a second.
const STEP_FOLLOWERS: usize = 8_192;

/// Runs fan-out steps.
#[derive(Clone)]
pub(crate) struct Fanout {
    store: Store,
    graph: Graph,
    /// The follower count above which an author uses fan-out on read.
    threshold: u64,
    metrics: Metrics,
}

impl Fanout {
    pub(crate) fn new(
        store: Store,
        graph: Graph,
        mode: Mode,
        threshold: u64,
        metrics: Metrics,
    ) -> Self {
        let threshold = if mode == Mode::Hybrid { threshold } else { u64::MAX };
        Self { store, graph, threshold, metrics }
    }

    /// Runs a step of a job and returns the rest of the job. Steps are idempotent; `is_repeat` says
    /// that an earlier attempt may have run.
    pub(crate) async fn step(&self, job: &Job, is_repeat: bool) -> Result<Option<Job>, Error> {
        match job.kind() {
            Kind::Push => self.push(job, is_repeat).await,
            Kind::SwitchToRead => self.switch_to_read(job).await,
            Kind::Reevaluate => self.reevaluate(job).await,
            Kind::Unspecified => Ok(None),
        }
    }

    async fn push(&self, job: &Job, is_repeat: bool) -> Result<Option<Job>, Error> {
        let Some(post) = job.post() else { return Ok(None) };
        let followers = self.followers(post.author, job).await?;
        let once = is_repeat || job.is_repeat;
        let written = self.store.push(&post, &followers.users, once).await?;
        self.metrics.delivered(written);
        let done = job.followers_done + followers.users.len() as u64;
        if job.followers_done <= self.threshold && done > self.threshold {
            self.enqueue_switch(post.author).await?;
        }
        Ok(rest(job, followers, done))
    }

    async fn enqueue_switch(&self, author: UserId) -> Result<(), Error> {
        if self.store.is_fanout_switch_due(author).await? {
            let sending = message::send(QUEUE, 1);
            let job = Job::switch_to_read(author).with_traceparent(sending.traceparent());
            sending.run(self.store.enqueue(&[job])).await?;
        }
        Ok(())
    }

    // Several of these jobs may run for one author. The first to complete has updated all home
    // timelines.
    async fn switch_to_read(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(author) = job.author() else { return Ok(None) };
        if job.followers_token.is_empty() {
            let before = self
                .store
                .switch_fanout(author, FanoutState::OnWrite, FanoutState::Switching)
                .await?;
            if before == FanoutState::OnRead {
                return Ok(None);
            }
        }
        let followers = self.followers(author, job).await?;
        self.store.add_pulled_author(author, &followers.users).await?;
        let done = job.followers_done + followers.users.len() as u64;
        let rest = rest(job, followers, done);
        if rest.is_none() {
            self.store.switch_fanout(author, FanoutState::Switching, FanoutState::OnRead).await?;
            tracing::info!(
                author = author.get(),
                followers = done,
                "author switched to fan-out on read"
            );
        }
        Ok(rest)
    }

    async fn reevaluate(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(post) = job.post() else { return Ok(None) };
        let followers = self.graph.count_followers(post.author).await?;
        if followers >= self.threshold / 2 {
            return Ok(None);
        }
        self.store.switch_fanout(post.author, FanoutState::OnRead, FanoutState::OnWrite).await?;
        tracing::info!(
            author = post.author.get(),
            followers,
            "author switched to fan-out on write"
        );
        Ok(Some(Job::of_post(Kind::Push, &post, job.is_repeat).with_traceparent(&job.traceparent)))
    }

    async fn followers(&self, author: UserId, job: &Job) -> Result<Followers, Error> {
        self.graph.followers(author, &job.followers_token, STEP_FOLLOWERS).await
    }
}

// Returns the rest of a job after these followers.
fn rest(job: &Job, followers: Followers, done: u64) -> Option<Job> {
    let followers_token = followers.next_token;
    let is_left = !followers_token.is_empty();
    is_left.then(|| Job { followers_token, followers_done: done, ..job.clone() })
}

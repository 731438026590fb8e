//! The way of posts to followers: a job is done in steps, each for some thousand followers, and what
//! is left of it waits behind the jobs of others again. So an author of millions keeps nobody
//! waiting, and of a worker that dies, only a step is done again.
//!
//! **Crossing.** An author with more followers than the threshold is pulled from: `Pushed` →
//! `Crossing`, in which posts are pushed as before while a job of its own tells every home timeline
//! that there is → `Pulled`. A home timeline that is built, or completed after a follow, after the
//! job began finds the author crossing and tells itself; one that was there before is told by the
//! job. So at every moment each of the author's posts is either pushed to a follower or pulled, some
//! both, which shows once. The way back needs nothing but the state: posts are pushed again, and who
//! was told to pull goes on pulling until the timeline is built anew.

use microblog_chassis::message;
use microblog_domain::UserId;

use crate::{
    config::Mode,
    error::Error,
    graph::{Followers, Graph},
    job::{Job, Kind, QUEUE},
    metrics::Metrics,
    store::{State, Store},
};

/// For how many followers a step is: enough that each partition has several of them, few enough that
/// it takes a fraction of a second.
const STEP_FOLLOWERS: usize = 8_192;

/// Does the steps of jobs.
#[derive(Clone)]
pub(crate) struct Fanout {
    store: Store,
    graph: Graph,
    /// With how many followers an author is pulled from.
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

    /// Does a step of a job, and returns what is left. A step may be done twice; with `is_repeat`,
    /// it may have been.
    pub(crate) async fn step(&self, job: &Job, is_repeat: bool) -> Result<Option<Job>, Error> {
        match job.kind() {
            Kind::Push => self.push(job, is_repeat).await,
            Kind::Cross => self.cross(job).await,
            Kind::Weigh => self.weigh(job).await,
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
            self.begin_crossing(post.author).await?;
        }
        Ok(rest(job, followers, done))
    }

    async fn begin_crossing(&self, author: UserId) -> Result<(), Error> {
        if self.store.is_crossing_due(author).await? {
            let sending = message::send(QUEUE, 1);
            let job = Job::crossing(author).from(sending.traceparent());
            sending.run(self.store.enqueue(&[job])).await?;
        }
        Ok(())
    }

    // Any number of these may run for an author: the first to end has told everybody.
    async fn cross(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(author) = job.author() else { return Ok(None) };
        if job.followers_token.is_empty() {
            let before = self.store.cross(author, State::Pushed, State::Crossing).await?;
            if before == State::Pulled {
                return Ok(None);
            }
        }
        let followers = self.followers(author, job).await?;
        self.store.pull(author, &followers.users).await?;
        let done = job.followers_done + followers.users.len() as u64;
        let rest = rest(job, followers, done);
        if rest.is_none() {
            self.store.cross(author, State::Crossing, State::Pulled).await?;
            tracing::info!(author = author.get(), followers = done, "an author is pulled from");
        }
        Ok(rest)
    }

    async fn weigh(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(post) = job.post() else { return Ok(None) };
        let followers = self.graph.count_followers(post.author).await?;
        if followers >= self.threshold / 2 {
            return Ok(None);
        }
        self.store.cross(post.author, State::Pulled, State::Pushed).await?;
        tracing::info!(author = post.author.get(), followers, "an author is pushed again");
        Ok(Some(Job::of_post(Kind::Push, &post, job.is_repeat).from(&job.traceparent)))
    }

    async fn followers(&self, author: UserId, job: &Job) -> Result<Followers, Error> {
        self.graph.followers(author, &job.followers_token, STEP_FOLLOWERS).await
    }
}

// What is left of a job when these followers are done.
fn rest(job: &Job, followers: Followers, done: u64) -> Option<Job> {
    let followers_token = followers.next_token;
    let is_left = !followers_token.is_empty();
    is_left.then(|| Job { followers_token, followers_done: done, ..job.clone() })
}

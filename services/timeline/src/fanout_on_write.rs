//! Fan-out on write (push): brings posts to followers. A job runs in steps of some thousand
//! followers. Each step re-enqueues the rest of the job behind other jobs. So an author with
//! millions of followers does not block others, and a crashed worker loses only one step.

use microblog_domain::UserId;

use crate::{
    error::Error,
    fanout_switch::FanoutSwitch,
    graph::{Followers, Graph},
    job::{Job, Kind},
    metrics::Metrics,
    store::Store,
};

/// Followers per step: enough for several in each partition, few enough for a fraction of a second.
const STEP_FOLLOWERS: usize = 8_192;

/// Runs fan-out steps.
#[derive(Clone)]
pub(crate) struct Fanout {
    pub(crate) store: Store,
    pub(crate) graph: Graph,
    pub(crate) switch: FanoutSwitch,
    pub(crate) metrics: Metrics,
}

impl Fanout {
    /// Runs a step of a job and returns the rest of the job. Steps are idempotent.
    pub(crate) async fn step(&self, job: &Job) -> Result<Option<Job>, Error> {
        match job.kind() {
            Kind::Push => self.push(job).await,
            Kind::SwitchToRead => self.switch_to_read(job).await,
            Kind::Reevaluate => self.reevaluate(job).await,
            Kind::Unspecified => Ok(None),
        }
    }

    async fn push(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(post) = job.post() else { return Ok(None) };
        let followers = self.followers(post.author, job).await?;
        let written = self.store.push(&post, &followers.users).await?;
        self.metrics.delivered(written);
        let done = job.followers_done + followers.users.len() as u64;
        self.switch.enqueue_if_due(post.author, job.followers_done..done).await?;
        Ok(rest(job, followers, done))
    }

    async fn switch_to_read(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(author) = job.author() else { return Ok(None) };
        if job.followers_token.is_empty() && !self.switch.begin(author).await? {
            return Ok(None);
        }
        let followers = self.followers(author, job).await?;
        self.store.add_pulled_author(author, &followers.users).await?;
        let done = job.followers_done + followers.users.len() as u64;
        let rest = rest(job, followers, done);
        if rest.is_none() {
            self.switch.complete(author, done).await?;
        }
        Ok(rest)
    }

    async fn reevaluate(&self, job: &Job) -> Result<Option<Job>, Error> {
        let Some(post) = job.post() else { return Ok(None) };
        let followers = self.graph.count_followers(post.author).await?;
        if !self.switch.switch_back(post.author, followers).await? {
            return Ok(None);
        }
        Ok(Some(Job::of_post(Kind::Push, &post).with_traceparent(&job.traceparent)))
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

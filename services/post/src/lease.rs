//! Jobs that one process of all replicas does at a time. Two at once would change nothing, but do the
//! work twice.

use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    error::Error,
    store::{Job, Store},
};

/// How often a job that is under way is taken again: a third of what it may be left alone.
const RENEWAL_PERIOD: Duration = Duration::from_secs(3);

/// The right to do a job.
pub(crate) struct Lease {
    store: Store,
    job: Job,
    holder: String,
}

impl Lease {
    /// Returns the right to do a job, which may be somebody else's now.
    pub(crate) fn new(store: Store, job: Job) -> Self {
        Self { store, job, holder: Uuid::new_v4().to_string() }
    }

    /// Works, unless another process does, and until another one does. Returns what came of it;
    /// `None` where the other one goes on. Who fails leaves the job to others, who may fare better.
    pub(crate) async fn hold<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<Option<T>, Error> {
        if !self.store.acquire_lease(self.job, &self.holder).await? {
            return Ok(None);
        }
        let done = tokio::select! {
            done = work => done.map(Some),
            lost = self.until_lost() => lost.map(|()| None),
        };
        if done.is_err() {
            self.store.release_lease(self.job, &self.holder).await?;
        }
        done
    }

    async fn until_lost(&self) -> Result<(), Error> {
        loop {
            sleep(RENEWAL_PERIOD).await;
            if !self.store.acquire_lease(self.job, &self.holder).await? {
                return Ok(());
            }
        }
    }
}

//! Leases: one process of all replicas runs a job at a time. Two at once would only repeat work.

use std::time::Duration;

use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    error::Error,
    store::{Job, Store},
};

/// How often a running job renews its lease: a third of the lease's lifetime.
const RENEWAL_PERIOD: Duration = Duration::from_secs(3);

/// A lease on a job, which another process may hold.
pub(crate) struct Lease {
    store: Store,
    job: Job,
    holder: String,
}

impl Lease {
    /// Returns a lease that is not acquired yet.
    pub(crate) fn new(store: Store, job: Job) -> Self {
        Self { store, job, holder: Uuid::new_v4().to_string() }
    }

    /// Runs the work while it holds the lease. Returns `None` if another process holds the lease,
    /// or takes it over. Releases the lease if the work fails: another process may succeed.
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

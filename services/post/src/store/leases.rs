//! Leases on jobs that one process runs at a time.

use std::time::Duration;

use microblog_keyspace::{Call, Error};

use super::client::Store;
use crate::keys;

/// The lifetime of a lease that is not renewed.
const LEASE_TTL: Duration = Duration::from_secs(10);

/// The lifetime that releases a lease.
pub(super) const RELEASE_MS: u64 = 1;

/// A job that one process runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// The archiver.
    Archiving,
    /// The evictor.
    Evicting,
    /// The eraser.
    Erasing,
}

impl Job {
    fn name(self) -> &'static str {
        match self {
            Self::Archiving => "archiver",
            Self::Evicting => "mover",
            Self::Erasing => "eraser",
        }
    }
}

impl Store {
    /// Acquires or renews the lease on a job, for ten seconds. Returns whether the holder has it.
    pub async fn acquire_lease(&self, job: Job, holder: &str) -> Result<bool, Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call(call.arg(holder).arg(LEASE_TTL.as_millis() as u64)).await
    }

    /// Releases the lease on a job.
    pub async fn release_lease(&self, job: Job, holder: &str) -> Result<(), Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call::<bool>(call.arg(holder).arg(RELEASE_MS)).await?;
        Ok(())
    }
}

//! Jobs that one process does at a time.

use std::time::Duration;

use microblog_keyspace::{Call, Error};

use super::Store;
use crate::keys;

/// How long somebody has something that only one may have, unless it is asked for again.
const LEASE_TTL: Duration = Duration::from_secs(10);

/// A lease that ends now.
pub(super) const RELEASE_MS: u64 = 1;

/// A job that one process does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Writing to the archive what it may not know.
    Archiving,
    /// Moving old posts there.
    Evicting,
    /// Erasing what deleted accounts wrote.
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
    /// Takes a job that one process does at a time, for ten seconds. Returns whether it was free, or
    /// its own.
    pub async fn acquire_lease(&self, job: Job, holder: &str) -> Result<bool, Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call(call.arg(holder).arg(LEASE_TTL.as_millis() as u64)).await
    }

    /// Leaves a job to others.
    pub async fn release_lease(&self, job: Job, holder: &str) -> Result<(), Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call::<bool>(call.arg(holder).arg(RELEASE_MS)).await?;
        Ok(())
    }
}

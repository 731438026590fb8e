//! Bringing a post back into Redis, where it can be changed.
//!
//! One at a time does so, under a lease: it reads all of the post in the archive, puts the parts
//! aside in Redis, and then has them take their places in one step, which is refused where the lease
//! is lost, or the post is there. Nobody evicts a post that is not there, and who deletes one ends the
//! lease; so as long as that holds, what was read in the archive is the truth. Whatever a crash leaves
//! is under keys that expire.

use std::time::{Duration, SystemTime};

use microblog_domain::{PostId, Stamp, UserId};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::TieredStore;
use crate::{error::Error, store::RestoreOutcome};

/// How long to try: longer than somebody who died meanwhile keeps the others out.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

/// How long to wait for somebody else who brings the same post back: at first, and at most.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How often the lease is prolonged: a third of the time that it is had for.
const RENEWAL_PERIOD: Duration = Duration::from_secs(3);

impl TieredStore {
    /// Brings a post back into Redis if it is in the archive. Returns whether it is in Redis now.
    pub async fn restore(&self, id: PostId) -> Result<bool, Error> {
        self.restore_post(id, None).await
    }

    /// Brings a post back likewise, for an account that changes it: so many per minute as it may.
    pub async fn restore_for(&self, user: UserId, id: PostId) -> Result<bool, Error> {
        self.restore_post(id, Some(user)).await
    }

    async fn restore_post(&self, id: PostId, user: Option<UserId>) -> Result<bool, Error> {
        if self.store.exist(&[id]).await? == [true] {
            return Ok(true);
        }
        if self.archived(&[id], None).await?.is_empty() {
            // It may have come back in between.
            return Ok(self.store.exist(&[id]).await? == [true]);
        }
        if let Some(user) = user
            && let Some(wait) = self.store.admit_restore(user).await?
        {
            return Err(Error::RestoresThrottled(wait));
        }
        let (deadline, mut wait) = (Instant::now() + RESTORE_TIMEOUT, BACKOFF_MIN);
        while Instant::now() < deadline {
            let holder = Uuid::new_v4().to_string();
            if self.store.begin_restore(id, &holder).await? {
                match self.restore_under_lease(id, &holder).await {
                    Ok(RestoreOutcome::Restored) => return Ok(true),
                    Ok(RestoreOutcome::Deleted) => return Ok(false),
                    Ok(RestoreOutcome::Retry) => {}
                    Err(error) => {
                        self.store.release_restore(id, &holder).await?;
                        return Err(error);
                    }
                }
            }
            // Somebody else is at it, or deletes it.
            sleep(wait).await;
            wait = (wait * 2).min(BACKOFF_MAX);
            if self.store.exist(&[id]).await? == [true] {
                return Ok(true);
            }
            if self.store.have_tombstones(&[id]).await? == [true] {
                return Ok(false);
            }
        }
        Err(Error::RetriesExhausted)
    }

    async fn restore_under_lease(&self, id: PostId, holder: &str) -> Result<RestoreOutcome, Error> {
        let erasing = self.store.erasing(id.partition()).await?;
        let snapshot = tokio::select! {
            snapshot = self.archive()?.read_snapshot(id) => snapshot?,
            lost = self.until_lost(id, holder) => return lost.map(|()| RestoreOutcome::Retry),
        };
        let Some(snapshot) = snapshot else {
            self.store.release_restore(id, holder).await?;
            return Ok(RestoreOutcome::Deleted);
        };
        let until = SystemTime::now() + self.warm_window;
        let until = Stamp::first_at(until, id.partition()).get();
        Ok(self.store.restore(&snapshot, holder, until, &erasing).await?)
    }

    // Keeps the lease while a large post is read, or until it is lost.
    async fn until_lost(&self, id: PostId, holder: &str) -> Result<(), Error> {
        loop {
            sleep(RENEWAL_PERIOD).await;
            if !self.store.renew_restore(id, holder).await? {
                return Ok(());
            }
        }
    }
}

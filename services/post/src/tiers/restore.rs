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

use super::Tiers;
use crate::{error::Error, store::Restored};

/// How long to try: longer than somebody who died meanwhile keeps the others out.
const TRY_MAX: Duration = Duration::from_secs(60);

/// How long to wait for somebody else who brings the same post back: at first, and at most.
const WAIT_MIN: Duration = Duration::from_millis(10);
const WAIT_MAX: Duration = Duration::from_secs(1);

/// How often the lease is prolonged: a third of the time that it is had for.
const RENEWAL: Duration = Duration::from_secs(3);

impl Tiers {
    /// Brings a post back into Redis if it is in the archive. Returns whether it is in Redis now.
    pub async fn bring_back(&self, id: PostId) -> Result<bool, Error> {
        self.return_post(id, None).await
    }

    /// Brings a post back likewise, for an account that changes it: so many per minute as it may.
    pub async fn bring_back_for(&self, user: UserId, id: PostId) -> Result<bool, Error> {
        self.return_post(id, Some(user)).await
    }

    async fn return_post(&self, id: PostId, user: Option<UserId>) -> Result<bool, Error> {
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
        let (give_up, mut wait) = (Instant::now() + TRY_MAX, WAIT_MIN);
        while Instant::now() < give_up {
            let whose = Uuid::new_v4().to_string();
            if self.store.begin_restore(id, &whose).await? {
                match self.restore(id, &whose).await {
                    Ok(Restored::Yes) => return Ok(true),
                    Ok(Restored::Deleted) => return Ok(false),
                    Ok(Restored::Again) => {}
                    Err(error) => {
                        self.store.give_up_restore(id, &whose).await?;
                        return Err(error);
                    }
                }
            }
            // Somebody else is at it, or deletes it.
            sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
            if self.store.exist(&[id]).await? == [true] {
                return Ok(true);
            }
            if self.store.ended(&[id]).await? == [true] {
                return Ok(false);
            }
        }
        Err(Error::Moving)
    }

    async fn restore(&self, id: PostId, whose: &str) -> Result<Restored, Error> {
        let erasing = self.store.erasing(id.partition()).await?;
        let thawed = tokio::select! {
            thawed = self.archive()?.thaw(id) => thawed?,
            lost = self.lost(id, whose) => return lost.map(|()| Restored::Again),
        };
        let Some(frozen) = thawed else {
            self.store.give_up_restore(id, whose).await?;
            return Ok(Restored::Deleted);
        };
        let until = SystemTime::now() + self.warm_window;
        let until = Stamp::first_at(until, id.partition()).get();
        Ok(self.store.restore(&frozen, whose, until, &erasing).await?)
    }

    // Keeps the lease while a large post is read, or until it is lost.
    async fn lost(&self, id: PostId, whose: &str) -> Result<(), Error> {
        loop {
            sleep(RENEWAL).await;
            if !self.store.keep_restore(id, whose).await? {
                return Ok(());
            }
        }
    }
}

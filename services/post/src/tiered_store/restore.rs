//! Restores an archived post to Redis, where it can be changed.
//!
//! One call at a time restores a post, under a lease. It reads the post with its lists from the
//! archive, stages the parts in Redis, and moves them into place in one step. That step fails if
//! the lease is lost or the post is in Redis. A missing post cannot be evicted, and a deletion ends
//! the lease. So while the lease is held, the snapshot is current. After a crash, the staged keys
//! expire.
//!
//! A large post may take longer than its call. The restore goes on, and a repeated call finds the post.

use std::{
    panic::resume_unwind,
    time::{Duration, SystemTime},
};

use microblog_domain::{PostId, Stamp, UserId};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;
use uuid::Uuid;

use super::TieredStore;
use crate::{error::Error, store::RestoreOutcome};

/// How long a call tries to restore a post: longer than the lease of a crashed process.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

/// The back-off while another call restores the same post.
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// How often the lease is renewed: a third of its lifetime.
const RENEWAL_PERIOD: Duration = Duration::from_secs(3);

impl TieredStore {
    /// Restores a post if it is in the archive. Returns whether it is in Redis now.
    pub async fn restore(&self, id: PostId) -> Result<bool, Error> {
        self.restore_post(id, None).await
    }

    /// Restores a post likewise, within the restore rate limit of an account.
    pub async fn restore_for(&self, user: UserId, id: PostId) -> Result<bool, Error> {
        self.restore_post(id, Some(user)).await
    }

    async fn restore_post(&self, id: PostId, user: Option<UserId>) -> Result<bool, Error> {
        if self.store.exist(&[id]).await? == [true] {
            return Ok(true);
        }
        if self.archived(&[id], None).await?.is_empty() {
            // Another call may have restored it in between.
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
                let tiered = self.clone();
                let restored = async move { tiered.restore_under_lease(id, &holder).await };
                let restored = tokio::spawn(restored.in_current_span()).await;
                let restored = restored.unwrap_or_else(|error| match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_) => Err(Error::RetriesExhausted),
                });
                match restored? {
                    RestoreOutcome::Restored => return Ok(true),
                    RestoreOutcome::Deleted => return Ok(false),
                    RestoreOutcome::Retry => {}
                }
            }
            // Another call restores or deletes it.
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

    // Releases the lease if it fails.
    async fn restore_under_lease(&self, id: PostId, holder: &str) -> Result<RestoreOutcome, Error> {
        let restored = self.restore_leased(id, holder).await;
        if let Err(error) = &restored {
            // The call may have ended.
            log_failure(id, error);
            self.store.release_restore(id, holder).await?;
        }
        restored
    }

    async fn restore_leased(&self, id: PostId, holder: &str) -> Result<RestoreOutcome, Error> {
        let erasing = self.store.erasure_fence(id.partition()).await?;
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

    // Renews the lease while a large snapshot is read; returns when it is lost.
    async fn until_lost(&self, id: PostId, holder: &str) -> Result<(), Error> {
        loop {
            sleep(RENEWAL_PERIOD).await;
            if !self.store.renew_restore(id, holder).await? {
                return Ok(());
            }
        }
    }
}

fn log_failure(id: PostId, error: &Error) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(post = id.get(), error, "an archived post was not restored");
}

//! Bringing a post back into Redis, where it can be changed.
//!
//! One at a time does so, under a lease: it reads all of the post in the archive, puts the parts
//! aside in Redis, and then has them take their places in one step, which is refused where the lease
//! is lost, the post is there, or ended meanwhile. Nobody evicts a post that is not there, so as long
//! as the lease holds, what was read in the archive is the truth. Whatever a crash leaves is under
//! keys that expire.

use std::time::{Duration, SystemTime};

use microblog_domain::{PostId, Stamp};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Tiers;
use crate::{error::Error, store::Restored};

/// How long to try: longer than somebody who died meanwhile keeps the others out.
const TRY_MAX: Duration = Duration::from_secs(15);

/// How long to wait for somebody else who brings the same post back.
const WAIT: Duration = Duration::from_millis(20);

impl Tiers {
    /// Brings a post back into Redis if it is in the archive. Returns whether it is in Redis now.
    pub async fn bring_back(&self, id: PostId) -> Result<bool, Error> {
        let give_up = Instant::now() + TRY_MAX;
        while Instant::now() < give_up {
            if self.store.exist(&[id]).await? == [true] {
                return Ok(true);
            }
            if self.archived(&[id], None).await?.is_empty() {
                // It may have come back in between.
                return Ok(self.store.exist(&[id]).await? == [true]);
            }
            let whose = Uuid::new_v4().to_string();
            if !self.store.begin_restore(id, &whose).await? {
                sleep(WAIT).await;
                continue;
            }
            let Some(frozen) = self.archive()?.thaw(id).await? else { continue };
            let until = SystemTime::now() + self.warm_window;
            let until = Stamp::first_at(until, id.partition()).get();
            match self.store.restore(&frozen, &whose, until).await? {
                Restored::Yes => return Ok(true),
                Restored::Deleted => return Ok(false),
                Restored::Again => {}
            }
        }
        Err(Error::Moving)
    }
}

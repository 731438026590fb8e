//! Counts evictions and restores, to show that a test covered them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use microblog_domain::PostId;

/// Lower bounds: only some readers read, at times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// Evicted posts.
    pub(crate) evicted: u64,
    /// Restored posts.
    pub(crate) restored: u64,
    /// Restored posts that were evicted again.
    pub(crate) evicted_again: u64,
    /// Archived posts that were deleted.
    pub(crate) archived_deleted: u64,
    /// Archived posts that were read.
    pub(crate) archived_read: u64,
    /// Lists of authors that continued in the archive.
    pub(crate) archived_scrolled: u64,
    /// Evictions and restores that were too late.
    pub(crate) late: u64,
}

/// Observes evictions and restores.
#[derive(Default)]
pub(crate) struct Watch {
    count: Mutex<Count>,
    // Whether a post is in Redis, and how often it was restored.
    places: Mutex<HashMap<PostId, (bool, u64)>>,
}

impl Watch {
    pub(crate) fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap()
    }

    /// Records whether an existing post is in Redis.
    pub(crate) fn see(&self, id: PostId, is_here: bool) {
        let mut places = self.places.lock().unwrap();
        let (was_here, returns) = places.entry(id).or_insert((true, 0));
        if *was_here == is_here {
            return;
        }
        *was_here = is_here;
        let mut count = self.count();
        if is_here {
            *returns += 1;
            count.restored += 1;
        } else {
            count.evicted += 1;
            count.evicted_again += u64::from(*returns > 0);
        }
    }
}

impl Count {
    /// Returns whether every event occurred.
    pub(crate) fn is_complete(self) -> bool {
        println!("{self:?}");
        let Self { evicted, restored, evicted_again, archived_deleted, .. } = self;
        let Self { archived_read, archived_scrolled, late, .. } = self;
        let all = [
            evicted,
            restored,
            evicted_again,
            archived_deleted,
            archived_read,
            archived_scrolled,
            late,
        ];
        !all.contains(&0)
    }
}

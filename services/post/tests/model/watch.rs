//! What was seen of posts that came and went, so that a test shows that it tested something.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use microblog_domain::PostId;

/// How often what happened, at least: only some looked, now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// Posts left Redis.
    pub(crate) evicted: u64,
    /// Posts came back.
    pub(crate) restored: u64,
    /// Posts left Redis that had come back.
    pub(crate) evicted_again: u64,
    /// Posts were deleted that were not in Redis.
    pub(crate) deleted_there: u64,
    /// Posts were read that were not in Redis.
    pub(crate) read_there: u64,
    /// Lists of authors were read that went on in the archive.
    pub(crate) scrolled_there: u64,
    /// A mover or one who brought back came too late.
    pub(crate) late: u64,
}

/// Sees posts come and go.
#[derive(Default)]
pub(crate) struct Watch {
    count: Mutex<Count>,
    // Whether a post is in Redis, and how often it came back.
    places: Mutex<HashMap<PostId, (bool, u64)>>,
}

impl Watch {
    pub(crate) fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap()
    }

    /// Sees a post that exists in Redis, or not there.
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
    /// Asserts that everything happened.
    pub(crate) fn nothing_is_missing(self) {
        println!("{self:?}");
        let Self { evicted, restored, evicted_again, deleted_there, .. } = self;
        let Self { read_there, scrolled_there, late, .. } = self;
        let all =
            [evicted, restored, evicted_again, deleted_there, read_there, scrolled_there, late];
        assert!(!all.contains(&0), "{self:?}");
    }
}

//! What two lists have in common, in the order of the first one.
//!
//! Where the first list is the shorter one, it is walked, and each chunk is looked up in the other's
//! id set. Where the second one is shorter, it is read whole, which the limit of followings bounds,
//! and looked up in the first list, which tells the order. A page is cut by position in the first
//! list either way, so pages neither repeat nor skip when the lists' lengths change in between.

use std::cmp::Reverse;

use microblog_domain::UserId;
use microblog_keyspace::{Entry, Order};

use crate::{
    error::Error,
    graph::List,
    store::{Store, ids},
};

const CHUNK: usize = 500;

/// How many entries one call looks at while it walks a list, and counts at most: as many as one
/// follows at most, by default.
const EXAMINED_MAX: usize = 5_000;

/// How many entries of the second list one round trip reads: about a millisecond of Redis' time.
const READ_MAX: usize = 2_000;

/// Two lists of follows. Entries are in the order of the first one, with its versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair([(List, UserId); 2]);

/// From where to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of the two lists was the shorter one at the beginning. Costs depend on it, the order
    /// does not.
    pub(crate) shorter: usize,
    /// The last entry of the first list that was looked at; `None` at the beginning.
    pub(crate) after: Option<Entry>,
}

/// Some of what two lists have in common.
pub(crate) struct Found {
    /// Newest first.
    pub(crate) entries: Vec<Entry>,
    /// From where to go on; `None` at the end.
    pub(crate) next: Option<Place>,
}

impl Pair {
    /// Whom both of two users follow.
    pub(crate) fn following(user: UserId, other: UserId) -> Self {
        Self([(List::Following, user), (List::Following, other)])
    }

    /// Who follows a user, and whom the viewer follows.
    pub(crate) fn followers_followed(user: UserId, viewer: UserId) -> Self {
        Self([(List::Followers, user), (List::Following, viewer)])
    }

    /// Returns the beginning.
    pub(crate) async fn beginning(self, store: &Store) -> Result<Place, Error> {
        let [first, second] = store.lengths(self.0).await?;
        Ok(Place { shorter: usize::from(second < first), after: None })
    }

    /// Returns up to `count` entries that come after a place.
    pub(crate) async fn page(
        self,
        store: &Store,
        place: Place,
        count: usize,
    ) -> Result<Found, Error> {
        if place.shorter == 1
            && let Some(common) = self.all(store).await?
        {
            return Ok(cut(common, place, count));
        }
        self.walk(store, Place { shorter: 0, ..place }, count).await
    }

    /// Counts what the lists have in common, among the newest 5,000 of the shorter one.
    pub(crate) async fn count(self, store: &Store) -> Result<usize, Error> {
        Ok(self.counted(store).await?.1.len())
    }

    // Returns all that the lists have in common, by reading the second list whole; `None` if that
    // is longer than a list of followings may be.
    async fn all(self, store: &Store) -> Result<Option<Vec<Entry>>, Error> {
        let [(first_list, first), (second_list, second)] = self.0;
        let room = store.following_limit().max(EXAMINED_MAX);
        let (mut members, mut after) = (Vec::new(), None);
        loop {
            let page = store.page(second_list, second, after, None, READ_MAX).await?;
            members.extend(ids(&page.entries));
            if !page.more {
                break;
            } else if members.len() >= room {
                return Ok(None);
            }
            after = page.entries.last().copied();
        }
        let versions = store.versions(first_list, first, &members).await?;
        let entry = |(member, score): (&UserId, u64)| {
            (score > 0).then_some(Entry { member: member.get(), score })
        };
        Ok(Some(members.iter().zip(versions).filter_map(entry).collect()))
    }

    /// Counts as [`Pair::count`], and returns up to so many of those entries, newest in the first
    /// list first, with its versions.
    pub(crate) async fn count_with_newest(
        self,
        store: &Store,
        newest: usize,
    ) -> Result<(usize, Vec<Entry>), Error> {
        let (shorter, mut entries) = self.counted(store).await?;
        let count = entries.len();
        if shorter == 1 && newest > 0 {
            let (list, user) = self.0[0];
            let versions = store.versions(list, user, &ids(&entries)).await?;
            for (entry, version) in entries.iter_mut().zip(versions) {
                entry.score = version;
            }
            // One that has just left the list has no version any more.
            entries.retain(|entry| entry.score > 0);
            entries.sort_unstable_by_key(|entry| Reverse((entry.score, entry.member)));
        }
        entries.truncate(newest);
        Ok((count, entries))
    }

    // Returns which list is the shorter one, and what its newest 5,000 have in common with the other
    // one, with its own versions.
    async fn counted(self, store: &Store) -> Result<(usize, Vec<Entry>), Error> {
        let Place { shorter, after } = self.beginning(store).await?;
        let shorter_first = if shorter == 0 { self } else { Self([self.0[1], self.0[0]]) };
        let beginning = Place { shorter: 0, after };
        Ok((shorter, shorter_first.walk(store, beginning, usize::MAX).await?.entries))
    }

    async fn walk(self, store: &Store, place: Place, count: usize) -> Result<Found, Error> {
        let [(list, owner), (other_list, other)] = self.0;
        let next = |after| Some(Place { after, ..place });
        let mut after = place.after;
        let mut entries = Vec::new();
        for _ in 0..EXAMINED_MAX / CHUNK {
            let page = store.page(list, owner, after, None, CHUNK).await?;
            let is_common = store.in_id_set(other_list, other, &ids(&page.entries)).await?;
            for (i, entry) in page.entries.iter().enumerate() {
                if is_common.get(i) == Some(&true) {
                    entries.push(*entry);
                }
                if entries.len() == count {
                    let is_last = !page.more && i + 1 == page.entries.len();
                    let next = if is_last { None } else { next(Some(*entry)) };
                    return Ok(Found { entries, next });
                }
            }
            after = page.entries.last().copied();
            if !page.more {
                return Ok(Found { entries, next: None });
            }
        }
        Ok(Found { entries, next: next(after) })
    }
}

// Returns the page of entries, in any order, that comes after a place.
fn cut(mut entries: Vec<Entry>, place: Place, count: usize) -> Found {
    let is_after = |entry: &Entry| {
        place.after.is_none_or(|after| Order::Newest.compare(entry, &after).is_gt())
    };
    entries.retain(is_after);
    entries.sort_unstable_by(|a, b| Order::Newest.compare(a, b));
    let more = entries.len() > count;
    entries.truncate(count);
    let after = entries.last().copied().filter(|_| more);
    Found { entries, next: after.map(|after| Place { after: Some(after), ..place }) }
}

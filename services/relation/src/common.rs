//! What two lists have in common: one list in chunks, each looked up in the other's id set. A
//! chunk costs a round trip, and its look-up another, however long the other list is.

use microblog_domain::UserId;
use microblog_keyspace::Entry;

use crate::{
    error::Error,
    graph::List,
    store::{Store, ids},
};

const CHUNK: usize = 500;

/// How many entries one call looks at: as many as one follows at most, by default.
const EXAMINED_MAX: usize = 5_000;

/// Two lists of follows, of which the shorter one is walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair([(List, UserId); 2]);

/// A place in the list that is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Which of the two lists.
    pub(crate) walked: usize,
    /// The last entry that was looked at; `None` at the beginning.
    pub(crate) after: Option<Entry>,
}

/// Some of what two lists have in common.
pub(crate) struct Found {
    /// In the order of the list that is walked.
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

    /// Returns the beginning of the shorter list.
    pub(crate) async fn beginning(self, store: &Store) -> Result<Place, Error> {
        let [first, second] = store.lengths(self.0).await?;
        Ok(Place { walked: usize::from(second < first), after: None })
    }

    /// Returns what the lists have in common after a place, with the versions of the first list:
    /// up to `count` entries of what up to 5,000 have in common.
    pub(crate) async fn page(
        self,
        store: &Store,
        place: Place,
        count: usize,
    ) -> Result<Found, Error> {
        let mut found = self.walk(store, place, count).await?;
        if place.walked != 0 {
            let (list, user) = self.0[0];
            let ids = ids(&found.entries);
            let versions = store.versions(list, user, &ids).await?;
            for (entry, version) in found.entries.iter_mut().zip(versions) {
                entry.score = version;
            }
            // One that has just left the list has no version any more.
            found.entries.retain(|entry| entry.score > 0);
        }
        Ok(found)
    }

    /// Counts what the lists have in common, among the newest 5,000 of the shorter one.
    pub(crate) async fn count(self, store: &Store) -> Result<usize, Error> {
        let beginning = self.beginning(store).await?;
        Ok(self.walk(store, beginning, usize::MAX).await?.entries.len())
    }

    async fn walk(self, store: &Store, place: Place, count: usize) -> Result<Found, Error> {
        let (list, owner) = self.0[place.walked];
        let (other_list, other) = self.0[1 - place.walked];
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

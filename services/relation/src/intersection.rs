//! The intersection of two lists, in the order of the first one.
//!
//! If the first list is shorter, it is scanned, and each chunk is looked up in the id set of the
//! other list. If the second list is shorter, each page reads it whole, which the following limit
//! bounds, and looks it up in the first list for the order. A page always ends at a position in the
//! first list, so pages neither repeat nor skip entries when the lengths change in between.

use std::cmp::Reverse;

use microblog_domain::{Scope, TokenError, UserId};
use microblog_keyspace::{Entry, Order};

use crate::{
    error::Error,
    graph::List,
    store::{Store, ids},
};

const CHUNK: usize = 500;

/// The most entries that one call scans or counts: the default following limit. With a higher
/// limit, a page reads a shorter second list up to that limit. A scan of a much longer first list
/// would return pages that are nearly empty.
const EXAMINED_MAX: usize = 5_000;

/// The intersection of two lists of follows. Entries have the order and the versions of the first
/// list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intersection([(List, UserId); 2]);

/// The cursor of an intersection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntersectionCursor {
    /// The index of the list that was shorter at the start. It affects the cost, not the order.
    pub(crate) shorter: usize,
    /// The last scanned entry of the first list; `None` at the start.
    pub(crate) after: Option<Entry>,
}

/// A page of an intersection.
pub(crate) struct IntersectionPage {
    /// Newest first.
    pub(crate) entries: Vec<Entry>,
    /// The cursor of the next page; `None` at the end.
    pub(crate) next: Option<IntersectionCursor>,
}

impl IntersectionCursor {
    /// Reads the cursor from a page token; `None` for the first page.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let Some([shorter, score, member]) = scope.read(token)? else { return Ok(None) };
        let shorter = usize::try_from(shorter).ok().filter(|&side| side < 2);
        let shorter = shorter.ok_or(TokenError::Invalid)?;
        Ok(Some(Self { shorter, after: Some(Entry { score, member }) }))
    }

    /// Returns the page token; empty for the start.
    pub(crate) fn token(self, scope: Scope) -> String {
        self.after.map_or_else(String::new, |Entry { score, member }| {
            scope.token([self.shorter as u64, score, member])
        })
    }
}

impl Intersection {
    /// The common followings of two users.
    pub(crate) fn following(user: UserId, other: UserId) -> Self {
        Self([(List::Following, user), (List::Following, other)])
    }

    /// The followers of a user whom the viewer follows.
    pub(crate) fn followers_followed(user: UserId, viewer: UserId) -> Self {
        Self([(List::Followers, user), (List::Following, viewer)])
    }

    /// Returns the start cursor.
    pub(crate) async fn start(self, store: &Store) -> Result<IntersectionCursor, Error> {
        let [first, second] = store.lengths(self.0).await?;
        Ok(IntersectionCursor { shorter: usize::from(second < first), after: None })
    }

    /// Returns up to `count` entries after a cursor.
    pub(crate) async fn page(
        self,
        store: &Store,
        cursor: IntersectionCursor,
        count: usize,
    ) -> Result<IntersectionPage, Error> {
        if cursor.shorter == 1
            && let Some(common) = self.load_all(store).await?
        {
            return Ok(page_after(common, cursor, count));
        }
        let (entries, last) = scan(store, self.0, true, cursor.after, count).await?;
        let next = last.map(|last| IntersectionCursor { shorter: 0, after: Some(last) });
        Ok(IntersectionPage { entries, next })
    }

    // Returns the whole intersection by reading the second list; `None` if it exceeds the following
    // limit.
    async fn load_all(self, store: &Store) -> Result<Option<Vec<Entry>>, Error> {
        let [(first_list, first), (second_list, second)] = self.0;
        let count = store.following_limit().max(EXAMINED_MAX);
        let page = store.page(second_list, second, None, None, count).await?;
        if page.more {
            return Ok(None);
        }
        let members = ids(&page.entries);
        let versions = store.versions(first_list, first, &members).await?;
        let entry = |(member, score): (&UserId, u64)| {
            (score > 0).then_some(Entry { member: member.get(), score })
        };
        Ok(Some(members.iter().zip(versions).filter_map(entry).collect()))
    }

    /// Counts the intersection among the newest 5,000 entries of the shorter list. Also returns up
    /// to `newest` of these entries, with the order and versions of the first list.
    pub(crate) async fn count(
        self,
        store: &Store,
        newest: usize,
    ) -> Result<(usize, Vec<Entry>), Error> {
        let (shorter, mut entries) = self.scan_shorter(store).await?;
        let count = entries.len();
        if shorter == 1 && newest > 0 {
            let (list, user) = self.0[0];
            let versions = store.versions(list, user, &ids(&entries)).await?;
            for (entry, version) in entries.iter_mut().zip(versions) {
                entry.score = version;
            }
            // An entry removed meanwhile has no version.
            entries.retain(|entry| entry.score > 0);
            entries.sort_unstable_by_key(|entry| Reverse((entry.score, entry.member)));
        }
        entries.truncate(newest);
        Ok((count, entries))
    }

    // Returns the index of the shorter list, and the intersection of its newest 5,000 entries with
    // the other list, with its own versions.
    async fn scan_shorter(self, store: &Store) -> Result<(usize, Vec<Entry>), Error> {
        let shorter = self.start(store).await?.shorter;
        let shorter_first = [self.0[shorter], self.0[1 - shorter]];
        Ok((shorter, scan(store, shorter_first, true, None, usize::MAX).await?.0))
    }
}

/// Returns up to `count` entries of a list, after an entry, that the id set of the other list has,
/// or lacks. Scans up to 5,000 entries. A chunk costs two round trips.
///
/// Also returns the last scanned entry, where the next page starts; `None` at the end.
pub(crate) async fn scan(
    store: &Store,
    [(list, owner), (other_list, other)]: [(List, UserId); 2],
    is_in_other: bool,
    mut after: Option<Entry>,
    count: usize,
) -> Result<(Vec<Entry>, Option<Entry>), Error> {
    let mut entries = Vec::new();
    for _ in 0..EXAMINED_MAX / CHUNK {
        let page = store.page(list, owner, after, None, CHUNK).await?;
        let found = store.in_id_set(other_list, other, &ids(&page.entries)).await?;
        for (i, entry) in page.entries.iter().enumerate() {
            if found.get(i) == Some(&is_in_other) {
                entries.push(*entry);
            }
            if entries.len() == count {
                let is_last = !page.more && i + 1 == page.entries.len();
                return Ok((entries, Some(*entry).filter(|_| !is_last)));
            }
        }
        after = page.entries.last().copied();
        if !page.more {
            return Ok((entries, None));
        }
    }
    Ok((entries, after))
}

// Returns the page of unsorted entries after a cursor.
fn page_after(
    mut entries: Vec<Entry>,
    cursor: IntersectionCursor,
    count: usize,
) -> IntersectionPage {
    let is_after = |entry: &Entry| {
        cursor.after.is_none_or(|after| Order::Newest.compare(entry, &after).is_gt())
    };
    entries.retain(is_after);
    entries.sort_unstable_by(|a, b| Order::Newest.compare(a, b));
    let more = entries.len() > count;
    entries.truncate(count);
    let after = entries.last().copied().filter(|_| more);
    IntersectionPage {
        entries,
        next: after.map(|after| IntersectionCursor { after: Some(after), ..cursor }),
    }
}

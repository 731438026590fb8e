//! The intersection of two lists, in the order of the first one.
//!
//! If the first list is shorter, it is scanned, and each chunk is looked up in the other list. If the
//! second list is shorter, each page reads it whole, which the following limit bounds, and looks it up
//! in the first list for the order. A page always ends at a position in the
//! first list, so pages neither repeat nor skip entries when the lengths change in between.

use microblog_domain::{Scope, TokenError, UserId};
use microblog_storage::{ReadError, Record};

use crate::{
    graph::List,
    lists::{Lists, Range, ids},
};

const CHUNK: usize = 500;

/// The most entries that one call scans or counts: the default following limit. With a higher
/// limit, a page reads a shorter second list up to that limit. A scan of a much longer first list
/// would return pages that are nearly empty.
const EXAMINED_MAX: usize = 5_000;

/// The intersection of two lists of follows. Entries have the order and the times of the first
/// list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Intersection([(List, UserId); 2]);

/// The cursor of an intersection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IntersectionCursor {
    /// The index of the list that was shorter at the start. It affects the cost, not the order.
    pub(crate) shorter: usize,
    /// The last scanned entry of the first list; `None` at the start.
    pub(crate) after: Option<Record>,
}

/// A page of an intersection.
pub(crate) struct IntersectionPage {
    /// Newest first.
    pub(crate) entries: Vec<Record>,
    /// The cursor of the next page; `None` at the end.
    pub(crate) next: Option<IntersectionCursor>,
}

impl IntersectionCursor {
    /// Reads the cursor from a page token; `None` for the first page.
    pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Self>, TokenError> {
        let Some([shorter, time_ms, id]) = scope.read(token)? else { return Ok(None) };
        let shorter = usize::try_from(shorter).ok().filter(|&side| side < 2);
        let shorter = shorter.ok_or(TokenError::Invalid)?;
        Ok(Some(Self { shorter, after: Some(Record { time_ms, id }) }))
    }

    /// Returns the page token; empty for the start.
    pub(crate) fn token(self, scope: Scope) -> String {
        self.after.map_or_else(String::new, |Record { time_ms, id }| {
            scope.token([self.shorter as u64, time_ms, id])
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

    /// Returns the list that the entries are from, and its user.
    pub(crate) fn first(self) -> (List, UserId) {
        self.0[0]
    }

    /// Returns the start cursor.
    pub(crate) async fn start(self, lists: &Lists) -> Result<IntersectionCursor, ReadError> {
        let [first, second] = lists.lengths(self.0).await?;
        Ok(IntersectionCursor { shorter: usize::from(second < first), after: None })
    }

    /// Returns up to `count` entries after a cursor.
    pub(crate) async fn page(
        self,
        lists: &Lists,
        cursor: IntersectionCursor,
        count: usize,
    ) -> Result<IntersectionPage, ReadError> {
        if cursor.shorter == 1
            && let Some(common) = self.load_all(lists).await?
        {
            return Ok(page_after(common, cursor, count));
        }
        let (entries, last) = scan(lists, self.0, true, cursor.after, count).await?;
        let next = last.map(|last| IntersectionCursor { shorter: 0, after: Some(last) });
        Ok(IntersectionPage { entries, next })
    }

    // Returns the whole intersection by reading the second list; `None` if it exceeds the following
    // limit.
    async fn load_all(self, lists: &Lists) -> Result<Option<Vec<Record>>, ReadError> {
        let [(first_list, first), (second_list, second)] = self.0;
        let count = lists.following_limit().max(EXAMINED_MAX);
        let page = lists.page(second_list, second, Range::newest(None, count)).await?;
        if page.more {
            return Ok(None);
        }
        Ok(Some(lists.entries_of(first_list, first, &ids(&page.entries)).await?))
    }

    /// Counts the intersection among the newest 5,000 entries of the shorter list. Also returns up
    /// to `newest` of these entries, with the order and times of the first list.
    pub(crate) async fn count(
        self,
        lists: &Lists,
        newest: usize,
    ) -> Result<(usize, Vec<Record>), ReadError> {
        let (shorter, mut entries) = self.scan_shorter(lists).await?;
        let count = entries.len();
        if shorter == 1 && newest > 0 {
            let (list, user) = self.0[0];
            entries = lists.entries_of(list, user, &ids(&entries)).await?;
        }
        entries.truncate(newest);
        Ok((count, entries))
    }

    // Returns the index of the shorter list, and the intersection of its newest 5,000 entries with
    // the other list, with its own times.
    async fn scan_shorter(self, lists: &Lists) -> Result<(usize, Vec<Record>), ReadError> {
        let shorter = self.start(lists).await?.shorter;
        let shorter_first = [self.0[shorter], self.0[1 - shorter]];
        Ok((shorter, scan(lists, shorter_first, true, None, usize::MAX).await?.0))
    }
}

/// Returns up to `count` entries of a list, after an entry, that the other list has,
/// or lacks. Scans up to 5,000 entries. A chunk costs two round trips.
///
/// Also returns the last scanned entry, where the next page starts; `None` at the end.
pub(crate) async fn scan(
    lists: &Lists,
    [(list, owner), (other_list, other)]: [(List, UserId); 2],
    is_in_other: bool,
    mut after: Option<Record>,
    count: usize,
) -> Result<(Vec<Record>, Option<Record>), ReadError> {
    let mut entries = Vec::new();
    for _ in 0..EXAMINED_MAX / CHUNK {
        let page = lists.page(list, owner, Range::newest(after, CHUNK)).await?;
        let found = lists.contains(other_list, other, &ids(&page.entries)).await?;
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

// Returns the page of entries, newest first, after a cursor.
fn page_after(
    mut entries: Vec<Record>,
    cursor: IntersectionCursor,
    count: usize,
) -> IntersectionPage {
    entries.retain(|entry| cursor.after.is_none_or(|after| *entry < after));
    let more = entries.len() > count;
    entries.truncate(count);
    let after = entries.last().copied().filter(|_| more);
    IntersectionPage {
        entries,
        next: after.map(|after| IntersectionCursor { after: Some(after), ..cursor }),
    }
}

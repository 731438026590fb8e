//! Queries and pages of a timeline. Pure.

use microblog_domain::PostId;
use microblog_proto::relation::Relation;

use crate::{
    cursor::{PageCursor, SeenPosts},
    entry::Entry,
};

/// A query for a page.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageQuery {
    /// The most entries.
    pub(crate) size: usize,
    /// The cursor; `None` for the first page.
    pub(crate) cursor: Option<PageCursor>,
    /// If set, only posts that are not in this set.
    pub(crate) since: Option<SeenPosts>,
}

impl PageQuery {
    /// Returns whether the page may list a suppressed repost: not if an earlier page may have
    /// returned it, or if it is not new in a query for new posts.
    pub(crate) fn may_return_repost(&self, entry: &Entry) -> bool {
        let was_returned =
            self.cursor.as_ref().is_some_and(|cursor| cursor.returned.contains(entry));
        !was_returned && self.since.as_ref().is_none_or(|since| since.is_new(entry.post))
    }
}

/// A visible entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VisibleEntry {
    pub(crate) entry: Entry,
    /// Suppressed reposts of the same post (`stand_in_ids`), oldest first, without those that
    /// earlier pages returned.
    pub(crate) suppressed: Vec<Entry>,
}

impl VisibleEntry {
    /// Returns an entry without suppressed reposts.
    pub(super) fn new(entry: Entry) -> Self {
        Self { entry, suppressed: Vec::new() }
    }
}

/// A page of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) entries: Vec<VisibleEntry>,
    /// The cursor of the next page.
    pub(crate) next: Option<PageCursor>,
    /// What the reader has seen with this page: the next `since_token`.
    pub(crate) seen: SeenPosts,
    /// Set on the last page of a timeline at its maximum length: only posts older than this one may
    /// be missing.
    pub(crate) older_than: Option<PostId>,
    /// The viewer's relations to the authors on the page; empty if not loaded.
    pub(crate) relations: Vec<Relation>,
}

impl Page {
    /// Returns the page for a query from the visible entries at its cursor.
    pub(crate) fn new(query: &PageQuery, mut shown: Vec<VisibleEntry>) -> Self {
        let has_more = shown.len() > query.size;
        shown.truncate(query.size);
        let before = query.cursor.as_ref().map(|cursor| &cursor.seen).or(query.since.as_ref());
        let mut seen = before.cloned().unwrap_or_default();
        for shown in &shown {
            seen.insert(shown.entry.post);
        }
        let last = shown.last().map(|shown| shown.entry.post).filter(|_| has_more);
        if let (Some(last), None) = (last, &query.since) {
            seen.insert_down_to(last);
        }
        let next = last.map(|after| Self::next(query, &shown, after, seen.clone()));
        // New posts count as seen only with the last page. A reader who stops before gets them
        // again.
        let seen = query.since.clone().filter(|_| has_more).unwrap_or(seen);
        Self { entries: shown, next, seen, older_than: None, relations: Vec::new() }
    }

    fn next(
        query: &PageQuery,
        shown: &[VisibleEntry],
        after: PostId,
        seen: SeenPosts,
    ) -> PageCursor {
        let returned = query.cursor.as_ref().map(|cursor| cursor.returned.clone());
        let mut returned = returned.unwrap_or_default();
        let names_others =
            |shown: &&VisibleEntry| shown.entry.is_plain_repost() || !shown.suppressed.is_empty();
        shown.iter().filter(names_others).for_each(|shown| returned.insert(&shown.entry));
        PageCursor { after, seen, returned }
    }

    /// Sets `older_than` on the last page of a list whose oldest post is `end`. Queries for new
    /// posts do not set it.
    pub(crate) fn with_older_than(mut self, query: &PageQuery, end: Option<PostId>) -> Self {
        let end = end.filter(|_| self.next.is_none() && query.since.is_none());
        // New posts may have pushed the end above the cursor. Earlier pages have returned all posts
        // down to the cursor.
        let cursor = query.cursor.as_ref().map(|cursor| cursor.after);
        self.older_than = end.map(|end| cursor.map_or(end, |cursor| cursor.min(end)));
        self
    }
}

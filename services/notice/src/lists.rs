//! The calls: lists of notices and of mentions, from the cache, and what it does not have from the database;
//! and marks as seen.

use microblog_domain::{PostId, UserId};
use microblog_proto::notice::NoticeKind;
use microblog_record::{self as record, Database};
use microblog_storage::{Contents, Part, ReadError, Reader, WriteError, Writer};

use crate::{
    group::Calls,
    items::{
        ABOVE_ALL, Bounds, Front, MentionsEntry, NoticeItem, NoticesEntry, Top, read_mentions,
        read_notices,
    },
    notice::{Notice, Seen},
    steps::Call,
};

/// The rows that are read at once.
const ROWS: usize = 200;

/// Which notices to list.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// The kinds.
    pub(crate) kinds: Vec<NoticeKind>,
    /// Only notices below this position, if any.
    pub(crate) below: Option<u64>,
    /// Only notices above this position.
    pub(crate) above: u64,
    /// The most notices.
    pub(crate) count: usize,
    /// Only notices that are not marked as seen.
    pub(crate) unseen: bool,
}

impl Query {
    /// Returns the position up to which there is nothing to find.
    fn floor(&self, seen: &Seen) -> u64 {
        let seen = self.kinds.iter().map(|kind| seen.of(*kind)).min().unwrap_or_default();
        if self.unseen { self.above.max(seen) } else { self.above }
    }

    fn has(&self, notice: &Notice, seen: &Seen) -> bool {
        let (kind, position) = (notice.subject.kind(), notice.position);
        self.kinds.contains(&kind)
            && position > self.above
            && self.below.is_none_or(|below| position < below)
            && (!self.unseen || position > seen.of(kind))
    }
}

/// A part of an account's notices.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The position of the newest act of all notices; 0 if there was none.
    pub(crate) top: u64,
    /// Up to which positions notices are marked as seen.
    pub(crate) seen: Seen,
    /// The notices, newest first.
    pub(crate) notices: Vec<Notice>,
    /// The position below which the list continues; `None` at its end.
    pub(crate) next: Option<u64>,
}

impl Found {
    fn new(top: u64, seen: Seen, notices: Vec<Notice>, query: &Query) -> Self {
        let next = notices.last().filter(|_| notices.len() == query.count);
        Self { top, seen, next: next.map(|last| last.position), notices }
    }
}

/// The notices of all accounts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Notices {
    pub(crate) reader: Reader<NoticeItem>,
    pub(crate) writer: Writer<Calls>,
}

impl Notices {
    /// Returns notices of an account. One round trip if the cache has them.
    pub(crate) async fn list(&self, user: UserId, query: &Query) -> Result<Found, ReadError> {
        let Contents { front, .. } =
            self.reader.read(&part(NoticeItem::Notices, user, Front)).await?;
        let cached = NoticesEntry::read(&front).and_then(|entry| of_entry(entry, query));
        match cached {
            Some(found) => Ok(found),
            None => {
                self.reader
                    .uncached(async |database: &Database| of_database(database, user, query).await)
                    .await
            }
        }
    }

    /// Returns the position of the newest act of an account's notices; 0 if there is none.
    pub(crate) async fn top(&self, user: UserId) -> Result<u64, ReadError> {
        self.reader.read(&part(NoticeItem::Notices, user, Top)).await
    }

    /// Returns up to `count` posts that mention an account, below one, newest first.
    pub(crate) async fn mentions(
        &self,
        user: UserId,
        below: Option<PostId>,
        count: usize,
    ) -> Result<Vec<u64>, ReadError> {
        let below = below.map_or(ABOVE_ALL, PostId::get);
        let Contents { front, .. } =
            self.reader.read(&part(NoticeItem::Mentions, user, Front)).await?;
        if let Some(MentionsEntry { from, posts }) = MentionsEntry::read(&front) {
            let found: Vec<u64> =
                posts.into_iter().filter(|post| *post < below).take(count).collect();
            if from == 0 || found.len() == count {
                return Ok(found);
            }
        }
        let bounds = Bounds { below, above: 0, count };
        let read = async |database: &Database| read_mentions(database, user.get(), bounds).await;
        let (_, _, posts) = self.reader.uncached(read).await?;
        Ok(posts)
    }

    /// Marks notices up to a position as seen.
    pub(crate) async fn mark_seen(
        &self,
        user: UserId,
        kinds: Vec<NoticeKind>,
        position: u64,
    ) -> Result<(), WriteError> {
        self.writer.write(Call::MarkSeen { user, kinds, position }).await.map(drop)
    }
}

/// Returns a part of an item of an account.
pub(crate) fn part<V>(item: NoticeItem, user: UserId, view: V) -> Part<NoticeItem, V> {
    Part { item, id: user.get(), view }
}

// Returns what is asked for, if an entry has all of it.
fn of_entry(entry: NoticesEntry, query: &Query) -> Option<Found> {
    let NoticesEntry { top, seen, from, notices } = entry;
    let found = notices.into_iter().filter(|notice| query.has(notice, &seen));
    let found: Vec<_> = found.take(query.count).collect();
    let is_all = found.len() == query.count || from <= query.floor(&seen) + 1;
    is_all.then(|| Found::new(top, seen, found, query))
}

// Reads what is asked for, page by page: the statement knows no kinds.
async fn of_database(
    database: &Database,
    user: UserId,
    query: &Query,
) -> Result<Found, record::Error> {
    let mut bounds =
        Bounds { below: query.below.unwrap_or(ABOVE_ALL), above: query.above, count: ROWS };
    let (mut found, mut first) = (Vec::new(), None);
    loop {
        let (_, _, page) = read_notices(database, user.get(), bounds).await?;
        // Those of the first page hold for all: marks that come meanwhile hide nothing.
        let (top, seen) = *first.get_or_insert((page.top, page.seen));
        let lowest = page.notices.last().map_or(0, |last| last.position);
        found.extend(page.notices.into_iter().filter(|notice| query.has(notice, &seen)));
        if page.rows < ROWS || found.len() >= query.count || lowest <= query.floor(&seen) + 1 {
            found.truncate(query.count);
            return Ok(Found::new(top, seen, found, query));
        }
        bounds.below = lowest;
    }
}

#[cfg(test)]
mod tests {
    use microblog_domain::Stamp;

    use super::*;
    use crate::notice::{Act, ActState, KINDS, Subject};

    /// A like of a post of its own, or a repost of one.
    fn notice(position: u64) -> Notice {
        let (version, actor) = (Stamp::new(4).unwrap(), UserId::new(8).unwrap());
        let act = Act { id: 8, actor, version, position, state: ActState::Counts };
        let post = PostId::new(position).unwrap();
        let subject =
            if position.is_multiple_of(2) { Subject::Likes(post) } else { Subject::Reposts(post) };
        Notice { position, subject, acts: vec![act], earlier: 0 }
    }

    fn entry(from: u64) -> NoticesEntry {
        let mut seen = Seen::default();
        seen.mark(NoticeKind::Like, 16);
        seen.mark(NoticeKind::Repost, 13);
        NoticesEntry { top: 20, seen, from, notices: (10..=20).rev().map(notice).collect() }
    }

    fn found(from: u64, query: &Query) -> Option<(Vec<u64>, Option<u64>)> {
        let found = of_entry(entry(from), query)?;
        Some((found.notices.iter().map(|notice| notice.position).collect(), found.next))
    }

    #[test]
    fn an_entry_answers_what_it_has() {
        let all = Query { kinds: KINDS.into(), below: None, above: 0, count: 3, unseen: false };
        assert_eq!(found(10, &all), Some((vec![20, 19, 18], Some(18))));
        let rest = Query { below: Some(12), ..all.clone() };
        assert_eq!(found(10, &rest), None, "older ones are in the database");
        assert_eq!(found(0, &rest), Some((vec![11, 10], None)));
        let newer = Query { above: 17, count: 9, ..all.clone() };
        assert_eq!(found(10, &newer), Some((vec![20, 19, 18], None)));
        let unseen = Query { unseen: true, count: 9, ..all.clone() };
        assert_eq!(found(10, &unseen), None, "of other kinds, no notice is marked as seen");
        let unseen = Query { kinds: vec![NoticeKind::Like, NoticeKind::Repost], ..unseen };
        assert_eq!(found(10, &unseen), Some((vec![20, 19, 18, 17, 15], None)));
        assert_eq!(found(15, &unseen), None);
        let likes = Query { kinds: vec![NoticeKind::Like], ..unseen };
        assert_eq!(found(15, &likes), Some((vec![20, 18], None)));
    }
}

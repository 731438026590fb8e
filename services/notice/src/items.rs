//! What is cached of notices: how it is loaded, and what an entry has. Each is one entry with a front and no
//! records. A change deletes the entry.

use futures::future::BoxFuture;
use microblog_keyspace::{
    Library, decode,
    redis::{Cmd, Value, cmd},
};
use microblog_record::{
    Database, Error,
    sql::{number, statement},
};
use microblog_storage::{
    Contents, EntryKeys, EntryLimits, Found, Head, History, Item, Loaded, View,
    entry::HEADER,
    library,
    transaction::{history_columns, row_history},
};
use prost::Message as _;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    notice::{Act, KINDS, Notice, NoticeRow, Seen, Subject},
    tables::{NOTICE, malformed, packed, read_notice, read_packed},
};

/// The most notices in an entry: the newest ones.
pub(crate) const NOTICES_CACHED: usize = 50;

/// The most mentions in an entry: those with the largest ids.
pub(crate) const MENTIONS_CACHED: usize = 100;

/// Above each position and each id, in a column.
pub(crate) const ABOVE_ALL: u64 = i64::MAX as u64;

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum NoticeItem {
    /// The newest notices of an account, and what is marked as seen.
    Notices,
    /// The newest posts that mention an account.
    Mentions,
}

impl NoticeItem {
    fn revision(self) -> &'static str {
        match self {
            Self::Notices => "revision",
            Self::Mentions => "mentions_revision",
        }
    }
}

impl Item for NoticeItem {
    const PREFIX: &'static str = "note";
    const LIBRARY: Library = library("notice");
    // Watchers ask for a few bytes of an entry that is often long.
    const SMALL: &'static [Self] = &[];

    fn kind(self) -> &'static str {
        match self {
            Self::Notices => "notices",
            Self::Mentions => "mentions",
        }
    }

    fn limits(self) -> EntryLimits {
        EntryLimits::without_sets(0)
    }

    fn load(self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, Error>> {
        Box::pin(async move {
            let (history, revision, front) = match self {
                Self::Notices => {
                    let bounds = Bounds { below: ABOVE_ALL, above: 0, count: NOTICES_CACHED + 1 };
                    let (history, revision, page) = read_notices(database, id, bounds).await?;
                    (history, revision, NoticesEntry::of_page(page).write())
                }
                Self::Mentions => {
                    let bounds = Bounds { below: ABOVE_ALL, above: 0, count: MENTIONS_CACHED + 1 };
                    let (history, revision, posts) = read_mentions(database, id, bounds).await?;
                    (history, revision, MentionsEntry::of_page(posts).write())
                }
            };
            // Without a row, there is nothing.
            let front = if revision == 0 { Vec::new() } else { front };
            let contents = Contents { front: front.into(), records: Vec::new() };
            Ok(Loaded { history, revision, contents })
        })
    }
}

/// Which rows of a list to read, newest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Only those below this position or id, and above that one.
    pub(crate) below: u64,
    pub(crate) above: u64,
    /// The most rows.
    pub(crate) count: usize,
}

/// Notices of an account, as the database has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoticesPage {
    /// The position of the newest act of all notices.
    pub(crate) top: u64,
    /// Up to which positions notices are marked as seen.
    pub(crate) seen: Seen,
    /// The notices, newest first.
    pub(crate) notices: Vec<Notice>,
    /// How many rows were read: a damaged one is not among the notices.
    pub(crate) rows: usize,
}

// Returns the statement that reads a page of a list with the account's numbers. Its parameters are the account and
// the bounds; its columns are the numbers, the entries, and the history.
fn page_text(
    is_embedded: bool,
    numbers: &[&str],
    [table, order, condition]: [&str; 3],
    entry: &[&str],
) -> String {
    let zero = |column: &&str| format!("COALESCE({column}, 0)");
    let numbers: Vec<String> = numbers.iter().map(zero).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    let (numbers, columns, entry) = (packed(&numbers), entry.join(", "), packed(entry));
    let history = history_columns(is_embedded);
    format!(
        "SELECT {numbers}, COALESCE((SELECT string_agg({entry}, ' ') FROM (SELECT {columns} FROM {table} \
         WHERE account = $1 AND {order} < $2 AND {order} > $3{condition} \
         ORDER BY {order} DESC LIMIT $4) AS newest), ''), {history} \
         FROM (SELECT 1 AS one) AS one LEFT JOIN accounts ON id = $1"
    )
}

/// Returns the statement that reads notices.
pub(crate) fn notices_text(is_embedded: bool) -> String {
    let mut numbers = vec![NoticeItem::Notices.revision(), "top"];
    numbers.extend([
        "seen_follow",
        "seen_mutual",
        "seen_mention",
        "seen_comment",
        "seen_reply",
        "seen_repost",
        "seen_like",
    ]);
    let list = ["notices", "position", " AND counting > 0"];
    page_text(is_embedded, &numbers, list, &NOTICE)
}

/// Returns the statement that reads mentions.
pub(crate) fn mentions_text(is_embedded: bool) -> String {
    let numbers = [NoticeItem::Mentions.revision()];
    page_text(is_embedded, &numbers, ["mentions", "post", ""], &["post"])
}

async fn read_page<T: Send>(
    database: &Database,
    text: String,
    id: u64,
    Bounds { below, above, count }: Bounds,
    read: fn(&AnyRow) -> Result<T, sqlx::Error>,
) -> Result<(History, T), Error> {
    let work = async {
        let numbers = [id, below, above, count as u64];
        let query = numbers.into_iter().fold(statement(text), |query, one| query.bind(number(one)));
        let row = query.fetch_one(database.readers()).await?;
        Ok((row_history(database, &row, HISTORY)?, read(&row)?))
    };
    database.read("SELECT notices", work).await
}

/// The first column of the history.
const HISTORY: usize = 2;

/// Reads notices of an account. Returns the revision of the item, too.
pub(crate) async fn read_notices(
    database: &Database,
    id: u64,
    bounds: Bounds,
) -> Result<(History, u64, NoticesPage), Error> {
    let read = |row: &AnyRow| {
        let [revision, top, seen @ ..]: [u64; 2 + KINDS.len()] = read_packed(row, 0)?;
        let text: String = row.try_get(1)?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let (mut notices, mut rows) = (Vec::new(), 0);
        for words in words.chunks(NOTICE.len()) {
            let (subject, row) = read_notice(words)?;
            notices.extend(Notice::new(subject, row));
            rows += 1;
        }
        notices.sort_unstable_by_key(|notice| std::cmp::Reverse(notice.position));
        Ok((revision, NoticesPage { top, seen: Seen(seen), notices, rows }))
    };
    let text = notices_text(database.is_embedded());
    let (history, (revision, page)) = read_page(database, text, id, bounds, read).await?;
    Ok((history, revision, page))
}

/// Reads posts that mention an account, newest first. Returns the revision of the item, too.
pub(crate) async fn read_mentions(
    database: &Database,
    id: u64,
    bounds: Bounds,
) -> Result<(History, u64, Vec<u64>), Error> {
    let read = |row: &AnyRow| {
        let [revision] = read_packed(row, 0)?;
        let text: String = row.try_get(1)?;
        let posts = text.split_ascii_whitespace().map(|post| post.parse::<u64>());
        let mut posts: Vec<u64> = posts.collect::<Result<_, _>>().map_err(|_| malformed())?;
        posts.sort_unstable_by(|one, other| other.cmp(one));
        Ok((revision, posts))
    };
    let text = mentions_text(database.is_embedded());
    let (history, (revision, posts)) = read_page(database, text, id, bounds, read).await?;
    Ok((history, revision, posts))
}

/// The notices of an account, as an entry has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoticesEntry {
    pub(crate) top: u64,
    pub(crate) seen: Seen,
    /// From this position on, these are all.
    pub(crate) from: u64,
    /// Newest first.
    pub(crate) notices: Vec<Notice>,
}

impl NoticesEntry {
    // Returns the entry of the newest notices: one more than it has, if there are more.
    fn of_page(NoticesPage { top, seen, mut notices, rows }: NoticesPage) -> Self {
        let has_more = rows > NOTICES_CACHED;
        notices.truncate(NOTICES_CACHED);
        let from = match (has_more, notices.last()) {
            (false, _) => 0,
            (true, Some(last)) => last.position,
            (true, None) => ABOVE_ALL,
        };
        Self { top, seen, from, notices }
    }

    // The position of the newest act comes first: it is read alone.
    fn write(&self) -> Vec<u8> {
        let notice = |notice: &Notice| {
            let [kind, subject, comment] = notice.subject.numbers();
            let acts = Act::pack(&notice.acts);
            EntryNotice { kind, subject, comment, earlier: notice.earlier, acts }
        };
        let notices = self.notices.iter().map(notice).collect();
        let body = NoticesBody { seen: self.seen.0.to_vec(), from: self.from, notices };
        [&self.top.to_be_bytes()[..], &body.encode_to_vec()].concat()
    }

    /// Reads an entry; `None` if it is damaged.
    pub(crate) fn read(front: &[u8]) -> Option<Self> {
        if front.is_empty() {
            return Some(Self::default());
        }
        let (top, body) = front.split_first_chunk()?;
        let NoticesBody { seen, from, notices } = NoticesBody::decode(body).ok()?;
        let notice = |EntryNotice { kind, subject, comment, earlier, acts }: EntryNotice| {
            let subject = Subject::read([kind, subject, comment])?;
            Notice::new(subject, NoticeRow { earlier, acts: Act::unpack(&acts)? })
        };
        let notices = notices.into_iter().map(notice).collect::<Option<_>>()?;
        let (top, seen) = (u64::from_be_bytes(*top), Seen(seen.try_into().ok()?));
        Some(Self { top, seen, from, notices })
    }
}

/// What follows the position of the newest act in an entry of notices.
#[derive(Clone, PartialEq, prost::Message)]
struct NoticesBody {
    #[prost(uint64, repeated, tag = "1")]
    seen: Vec<u64>,
    #[prost(uint64, tag = "2")]
    from: u64,
    #[prost(message, repeated, tag = "3")]
    notices: Vec<EntryNotice>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EntryNotice {
    #[prost(uint64, tag = "1")]
    kind: u64,
    #[prost(uint64, tag = "2")]
    subject: u64,
    #[prost(uint64, tag = "3")]
    comment: u64,
    #[prost(uint64, tag = "4")]
    earlier: u64,
    #[prost(bytes = "vec", tag = "5")]
    acts: Vec<u8>,
}

/// The posts that mention an account, as an entry has them.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MentionsEntry {
    /// From this id on, these are all.
    #[prost(uint64, tag = "1")]
    pub(crate) from: u64,
    /// Newest first.
    #[prost(uint64, repeated, tag = "2")]
    pub(crate) posts: Vec<u64>,
}

impl MentionsEntry {
    // Returns the entry of the newest mentions: one more than it has, if there are more.
    fn of_page(mut posts: Vec<u64>) -> Self {
        let has_more = posts.len() > MENTIONS_CACHED;
        posts.truncate(MENTIONS_CACHED);
        let from = posts.last().copied().filter(|_| has_more).unwrap_or_default();
        Self { from, posts }
    }

    fn write(&self) -> Vec<u8> {
        self.encode_to_vec()
    }

    /// Reads an entry; `None` if it is damaged.
    pub(crate) fn read(front: &[u8]) -> Option<Self> {
        Self::decode(front).ok()
    }
}

/// The whole front of an item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front;

impl View for Front {
    type Output = Contents;

    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd> {
        vec![cmd("GETRANGE").arg(&keys.entry).arg(0).arg(-1).take()]
    }

    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<Contents>, microblog_keyspace::Error> {
        let entry: Vec<u8> = decode(replies.into_iter().next().unwrap_or(Value::Nil))?;
        if entry.is_empty() {
            return Ok(Found::Missing);
        }
        Ok(Contents::read(&entry).map_or(Found::Broken, Found::Whole))
    }

    fn of_item(&self, contents: &Contents) -> Contents {
        contents.clone()
    }
}

/// The position of the newest act of an account's notices; 0 if there is none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Top;

impl Top {
    const BYTES: usize = size_of::<u64>();

    fn read(front: &[u8]) -> u64 {
        front.first_chunk().map_or(0, |top| u64::from_be_bytes(*top))
    }
}

impl View for Top {
    type Output = u64;

    fn commands(&self, keys: &EntryKeys) -> Vec<Cmd> {
        let end = HEADER + Self::BYTES - 1;
        vec![cmd("GETRANGE").arg(&keys.entry).arg(0).arg(end).take()]
    }

    fn of_entry(&self, replies: Vec<Value>) -> Result<Found<u64>, microblog_keyspace::Error> {
        let entry: Vec<u8> = decode(replies.into_iter().next().unwrap_or(Value::Nil))?;
        if entry.is_empty() {
            return Ok(Found::Missing);
        }
        let is_whole = |head: &Head| head.front == 0 || entry.len() == HEADER + Self::BYTES;
        Ok(match Head::read(&entry).filter(is_whole) {
            Some(_) => Found::Whole(Self::read(&entry[HEADER..])),
            None => Found::Broken,
        })
    }

    fn of_item(&self, contents: &Contents) -> u64 {
        Self::read(&contents.front)
    }
}

#[cfg(test)]
mod tests {
    use microblog_domain::{PostId, Stamp, UserId};

    use super::*;
    use crate::notice::ActState;

    fn notice(position: u64) -> Notice {
        let act = Act {
            id: position,
            actor: UserId::new(8).unwrap(),
            version: Stamp::new(position).unwrap(),
            position,
            state: ActState::Counts,
        };
        let subject = Subject::Mention(PostId::new(position).unwrap());
        Notice { position, subject, acts: vec![act], earlier: 3 }
    }

    fn page(count: u64) -> NoticesPage {
        let notices: Vec<_> = (1..=count).rev().map(notice).collect();
        NoticesPage {
            top: count + 7,
            seen: Seen([1, 2, 3, 4, 5, 6, 7]),
            rows: notices.len(),
            notices,
        }
    }

    #[test]
    fn notices_are_read_as_they_were_written() {
        for (count, cached, from) in [(0, 0, 0), (3, 3, 0), (50, 50, 0), (51, 50, 2)] {
            let entry = NoticesEntry::of_page(page(count));
            assert_eq!((entry.notices.len(), entry.from), (cached, from), "{count}");
            let front = entry.write();
            assert_eq!(Top::read(&front), count + 7);
            assert_eq!(NoticesEntry::read(&front), Some(entry));
        }
        assert_eq!(NoticesEntry::read(&[]), Some(NoticesEntry::default()));
        assert_eq!(Top::read(&[]), 0);
    }

    #[test]
    fn mentions_are_read_as_they_were_written() {
        for (count, cached, from) in [(0, 0, 0), (100, 100, 0), (101, 100, 2)] {
            let entry = MentionsEntry::of_page((1..=count).rev().collect());
            assert_eq!((entry.posts.len(), entry.from), (cached, from), "{count}");
            assert_eq!(MentionsEntry::read(&entry.write()), Some(entry));
        }
    }

    #[test]
    fn fuzz_entries() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|front| {
            let _ = (NoticesEntry::read(front), MentionsEntry::read(front), Top::read(front));
        });
    }
}

//! What is cached of posts: how it is loaded, and what an entry has.

use futures::future::BoxFuture;
use microblog_domain::{CommentId, PostId, UserId};
use microblog_keyspace::Library;
use microblog_record::{
    Database, Error,
    sql::{number, read_text, statement, text_column},
};
use microblog_storage::{
    Contents, EntryLimits, Item, Loaded, Record, library,
    transaction::{history_columns, row_history},
};
use prost::Message as _;
use sqlx::{Row as _, any::AnyRow};

use crate::{
    post::{Comment, CommentContent, Content, Counts, Origin, Reply},
    steps::{AccountRow, LIKED_RELOADED, PostRow},
    tables::{malformed, numbers, read_packed},
};

/// The most reposts of a post in an entry: the newest ones of a longer list.
pub(crate) const REPOSTS_MAX: usize = 40;

/// The likes of a post in an entry: the newest ones of a longer list. So many are loaded that neither a like
/// nor the end of one makes them too many or too few.
const LIKES_MIN: usize = 30;
const LIKES_LOADED: usize = 45;
const LIKES_MAX: usize = 60;

/// The most posts of an author in an entry: the newest ones.
pub(crate) const AUTHOR_MAX: usize = 100;

/// The most posts that an account likes of which an entry is loaded: those with the largest ids. Likes are
/// added to it until it is loaded again.
pub(crate) const LIKED_MAX: usize = 250;

/// The most comments at each end of the list in an entry, and the most bytes of their texts.
const COMMENTS_MAX: usize = 20;
const COMMENTS_BYTES_MAX: usize = 32 * 1024;

/// A kind of item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum PostItem {
    /// A post: the counts, behind them the content, and the newest likes.
    Post,
    /// The oldest and the newest comments on a post, and their number.
    Comments,
    /// The newest reposts of a post, and their number.
    Reposts,
    /// The newest posts of an account, and their number.
    Author,
    /// Posts that an account likes: all from an id on, which is the front.
    Liked,
}

impl PostItem {
    /// All kinds.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 5] =
        [Self::Post, Self::Comments, Self::Reposts, Self::Author, Self::Liked];

    /// Returns the beginning of the front that a change of a post's row gives an entry of the post.
    pub(crate) fn front_of_post(self, row: &PostRow) -> Option<Vec<u8>> {
        match self {
            Self::Post => Some(front_of_counts([row.likes, row.comments, row.reposts])),
            // Loaded again: new ones may not be the newest, or have texts.
            Self::Reposts | Self::Comments => None,
            Self::Author | Self::Liked => None,
        }
    }

    /// Returns the beginning of the front that a change of an account's row gives an entry of the account.
    pub(crate) fn front_of_account(self, row: &AccountRow) -> Option<Vec<u8>> {
        match self {
            Self::Author => Some(count(row.posts).into()),
            Self::Liked => Some(vec![LIKED_START]),
            Self::Post | Self::Comments | Self::Reposts => None,
        }
    }

    /// Returns the statement that loads an item by its id, the parameter. The first column has the revision and
    /// counts, the second one a list, the third one is what else is of the kind; the history is behind them.
    pub(crate) fn load_text(self, database: &Database) -> String {
        let history = history_columns(database.is_embedded());
        let zeros = |columns: &[&str]| {
            let columns: Vec<_> =
                columns.iter().map(|column| format!("COALESCE({column}, 0)")).collect();
            format!("concat_ws(' ', {})", columns.join(", "))
        };
        let newest = |entry: &str, rows: String| {
            format!("COALESCE((SELECT string_agg({entry}, ' ') FROM ({rows}) AS newest), '')")
        };
        let list = |numbers: String, of: &str, entry: &str, rows: String| {
            let newest = newest(entry, rows);
            format!(
                "SELECT {numbers}, {newest}, '', {history} \
                 FROM (SELECT 1 AS one) AS one LEFT JOIN {of} ON id = $1"
            )
        };
        match self {
            Self::Post => {
                let numbers = zeros(&[
                    "posts.revision",
                    "posts.likes",
                    "posts.comments",
                    "posts.reposts",
                    "posts.author",
                    "posts.root",
                    "posts.reposted",
                ]);
                let likes = newest(
                    "concat_ws(' ', since, account)",
                    format!(
                        "SELECT since, account FROM likes WHERE post = $1 \
                         ORDER BY since DESC, account DESC LIMIT {LIKES_LOADED}"
                    ),
                );
                let text = text_column(database, "COALESCE(texts.text, '')");
                format!(
                    "SELECT {numbers}, {likes}, {text}, {history} FROM (SELECT 1 AS one) AS one \
                     LEFT JOIN posts ON posts.id = $1 LEFT JOIN texts ON texts.id = $1"
                )
            }
            Self::Reposts => list(
                zeros(&["revision", "reposts"]),
                "posts",
                "concat_ws(' ', 0, repost)",
                format!(
                    "SELECT repost FROM reposts WHERE target = $1 ORDER BY repost DESC LIMIT {REPOSTS_MAX}"
                ),
            ),
            Self::Author => list(
                zeros(&["posts_revision", "posts"]),
                "accounts",
                "concat_ws(' ', 0, newest.id)",
                format!(
                    "SELECT id FROM texts WHERE author = $1 ORDER BY id DESC LIMIT {AUTHOR_MAX}"
                ),
            ),
            Self::Liked => list(
                zeros(&["liked_revision"]),
                "accounts",
                "concat_ws(' ', 0, post)",
                format!(
                    "SELECT post FROM likes WHERE account = $1 ORDER BY post DESC LIMIT {}",
                    LIKED_MAX + 1
                ),
            ),
            Self::Comments => {
                let numbers = zeros(&["posts.revision", "posts.comments"]);
                let end = |order: &str| {
                    format!(
                        "SELECT * FROM (SELECT id, author, reply_to, reply_author, text FROM comments \
                         WHERE post = $1 ORDER BY id {order} LIMIT {COMMENTS_MAX}) AS {order}_end"
                    )
                };
                let (oldest, newest) = (end("ASC"), end("DESC"));
                let entry = zeros(&["ends.id", "author", "reply_to", "reply_author"]);
                let entry = entry.replace("COALESCE(author", "COALESCE(ends.author");
                let text = text_column(database, "COALESCE(ends.text, '')");
                format!(
                    "SELECT {numbers}, {entry}, {text}, {history} FROM (SELECT 1 AS one) AS one \
                     LEFT JOIN posts ON posts.id = $1 \
                     LEFT JOIN ({oldest} UNION {newest}) AS ends ON 1 = 1 ORDER BY ends.id"
                )
            }
        }
    }

    // Returns the revision and the contents, of rows that are not empty.
    fn contents(self, rows: &[AnyRow]) -> Result<(u64, Contents), sqlx::Error> {
        let row = rows.first().ok_or_else(malformed)?;
        let (revision, front, records) = match self {
            Self::Post => {
                let [revision, likes, comments, reposts, author, root, reposted] =
                    read_packed(row, 0)?;
                let body = Body { author, root, reposted, text: read_text(row, 2)? };
                (revision, post_front([likes, comments, reposts], &body), read_records(row)?)
            }
            Self::Reposts | Self::Author => {
                let [revision, length] = read_packed(row, 0)?;
                (revision, count(length).to_vec(), read_records(row)?)
            }
            Self::Liked => {
                let [revision] = read_packed(row, 0)?;
                let mut records = read_records(row)?;
                let mut from = 0;
                if records.len() > LIKED_MAX {
                    // The largest ids are last.
                    records.drain(..records.len() - LIKED_MAX);
                    from = records[0].id;
                }
                let front = [&[LIKED_START][..], &from.to_be_bytes()].concat();
                (revision, front, records)
            }
            Self::Comments => {
                let [revision, comments] = read_packed(row, 0)?;
                let entries = rows.iter().filter_map(|row| comment_entry(row).transpose());
                let entries = entries.collect::<Result<Vec<_>, _>>()?;
                let ends = CommentEnds::of(entries).encode_to_vec();
                (revision, [&count(comments)[..], &ends].concat(), Vec::new())
            }
        };
        // Without a row, there is nothing; what a deleted post has left behind is not read.
        if revision == 0 {
            return Ok((0, Contents::default()));
        }
        let records = Record::write_all(records);
        Ok((revision, Contents { front: front.into(), records }))
    }
}

impl Item for PostItem {
    const PREFIX: &'static str = "pst";
    const LIBRARY: Library = library("post");
    const SMALL: &'static [Self] = &[Self::Post];

    fn kind(self) -> &'static str {
        match self {
            Self::Post => "post",
            Self::Comments => "comments",
            Self::Reposts => "reposts",
            Self::Author => "author",
            Self::Liked => "liked",
        }
    }

    fn limits(self) -> EntryLimits {
        if self == Self::Post {
            return EntryLimits { cut: LIKES_MAX, ..EntryLimits::without_sets(LIKES_MIN) };
        }
        EntryLimits::without_sets(match self {
            Self::Post | Self::Comments => 0,
            Self::Reposts => REPOSTS_MAX,
            Self::Author => AUTHOR_MAX,
            // Never cut: only a load sets from where on it is complete.
            Self::Liked => LIKED_MAX + LIKED_RELOADED as usize,
        })
    }

    fn load(self, database: &Database, id: u64) -> BoxFuture<'_, Result<Loaded, Error>> {
        let work = async move {
            let query = statement(self.load_text(database)).bind(number(id));
            let rows = query.fetch_all(database.readers()).await?;
            let first = rows.first().ok_or_else(malformed)?;
            let history = row_history(database, first, HISTORY)?;
            let (revision, contents) = self.contents(&rows)?;
            Ok(Loaded { history, revision, contents })
        };
        database.read("SELECT posts", work)
    }
}

/// The first column of the history.
const HISTORY: usize = 3;

/// Before the id in the front of what an account likes: a change of an entry has a front, and leaves the id.
const LIKED_START: u8 = 1;

fn count(count: u64) -> [u8; 4] {
    u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes()
}

fn read_count(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    Some((u64::from(u32::from_be_bytes(*count)), rest))
}

// Reads the entries of a list, oldest first.
fn read_records(row: &AnyRow) -> Result<Vec<Record>, sqlx::Error> {
    let text: String = row.try_get(1)?;
    let numbers = numbers(&text)?;
    let (entries, []) = numbers.as_chunks() else { return Err(malformed()) };
    let record = |&[time_ms, id]: &[u64; 2]| Record { time_ms, id };
    let mut records: Vec<_> = entries.iter().map(record).collect();
    records.sort_unstable();
    Ok(records)
}

/// The content of a post, as an entry has it.
#[derive(Clone, PartialEq, prost::Message)]
struct Body {
    #[prost(uint64, tag = "1")]
    author: u64,
    #[prost(uint64, tag = "2")]
    root: u64,
    #[prost(uint64, tag = "3")]
    reposted: u64,
    #[prost(string, tag = "4")]
    text: String,
}

fn front_of_counts(counts: [u64; 3]) -> Vec<u8> {
    counts.into_iter().flat_map(count).collect()
}

fn post_front(counts: [u64; 3], body: &Body) -> Vec<u8> {
    [front_of_counts(counts), body.encode_to_vec()].concat()
}

/// Returns the contents of a post that nobody likes yet.
pub(crate) fn new_post_contents(row: &PostRow, text: &str) -> Contents {
    let origin = row.origin.map(|origin| [origin.root.get(), origin.reposted.get()]);
    let [root, reposted] = origin.unwrap_or_default();
    let body = Body { author: row.author.get(), root, reposted, text: text.to_owned() };
    let front = post_front([row.likes, row.comments, row.reposts], &body);
    Contents { front: front.into(), records: Vec::new() }
}

/// Reads a post; `None` if there is none.
pub(crate) fn read_post(front: &[u8]) -> Option<(Content, Counts)> {
    let (likes, rest) = read_count(front)?;
    let (comments, rest) = read_count(rest)?;
    let (reposts, rest) = read_count(rest)?;
    let Body { author, root, reposted, text } = Body::decode(rest).ok()?;
    let origin = Origin::read(root, reposted);
    let content = Content { author: UserId::new(author)?, text, origin };
    Some((content, Counts { likes, comments, reposts }))
}

/// A list, as an entry has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListEntry {
    /// The length of the whole list.
    pub(crate) length: u64,
    /// The newest entries, oldest first.
    pub(crate) records: Vec<Record>,
}

impl ListEntry {
    /// Reads the list of an entry, of a post the likes; `None` if there is no such post or account.
    pub(crate) fn read(Contents { front, records }: &Contents) -> Option<Self> {
        let (length, _) = read_count(front)?;
        let mut records: Vec<_> = Record::read_all(records).collect();
        // Likes of one millisecond were added in the order of their calls.
        records.sort_unstable();
        if length > records.len() as u64
            && let Some(oldest) = records.first().copied().filter(|oldest| oldest.time_ms > 0)
        {
            // Others of its time may be missing.
            records.retain(|record| record.time_ms > oldest.time_ms);
        }
        Some(Self { length, records })
    }

    /// Returns whether the entry has all of the list.
    pub(crate) fn is_whole(&self) -> bool {
        self.length <= self.records.len() as u64
    }
}

/// The posts that an account likes, as an entry has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LikedEntry {
    /// Which posts, sorted.
    posts: Vec<u64>,
    /// From this id on, these are all.
    from: u64,
}

impl LikedEntry {
    /// Reads an entry.
    pub(crate) fn read(Contents { front, records }: &Contents) -> Self {
        let from = front.get(1..).and_then(|bytes| bytes.first_chunk());
        let mut posts: Vec<_> = Record::read_all(records).map(|record| record.id).collect();
        posts.sort_unstable();
        Self { posts, from: from.map_or(0, |from| u64::from_be_bytes(*from)) }
    }

    /// Returns whether the account likes a post; `None` if the entry does not tell.
    pub(crate) fn has(&self, post: PostId) -> Option<bool> {
        match self.posts.binary_search(&post.get()) {
            Ok(_) => Some(true),
            Err(_) if post.get() >= self.from => Some(false),
            Err(_) => None,
        }
    }

    /// Returns whether the two tell the same of each post of which both tell something.
    pub(crate) fn agrees(&self, other: &Self) -> bool {
        let posts = self.posts.iter().chain(&other.posts).filter_map(|&id| PostId::new(id));
        posts.into_iter().all(|post| match (self.has(post), other.has(post)) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        })
    }
}

/// The comments on a post, as an entry has them behind their number: the oldest ones, and the newest ones.
#[derive(Clone, PartialEq, prost::Message)]
struct CommentEnds {
    /// How many of `entries` are the oldest ones; the others are the newest ones.
    #[prost(uint32, tag = "1")]
    oldest: u32,
    /// In order.
    #[prost(message, repeated, tag = "2")]
    entries: Vec<CommentEntry>,
}

/// A comment, as an entry has it.
#[derive(Clone, PartialEq, prost::Message)]
struct CommentEntry {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    author: u64,
    #[prost(uint64, tag = "3")]
    reply_to: u64,
    #[prost(uint64, tag = "4")]
    reply_author: u64,
    #[prost(string, tag = "5")]
    text: String,
}

// Reads a comment of the statement that loads them; `None` if the post has none.
fn comment_entry(row: &AnyRow) -> Result<Option<CommentEntry>, sqlx::Error> {
    let [id, author, reply_to, reply_author] = read_packed(row, 1)?;
    let text = read_text(row, 2)?;
    Ok((id != 0).then_some(CommentEntry { id, author, reply_to, reply_author, text }))
}

impl CommentEnds {
    /// Returns what an entry has of a list with these ends, in order.
    fn of(entries: Vec<CommentEntry>) -> Self {
        // A list of up to two ends is whole.
        let half = entries.len().div_ceil(2);
        let fits = |entries: &mut dyn Iterator<Item = &CommentEntry>| {
            let mut bytes = 0;
            let count = entries.take_while(|entry| {
                bytes += entry.text.len();
                bytes <= COMMENTS_BYTES_MAX
            });
            count.count()
        };
        let oldest = fits(&mut entries[..half].iter());
        let newest = fits(&mut entries[half..].iter().rev());
        let mut entries = entries;
        entries.drain(oldest..entries.len() - newest);
        Self { oldest: oldest as u32, entries }
    }
}

/// The comments on a post, as an entry has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CommentsEntry {
    /// The number of all comments.
    length: u64,
    ends: CommentEnds,
}

impl CommentsEntry {
    /// Reads an entry; `None` if there is no such post.
    pub(crate) fn read(front: &[u8]) -> Option<Self> {
        let (length, ends) = read_count(front)?;
        Some(Self { length, ends: CommentEnds::decode(ends).ok()? })
    }

    /// Returns the comments of a page at an end of the list, and whether there are more; `None` if the entry
    /// does not have them all.
    pub(crate) fn page(
        &self,
        post: PostId,
        is_newest_first: bool,
        count: usize,
    ) -> Option<(Vec<Comment>, bool)> {
        let CommentEnds { oldest, entries } = &self.ends;
        let (oldest, newest) = entries.split_at_checked(*oldest as usize)?;
        let is_whole = self.length == entries.len() as u64;
        let wanted = count.min(usize::try_from(self.length).unwrap_or(usize::MAX));
        let of_end = if is_newest_first { newest } else { oldest };
        if !is_whole && of_end.len() < wanted {
            return None;
        }
        let comment = |entry: &CommentEntry| entry.comment(post);
        let comments: Option<Vec<_>> = match is_newest_first {
            true => entries.iter().rev().take(wanted).map(comment).collect(),
            false => entries.iter().take(wanted).map(comment).collect(),
        };
        Some((comments?, self.length > wanted as u64))
    }
}

impl CommentEntry {
    fn comment(&self, post: PostId) -> Option<Comment> {
        let content = CommentContent {
            author: UserId::new(self.author)?,
            text: self.text.clone(),
            in_reply_to: Reply::read(self.reply_to, self.reply_author),
        };
        Some(Comment { id: CommentId::new(self.id)?, post, content })
    }
}

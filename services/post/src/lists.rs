//! Pages of lists: from the cache, and what it does not have from the database.

use microblog_domain::{IdMap, Order, PostId, Scope, TokenError, UserId};
use microblog_record::{
    self as record, Database, number_rows,
    sql::{number, read, statement},
};
use microblog_storage::{ReadError, Record};
use sqlx::any::AnyRow;

use crate::{
    error::Error,
    items::{CommentsEntry, ListEntry, PostItem},
    post::Comment,
    posts::{Posts, part},
    tables::{COMMENT, read_comment},
};

/// Behind all ids and times.
const END: u64 = i64::MAX as u64;

/// A list that an entry has the newest part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Who likes a post.
    Likers(PostId),
    /// The reposts of a post.
    Reposts(PostId),
    /// The posts of an account.
    PostsOf(UserId),
}

impl List {
    const fn item(self) -> (PostItem, u64) {
        match self {
            Self::Likers(post) => (PostItem::Post, post.get()),
            Self::Reposts(post) => (PostItem::Reposts, post.get()),
            Self::PostsOf(author) => (PostItem::Author, author.get()),
        }
    }

    /// Returns the statement that reads a page: time and id of the entries behind a position, newest first.
    /// Its parameters are the id of the post or account, the position as time and id, and the number of
    /// entries.
    pub(crate) const fn page_text(self) -> &'static str {
        match self {
            Self::Likers(_) => {
                "SELECT since, account FROM likes WHERE post = $1 AND (since, account) < ($2, $3) \
                 ORDER BY since DESC, account DESC LIMIT $4"
            }
            Self::Reposts(_) => {
                "SELECT 0, repost FROM reposts WHERE target = $1 AND repost < $3 AND $2 >= 0 \
                 ORDER BY repost DESC LIMIT $4"
            }
            Self::PostsOf(_) => {
                "SELECT 0, id FROM texts WHERE author = $1 AND id < $3 AND $2 >= 0 \
                 ORDER BY id DESC LIMIT $4"
            }
        }
    }
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page<T> {
    /// The entries in order.
    pub(crate) entries: Vec<T>,
    /// Whether more entries follow.
    pub(crate) more: bool,
}

impl<T> Page<T> {
    /// Returns the page of so many entries, of which one more was asked for.
    fn of(mut entries: Vec<T>, count: usize) -> Self {
        let more = entries.len() > count;
        entries.truncate(count);
        Self { entries, more }
    }
}

impl Page<Record> {
    /// Returns the token of the next page; empty at the end.
    pub(crate) fn next_token(&self, scope: Scope) -> String {
        let last = self.entries.last().filter(|_| self.more);
        last.map_or_else(String::new, |Record { time_ms, id }| scope.token([*time_ms, *id]))
    }

    /// Returns the posts of the entries.
    pub(crate) fn posts(&self) -> Vec<PostId> {
        self.entries.iter().filter_map(|entry| PostId::new(entry.id)).collect()
    }
}

impl Page<Comment> {
    /// Returns the token of the next page; empty at the end.
    pub(crate) fn next_token(&self, scope: Scope) -> String {
        let last = self.entries.last().filter(|_| self.more);
        last.map_or_else(String::new, |last| scope.token([last.post.get(), last.id.get()]))
    }
}

/// Reads the entry that a page begins behind; `None` for the first page.
pub(crate) fn from_token(scope: Scope, token: &str) -> Result<Option<Record>, TokenError> {
    let position = scope.read(token)?;
    Ok(position.map(|[time_ms, id]| Record { time_ms, id }))
}

/// A page of the newest posts of some authors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PostPage {
    /// The posts, newest first.
    pub(crate) ids: Vec<PostId>,
    /// The cursor: there may be more posts below it. `None` at the end.
    pub(crate) next: Option<PostId>,
}

impl Posts {
    /// Returns a page of a list, newest first, behind an entry, which may have been removed. Fails if there is
    /// no such post.
    pub(crate) async fn page(
        &self,
        list: List,
        after: Option<Record>,
        count: usize,
    ) -> Result<Page<Record>, Error> {
        let (item, id) = list.item();
        let found = self.reader.read(&part(item, id)).await?;
        let Some(entry) = ListEntry::read(&found) else {
            return match list {
                List::PostsOf(_) => Ok(Page { entries: Vec::new(), more: false }),
                List::Likers(_) => Err(Error::PostNotFound),
                // An entry may say so for a while if it was read before the post was made.
                List::Reposts(post) => match self.exists(post).await? {
                    true => self.page_of_database(list, after, count).await,
                    false => Err(Error::PostNotFound),
                },
            };
        };
        let is_whole = entry.is_whole();
        let is_behind = |record: &Record| after.is_none_or(|after| *record < after);
        let behind = entry.records.into_iter().rev().filter(is_behind).collect();
        let page = Page::of(behind, count);
        match page.more || is_whole {
            true => Ok(page),
            false => self.page_of_database(list, after, count).await,
        }
    }

    async fn page_of_database(
        &self,
        list: List,
        after: Option<Record>,
        count: usize,
    ) -> Result<Page<Record>, Error> {
        let (_, id) = list.item();
        let Record { time_ms, id: after } = after.unwrap_or(Record { time_ms: END, id: END });
        let read = async |database: &Database| {
            let query = statement(list.page_text().to_owned()).bind(number(id));
            let query = query.bind(number(time_ms)).bind(number(after)).bind(count as i64 + 1);
            let read = async {
                let entry = |row: &AnyRow| Ok(Record { time_ms: read(row, 0)?, id: read(row, 1)? });
                query.fetch_all(database.readers()).await?.iter().map(entry).collect()
            };
            database.read("SELECT entries", read).await
        };
        Ok(Page::of(self.reader.bypass(read).await?, count))
    }

    /// Returns a page of the comments on a post, behind one of them. Fails if there is no such post.
    pub(crate) async fn comments_on(
        &self,
        post: PostId,
        order: Order,
        after: Option<Record>,
        count: usize,
    ) -> Result<Page<Comment>, Error> {
        let is_newest_first = order == Order::Newest;
        if after.is_none() {
            let found = self.reader.read(&part(PostItem::Comments, post.get())).await?;
            let entry = CommentsEntry::read(&found.front);
            let page = entry.and_then(|entry| entry.page(post, is_newest_first, count));
            if let Some((entries, more)) = page {
                return Ok(Page { entries, more });
            }
        }
        // An entry may say so for a while if it was read before the post was made.
        if !self.exists(post).await? {
            return Err(Error::PostNotFound);
        }
        let start = if is_newest_first { END } else { 0 };
        let after = after.map_or(start, |after| after.id);
        let read = async |database: &Database| {
            let query = statement(comments_text(is_newest_first)).bind(number(post.get()));
            let query = query.bind(number(after)).bind(count as i64 + 1);
            read_comments(database, query).await
        };
        Ok(Page::of(self.reader.bypass(read).await?, count))
    }

    /// Returns the comments that exist among some, and whose posts do, in the given order.
    pub(crate) async fn comments(
        &self,
        keys: &[(PostId, microblog_domain::CommentId)],
    ) -> Result<Vec<Comment>, ReadError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let read = async |database: &Database| {
            let is_embedded = database.is_embedded();
            let rows: Vec<_> = keys.iter().map(|(post, id)| [post.get(), id.get()]).collect();
            let query = statement(comments_by_key_text(is_embedded));
            read_comments(database, number_rows::bind(query, is_embedded, &rows)).await
        };
        let found = self.reader.uncached(read).await?;
        let mut found: IdMap<_, _> =
            found.into_iter().map(|comment| ((comment.post, comment.id), comment)).collect();
        Ok(keys.iter().filter_map(|key| found.remove(key)).collect())
    }

    /// Returns a page of an account's comments, newest first, behind one of them.
    pub(crate) async fn comments_by(
        &self,
        author: UserId,
        after: Option<Record>,
        count: usize,
    ) -> Result<Page<Comment>, ReadError> {
        let Record { time_ms: post, id } = after.unwrap_or(Record { time_ms: END, id: END });
        let read = async |database: &Database| {
            let query = statement(comments_by_author_text()).bind(number(author.get()));
            let query = query.bind(number(id)).bind(number(post)).bind(count as i64 + 1);
            read_comments(database, query).await
        };
        Ok(Page::of(self.reader.uncached(read).await?, count))
    }

    /// Returns a page of the posts that an account likes, the newest post first, behind one of them: since when,
    /// and the post.
    pub(crate) async fn liked_by(
        &self,
        user: UserId,
        after: Option<Record>,
        count: usize,
    ) -> Result<Page<Record>, ReadError> {
        let after = after.map_or(END, |after| after.id);
        let read = async |database: &Database| {
            let query = statement(LIKED_BY.to_owned()).bind(number(user.get()));
            let query = query.bind(number(after)).bind(count as i64 + 1);
            let read = async {
                let entry = |row: &AnyRow| Ok(Record { time_ms: read(row, 0)?, id: read(row, 1)? });
                query.fetch_all(database.readers()).await?.iter().map(entry).collect()
            };
            database.read("SELECT likes", read).await
        };
        Ok(Page::of(self.reader.uncached(read).await?, count))
    }

    /// Returns the newest posts of some authors, merged: those below `before` and above `after`.
    pub(crate) async fn newest_of(
        &self,
        authors: &[UserId],
        before: Option<PostId>,
        after: Option<PostId>,
        count: usize,
    ) -> Result<PostPage, Error> {
        let (before, after) = (before.map_or(END, PostId::get), after.map_or(0, PostId::get));
        let is_wanted = |id: &u64| (after + 1..before).contains(id);
        let parts: Vec<_> =
            authors.iter().map(|author| part(PostItem::Author, author.get())).collect();
        let found = match authors.first() {
            Some(first) if self.reader.is_trusted(first.get()) => {
                self.reader.read_all(&parts).await?
            }
            _ => Vec::new(),
        };
        let (mut ids, mut others) = (Vec::new(), Vec::new());
        if found.is_empty() {
            others.extend(authors.iter().map(|author| author.get()));
        }
        for (author, found) in authors.iter().zip(found) {
            let Some(entry) = ListEntry::read(&found) else { continue };
            let oldest = entry.records.first().map_or(0, |oldest| oldest.id);
            let wanted = entry.records.iter().map(|record| record.id).filter(is_wanted);
            let wanted: Vec<_> = wanted.collect();
            // Enough, or all that are wanted.
            match wanted.len() > count || entry.is_whole() || oldest <= after {
                true => ids.extend(wanted),
                false => others.push(author.get()),
            }
        }
        if !others.is_empty() {
            let read = async |database: &Database| {
                let is_embedded = database.is_embedded();
                let query = statement(newest_text(is_embedded));
                let query = query.bind(number(before)).bind(number(after)).bind(count as i64 + 1);
                let query = number_rows::bind_column(query, is_embedded, others.iter().copied());
                let read = async {
                    let rows = query.fetch_all(database.readers()).await?;
                    rows.iter().map(|row| read(row, 0)).collect()
                };
                database.read("SELECT texts", read).await
            };
            let older: Vec<u64> = self.reader.bypass(read).await?;
            ids.extend(older);
        }
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids.dedup();
        let has_more = ids.len() > count;
        ids.truncate(count);
        let ids: Vec<_> = ids.into_iter().filter_map(PostId::new).collect();
        Ok(PostPage { next: ids.last().copied().filter(|_| has_more), ids })
    }

    /// Returns how many posts accounts have, in their order.
    pub(crate) async fn post_counts(&self, users: &[UserId]) -> Result<Vec<u64>, ReadError> {
        let parts: Vec<_> = users.iter().map(|user| part(PostItem::Author, user.get())).collect();
        let found = self.reader.peek(&parts).await;
        let length = |found: &microblog_storage::Contents| {
            ListEntry::read(found).map_or(0, |entry| entry.length)
        };
        let known: Vec<_> = found.iter().map(|found| found.as_ref().map(length)).collect();
        let unknown = users.iter().zip(&known).filter(|(_, count)| count.is_none());
        let unknown: Vec<u64> = unknown.map(|(user, _)| user.get()).collect();
        let mut counts = IdMap::default();
        if !unknown.is_empty() {
            let read = async |database: &Database| {
                let is_embedded = database.is_embedded();
                let query = statement(counts_text(is_embedded));
                let query = number_rows::bind_column(query, is_embedded, unknown.iter().copied());
                let read = async {
                    let rows = query.fetch_all(database.readers()).await?;
                    let count = |row: &AnyRow| Ok((read(row, 0)?, read(row, 1)?));
                    rows.iter().map(count).collect::<Result<IdMap<u64, u64>, sqlx::Error>>()
                };
                database.read("SELECT accounts", read).await
            };
            counts = self.reader.bypass(read).await?;
        }
        let count = |(user, known): (&UserId, Option<u64>)| {
            known.unwrap_or_else(|| counts.get(&user.get()).copied().unwrap_or_default())
        };
        Ok(users.iter().zip(known).map(count).collect())
    }
}

/// The posts that an account likes, and that exist. Its parameters are the account, the post that the page
/// begins behind, and the number of posts.
pub(crate) const LIKED_BY: &str = "SELECT since, post FROM likes WHERE account = $1 AND post < $2 \
    AND (SELECT posts.id FROM posts WHERE posts.id = likes.post) IS NOT NULL ORDER BY post DESC LIMIT $3";

async fn read_comments(
    database: &Database,
    query: sqlx::query::Query<'static, sqlx::Any, sqlx::any::AnyArguments>,
) -> Result<Vec<Comment>, record::Error> {
    let read = async {
        let rows = query.fetch_all(database.readers()).await?;
        rows.iter().map(|row| read_comment(row, 0)).collect()
    };
    database.read("SELECT comments", read).await
}

/// Returns the statement that reads a page of the comments on a post. Its parameters are the post, the comment
/// that the page begins behind, and the number of comments.
pub(crate) fn comments_text(is_newest_first: bool) -> String {
    let (order, behind) = if is_newest_first { ("DESC", '<') } else { ("ASC", '>') };
    format!(
        "SELECT {COMMENT} FROM comments WHERE post = $1 AND id {behind} $2 ORDER BY id {order} LIMIT $3"
    )
}

/// Returns the statement that reads comments by post and id, the parameters, on posts that exist. Each is
/// looked up by its key.
pub(crate) fn comments_by_key_text(is_embedded: bool) -> String {
    let keys = number_rows::table(is_embedded, 1, 2);
    let column = |column: &str| {
        format!("(SELECT {column} FROM comments WHERE post = column1 AND id = column2) AS {column}")
    };
    let columns = ["author", "reply_to", "reply_author", "text"].map(column).join(", ");
    format!(
        "SELECT column1, column2, author, reply_to, reply_author, text \
         FROM (SELECT column1, column2, {columns}, \
         (SELECT id FROM posts WHERE posts.id = column1) AS known FROM {keys}) AS found \
         WHERE author IS NOT NULL AND known IS NOT NULL"
    )
}

/// Returns the statement that reads a page of an account's comments, newest first, on posts that exist. Its
/// parameters are the account, the comment that the page begins behind, its post, and the number of comments.
pub(crate) fn comments_by_author_text() -> String {
    format!(
        "SELECT {COMMENT} FROM comments WHERE author = $1 AND (id, post) < ($2, $3) \
         AND (SELECT id FROM posts WHERE posts.id = comments.post) IS NOT NULL \
         ORDER BY id DESC, post DESC LIMIT $4"
    )
}

/// Returns the statement that reads the newest posts of some authors. Its parameters are the ids below and
/// above which they are, the number of posts, and the authors.
pub(crate) fn newest_text(is_embedded: bool) -> String {
    if is_embedded {
        let is_one = number_rows::contains(true, "author", 4);
        return format!(
            "SELECT id FROM texts WHERE {is_one} AND id < $1 AND id > $2 ORDER BY id DESC LIMIT $3"
        );
    }
    let authors = number_rows::table(false, 4, 1);
    format!(
        "SELECT newest.id FROM {authors} CROSS JOIN LATERAL (SELECT id FROM texts \
         WHERE author = column1 AND id < $1 AND id > $2 ORDER BY id DESC LIMIT $3) AS newest \
         ORDER BY newest.id DESC LIMIT $3"
    )
}

/// Returns the statement that reads how many posts accounts have, by their ids, the parameter.
pub(crate) fn counts_text(is_embedded: bool) -> String {
    let is_one = number_rows::contains(is_embedded, "id", 1);
    format!("SELECT id, posts FROM accounts WHERE {is_one}")
}

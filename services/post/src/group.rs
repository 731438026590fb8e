//! A group of calls as one transaction: locks the rows that its calls need, decides them in order, and
//! writes what has changed. The text of a statement depends at most on the tables that are written: a
//! connection prepares each once.
//!
//! Rows are locked in the order of their keys: accounts, then posts. What belongs to a locked row (likes,
//! comments, reposts, requests) is not locked: whoever changes it has locked that row; but for what belongs to
//! a deleted post, which nobody reads.

#[cfg(test)]
mod plans;

use std::collections::{BTreeMap, BTreeSet};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_domain::{CommentId, Partition, PostId, UserId};
use microblog_record::{
    json_rows::{self, Type},
    number_rows,
    sql::{read_id, read_text, statement},
};
use microblog_storage::{
    Change, Contents, Created, Decided, EntryKeys, FeedRow, Group, Item as _, ItemRevision, Patch,
    Record, Transaction, Writes,
};
use serde_json::Value;
use sqlx::any::AnyRow;

use crate::{
    items::{PostItem, new_post_contents},
    partitions::Partitions,
    post::{Origin, Reply},
    rate::Rate,
    steps::{
        AccountRow, Call, CommentRow, Item, ItemChange, Limits, Locked, Made, Outcome, PostRow,
        State,
    },
    tables::{malformed, packed, post, read_packed, user},
};

/// The calls that write.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) limits: Limits,
    pub(crate) partitions: Partitions,
}

impl Group for Calls {
    type Call = Call;
    type Outcome = Outcome;

    const ACCOUNT_COLUMNS: usize = ACCOUNT.len();

    fn accounts(&self, calls: &[Call]) -> BTreeSet<u64> {
        accounts_of(calls.iter().filter(|call| call.makes_account()))
    }

    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        calls: &'a [Call],
    ) -> BoxFuture<'a, Result<Decided<Outcome>, sqlx::Error>> {
        self.run(transaction, calls).boxed()
    }
}

impl Calls {
    async fn run(
        &self,
        transaction: &mut Transaction,
        calls: &[Call],
    ) -> Result<Decided<Outcome>, sqlx::Error> {
        let locked = lock(transaction, calls).await?;
        let needed = self.accounts(calls).into_iter().filter_map(UserId::new);
        if needed.into_iter().any(|id| !locked.accounts.contains_key(&id)) {
            return Err(sqlx::Error::RowNotFound);
        }
        let mut state = State::new(transaction.now_ms(), self.limits, locked);
        let outcomes = calls.iter().map(|call| state.take(call, rand::random)).collect();
        self.partitions.make(transaction, state.texts.keys().copied()).await?;
        write(transaction, &state).await?;
        let history = transaction.history();
        let (mut changes, mut created) = (Vec::new(), Vec::new());
        for (&item, change) in &state.items {
            let ((kind, id), (before, after)) = (item, state.revisions(item));
            let (partition, limits) = (Partition::of_id(id), kind.limits());
            let keys = EntryKeys::new(PostItem::PREFIX, kind.kind(), history, partition, id);
            if let Some(contents) = published(&state, item) {
                created.push(Created { keys, revision: after, contents, limits });
                continue;
            }
            let patch = if before == after { None } else { patch(&state, item, change) };
            changes.push(Change { keys, before, after, patch, limits });
        }
        let revision = |&(kind, id): &Item| {
            let (_, revision) = state.revisions((kind, id));
            ItemRevision { kind: kind.kind().to_owned(), id, revision }
        };
        let feed = state.events.iter().map(|event| FeedRow {
            items: event.items.iter().map(revision).collect(),
            change: event.text.clone(),
        });
        // Comments on a deleted post are in no feed.
        let has_others =
            state.comments.have_changed() || !state.deleted.is_empty() || !state.cleared.is_empty();
        Ok(Decided { outcomes, changes, created, feed: feed.collect(), has_others })
    }
}

// Returns the contents of a post that was published, if nothing of it has changed since.
fn published(state: &State, (kind, id): Item) -> Option<Contents> {
    let id =
        PostId::new(id).filter(|id| kind == PostItem::Post && state.undelivered.contains(id))?;
    let row = state.posts.now.get(&id).filter(|row| row.revision == 1)?;
    Some(new_post_contents(row, state.texts.get(&id)?))
}

fn patch(state: &State, (kind, id): Item, change: &ItemChange) -> Option<Patch> {
    if change.is_reloaded {
        return None;
    }
    let of_post = || kind.front_of_post(state.posts.now.get(&PostId::new(id)?)?);
    let of_account = || kind.front_of_account(state.accounts.now.get(&UserId::new(id)?)?);
    let front = of_post().or_else(of_account)?;
    let added = Record::write_all(change.added.iter().copied());
    Some(Patch { front, added, removed: change.removed.clone() })
}

// Locks and reads what the calls need.
async fn lock(transaction: &mut Transaction, calls: &[Call]) -> Result<Locked, sqlx::Error> {
    let accounts = accounts_of(calls.iter());
    let accounts = read_rows(transaction, lock_accounts_text, rows_of(&accounts), account).await?;

    // Posts are looked for behind the locks on accounts: in one statement with these, those would be missing that
    // were made while it waited, and liked by an account that it waited for.
    //
    // A repost changes the posts that count it. Which ones they are never changes.
    let reposts = calls.iter().filter(|call| call.is_of_origin()).filter_map(Call::post);
    let reposts: BTreeSet<u64> = reposts.map(PostId::get).collect();
    let origins = read_rows(transaction, origins_text, rows_of(&reposts), origin).await?;
    let named: BTreeSet<PostId> = calls.iter().filter_map(Call::post).collect();
    let candidates: BTreeSet<PostId> = calls.iter().flat_map(Call::candidates).collect();
    let counting = origins.values().flatten().flat_map(|origin| [origin.root, origin.reposted]);
    let posts = named.iter().chain(&candidates).copied().chain(counting);
    let posts: BTreeSet<u64> = posts.map(PostId::get).collect();
    let mut posts = read_rows(transaction, lock_posts_text, rows_of(&posts), post_row).await?;
    // A post that was made meanwhile: the calls are taken before it.
    posts.retain(|id, _| !reposts.contains(&id.get()) || origins.contains_key(id));

    let likes = calls.iter().filter_map(Call::like);
    let likes: BTreeSet<[u64; 2]> = likes.map(|(user, post)| [user.get(), post.get()]).collect();
    let mut likes = read_rows(transaction, likes_text, likes, like).await?;
    // Likewise the first like of an account.
    likes.retain(|(user, _), _| accounts.contains_key(user));
    let comments = calls.iter().filter_map(Call::comment);
    let comments: BTreeSet<[u64; 2]> =
        comments.map(|(post, comment)| [post.get(), comment.get()]).collect();
    let comments = read_rows(transaction, comments_text, comments, comment).await?;
    let requests = calls.iter().filter_map(Call::request);
    let requests: BTreeSet<[u64; 2]> =
        requests.map(|(author, request)| [author.get(), request]).collect();
    let requests = read_rows(transaction, requests_text, requests, made).await?;
    let imported = candidates.iter().filter(|id| posts.contains_key(id)).map(|id| [id.get()]);
    let known_texts = read_rows(transaction, texts_text, imported, text).await?;
    let gone = candidates.iter().filter(|id| !posts.contains_key(id)).map(|id| [id.get()]);
    let leftovers = read_rows(transaction, leftovers_text, gone, leftover).await?;
    let leftovers = leftovers.into_keys().collect();
    Ok(Locked { accounts, posts, likes, comments, requests, named, leftovers, known_texts })
}

fn accounts_of<'a>(calls: impl Iterator<Item = &'a Call>) -> BTreeSet<u64> {
    calls.map(|call| call.account().get()).collect()
}

fn rows_of(ids: &BTreeSet<u64>) -> impl Iterator<Item = [u64; 1]> {
    ids.iter().map(|id| [*id])
}

// Reads the rows of some keys.
async fn read_rows<const COLUMNS: usize, K: Ord, R>(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    keys: impl IntoIterator<Item = [u64; COLUMNS]>,
    read: fn(&AnyRow) -> Result<(K, R), sqlx::Error>,
) -> Result<BTreeMap<K, R>, sqlx::Error> {
    let (keys, is_sqlite): (Vec<_>, _) = (keys.into_iter().collect(), transaction.is_sqlite());
    if keys.is_empty() {
        return Ok(BTreeMap::new());
    }
    let query = number_rows::bind(statement(text(is_sqlite)), is_sqlite, &keys);
    query.fetch_all(transaction.connection()).await?.iter().map(read).collect()
}

// Executes a statement with rows of numbers, if there are any.
async fn execute<const COLUMNS: usize>(
    transaction: &mut Transaction,
    text: fn(bool) -> String,
    rows: impl IntoIterator<Item = [u64; COLUMNS]>,
) -> Result<(), sqlx::Error> {
    let (rows, is_sqlite): (Vec<_>, _) = (rows.into_iter().collect(), transaction.is_sqlite());
    if rows.is_empty() {
        return Ok(());
    }
    let query = number_rows::bind(statement(text(is_sqlite)), is_sqlite, &rows);
    query.execute(transaction.connection()).await.map(drop)
}

const fn lock_clause(is_sqlite: bool) -> &'static str {
    if is_sqlite { "" } else { "FOR NO KEY UPDATE" }
}

/// The columns of an account.
const ACCOUNT: [&str; 8] = [
    "id",
    "posts",
    "posts_revision",
    "liked_revision",
    "newest",
    "post_rate",
    "comment_rate",
    "deleted",
];

fn lock_accounts_text(is_sqlite: bool) -> String {
    let (account, is_one) = (packed(&ACCOUNT), number_rows::contains(is_sqlite, "id", 1));
    let lock = lock_clause(is_sqlite);
    format!("SELECT {account} FROM accounts WHERE {is_one} ORDER BY id {lock}")
}

fn account(row: &AnyRow) -> Result<(UserId, AccountRow), sqlx::Error> {
    let [id, posts, posts_revision, liked_revision, newest, post_rate, comment_rate, deleted_ms] =
        read_packed(row, 0)?;
    let (post_rate, comment_rate) = (Rate(post_rate), Rate(comment_rate));
    let account = AccountRow {
        posts,
        posts_revision,
        liked_revision,
        newest,
        post_rate,
        comment_rate,
        deleted_ms,
    };
    Ok((user(id)?, account))
}

fn account_row((id, row): (&UserId, &AccountRow)) -> [u64; ACCOUNT.len()] {
    [
        id.get(),
        row.posts,
        row.posts_revision,
        row.liked_revision,
        row.newest,
        row.post_rate.0,
        row.comment_rate.0,
        row.deleted_ms,
    ]
}

fn origins_text(is_sqlite: bool) -> String {
    let (columns, is_one) =
        (packed(&["id", "root", "reposted"]), number_rows::contains(is_sqlite, "id", 1));
    format!("SELECT {columns} FROM posts WHERE {is_one}")
}

fn origin(row: &AnyRow) -> Result<(PostId, Option<Origin>), sqlx::Error> {
    let [id, root, reposted] = read_packed(row, 0)?;
    Ok((post(id)?, Origin::read(root, reposted)))
}

/// The columns of a post.
const POST: [&str; 10] = [
    "id",
    "author",
    "root",
    "reposted",
    "revision",
    "newest",
    "last_comment",
    "likes",
    "comments",
    "reposts",
];

fn lock_posts_text(is_sqlite: bool) -> String {
    let (post, is_one) = (packed(&POST), number_rows::contains(is_sqlite, "id", 1));
    format!("SELECT {post} FROM posts WHERE {is_one} ORDER BY id {}", lock_clause(is_sqlite))
}

fn post_row(row: &AnyRow) -> Result<(PostId, PostRow), sqlx::Error> {
    let [id, author, root, reposted, revision, newest_ms, last_comment, likes, comments, reposts] =
        read_packed(row, 0)?;
    let (author, origin) = (user(author)?, Origin::read(root, reposted));
    let row =
        PostRow { author, origin, revision, newest_ms, last_comment, likes, comments, reposts };
    Ok((post(id)?, row))
}

fn new_post((id, row): (&PostId, &PostRow)) -> [u64; POST.len()] {
    let (root, reposted) =
        row.origin.map_or((0, 0), |origin| (origin.root.get(), origin.reposted.get()));
    let [id, revision, newest_ms, last_comment, likes, comments, reposts] = changed_post((id, row));
    [
        id,
        row.author.get(),
        root,
        reposted,
        revision,
        newest_ms,
        last_comment,
        likes,
        comments,
        reposts,
    ]
}

fn changed_post((id, row): (&PostId, &PostRow)) -> [u64; 7] {
    let PostRow { revision, newest_ms, last_comment, likes, comments, reposts, .. } = *row;
    [id.get(), revision, newest_ms, last_comment, likes, comments, reposts]
}

// Returns the statement that reads those rows of some keys of two numbers that are there, each by its key.
fn by_keys(table: &str, keys: [&str; 2], value: &str, is_sqlite: bool) -> String {
    let [first, second] = keys;
    let row = packed(&["column1", "column2", "value"]);
    let keys = number_rows::table(is_sqlite, 1, 2);
    format!(
        "SELECT {row} FROM (SELECT column1, column2, (SELECT {value} FROM {table} \
         WHERE {first} = column1 AND {second} = column2) AS value FROM {keys}) AS found \
         WHERE value IS NOT NULL"
    )
}

fn likes_text(is_sqlite: bool) -> String {
    by_keys("likes", ["account", "post"], "since", is_sqlite)
}

fn like(row: &AnyRow) -> Result<((UserId, PostId), u64), sqlx::Error> {
    let [account, liked, since_ms] = read_packed(row, 0)?;
    Ok(((user(account)?, post(liked)?), since_ms))
}

fn comments_text(is_sqlite: bool) -> String {
    by_keys("comments", ["post", "id"], "author", is_sqlite)
}

fn comment(row: &AnyRow) -> Result<((PostId, CommentId), CommentRow), sqlx::Error> {
    let [of, id, author] = read_packed(row, 0)?;
    let id = CommentId::new(id).ok_or_else(malformed)?;
    // No rule needs the rest of one that was read.
    let row = CommentRow { author: user(author)?, in_reply_to: None, text: String::new() };
    Ok(((post(of)?, id), row))
}

fn texts_text(is_sqlite: bool) -> String {
    format!("SELECT id, text FROM texts WHERE {}", number_rows::contains(is_sqlite, "id", 1))
}

fn text(row: &AnyRow) -> Result<(PostId, String), sqlx::Error> {
    Ok((read_id(row, 0, PostId::new)?, read_text(row, 1)?))
}

fn leftovers_text(is_sqlite: bool) -> String {
    let (id, is_one) = (packed(&["id"]), number_rows::contains(is_sqlite, "id", 1));
    format!("SELECT {id} FROM deleted_posts WHERE {is_one}")
}

fn leftover(row: &AnyRow) -> Result<(PostId, ()), sqlx::Error> {
    let [id] = read_packed(row, 0)?;
    Ok((post(id)?, ()))
}

fn requests_text(is_sqlite: bool) -> String {
    let made = packed(&["post", "comment", "made"]);
    by_keys("requests", ["author", "request"], &made, is_sqlite)
}

fn made(row: &AnyRow) -> Result<((UserId, u64), Made), sqlx::Error> {
    let [author, request, of, comment, made_ms] = read_packed(row, 0)?;
    let made = Made { post: post(of)?, comment: CommentId::new(comment), made_ms };
    Ok(((user(author)?, request), made))
}

// Writes what has changed: first what is gone.
async fn write(transaction: &mut Transaction, state: &State) -> Result<(), sqlx::Error> {
    let removed: Vec<_> = state.posts.removed().map(|id| [id.get()]).collect();
    execute(transaction, remove_posts_text, removed.iter().copied()).await?;
    execute(transaction, remove_texts_text, removed.iter().copied()).await?;
    execute(transaction, end_delivery_text, removed.iter().copied()).await?;
    execute(transaction, begin_clearing_text, removed).await?;
    let key = |(user, post): &(UserId, PostId)| [user.get(), post.get()];
    execute(transaction, remove_likes_text, state.likes.removed().map(key)).await?;
    let row = |((user, post), since): (&(UserId, PostId), &u64)| [user.get(), post.get(), *since];
    // One that ended and began again in this group.
    let again: Vec<_> = state.likes.changed().map(row).collect();
    let ended = again.iter().map(|&[account, post, _]| [account, post]);
    execute(transaction, remove_likes_text, ended).await?;
    let key = |(post, comment): &(PostId, CommentId)| [post.get(), comment.get()];
    execute(transaction, remove_comments_text, state.comments.removed().map(key)).await?;
    let pair = |(target, repost): &(PostId, PostId)| [target.get(), repost.get()];
    execute(transaction, remove_reposts_text, state.old_reposts.iter().map(pair)).await?;

    let mut writes = Writes::of(transaction);
    writes.numbers(add_posts_text, state.posts.added().map(new_post));
    let text = |(id, text): (&PostId, &String)| {
        let author = state.posts.now.get(id).map_or(0, |row| row.author.get());
        [id.get().into(), author.into(), text.as_str().into()]
    };
    writes.texts(add_texts_text, state.texts.iter().map(text));
    writes.numbers(begin_delivery_text, state.undelivered.iter().map(|id| [id.get()]));
    writes.numbers(change_posts_text, state.posts.changed().map(changed_post));
    writes.numbers(add_likes_text, state.likes.added().map(row).chain(again));
    writes.texts(add_comments_text, state.comments.added().map(new_comment));
    writes.numbers(add_reposts_text, state.new_reposts.iter().map(pair));
    let row = |((author, request), made): (&(UserId, u64), &Made)| {
        let comment = made.comment.map_or(0, CommentId::get);
        [author.get(), *request, made.post.get(), comment, made.made_ms]
    };
    let requests = state.requests.added().chain(state.requests.changed());
    writes.numbers(note_requests_text, requests.map(row));
    let ids = |users: &[UserId]| users.iter().map(|user| [user.get()]).collect::<Vec<_>>();
    writes.numbers(begin_deletions_text, ids(&state.deleted));
    writes.numbers(change_accounts_text, state.accounts.changed().map(account_row));
    writes.execute(transaction).await?;
    execute(transaction, end_deletions_text, ids(&state.cleared)).await
}

// Returns a condition that follows from a join with rows on their first columns. With it, PostgreSQL reads
// no whole index of a table that is small, nor keeps such a plan when the table has grown.
fn bound(is_sqlite: bool, first: usize, columns: &[&str]) -> String {
    let columns = if is_sqlite { &[] } else { columns };
    let condition =
        |(column, at): (&&str, usize)| format!(" AND {}", number_rows::contains(false, column, at));
    columns.iter().zip(first..).map(condition).collect()
}

// Returns the statement that inserts rows of all columns of a table.
fn add_text(table: &str, columns: &[&str], is_sqlite: bool, first: usize) -> String {
    let rows = number_rows::table(is_sqlite, first, columns.len());
    let numbered: Vec<_> = (1..=columns.len()).map(|at| format!("column{at}")).collect();
    let (columns, numbered) = (columns.join(", "), numbered.join(", "));
    format!("INSERT INTO {table} ({columns}) SELECT {numbered} FROM {rows}")
}

// Returns the statement that removes the rows of some ids.
fn remove_text(table: &str, is_sqlite: bool) -> String {
    format!("DELETE FROM {table} WHERE {}", number_rows::contains(is_sqlite, "id", 1))
}

// Returns the statement that removes the rows of some keys of two numbers. In PostgreSQL, a function looks each
// up by its key: for a join, it might read all likes of a post.
fn remove_by_keys(table: &str, keys: [&str; 2], is_sqlite: bool) -> String {
    if !is_sqlite {
        return format!("SELECT remove_{table}(CAST($1 AS bigint[]), CAST($2 AS bigint[]))");
    }
    let [first, second] = keys;
    let rows = number_rows::table(true, 1, 2);
    format!(
        "DELETE FROM {table} WHERE ({first}, {second}) IN (SELECT column1, column2 FROM {rows})"
    )
}

// Returns the statement that changes rows to rows of some columns, the first of which is their id.
fn change_text(table: &str, columns: &[&str], is_sqlite: bool, first: usize) -> String {
    let set = columns.iter().zip(1..).skip(1);
    let set: Vec<_> = set.map(|(column, at)| format!("{column} = column{at}")).collect();
    let rows = number_rows::table(is_sqlite, first, columns.len());
    let (set, bound) = (set.join(", "), bound(is_sqlite, first, &["id"]));
    format!("UPDATE {table} SET {set} FROM {rows} WHERE id = column1{bound}")
}

fn add_posts_text(is_sqlite: bool, first: usize) -> String {
    add_text("posts", &POST, is_sqlite, first)
}

fn change_posts_text(is_sqlite: bool, first: usize) -> String {
    let columns = ["id", "revision", "newest", "last_comment", "likes", "comments", "reposts"];
    change_text("posts", &columns, is_sqlite, first)
}

fn remove_posts_text(is_sqlite: bool) -> String {
    remove_text("posts", is_sqlite)
}

fn add_texts_text(is_sqlite: bool, first: usize) -> String {
    let columns =
        [("new_id", Type::Number), ("new_author", Type::Number), ("new_text", Type::Text)];
    let rows = json_rows::table(is_sqlite, first, &columns);
    format!("INSERT INTO texts (id, author, text) SELECT new_id, new_author, new_text FROM {rows}")
}

fn remove_texts_text(is_sqlite: bool) -> String {
    remove_text("texts", is_sqlite)
}

fn begin_delivery_text(is_sqlite: bool, first: usize) -> String {
    add_text("undelivered", &["id"], is_sqlite, first)
}

/// Returns the statement that notes posts as delivered.
pub(crate) fn end_delivery_text(is_sqlite: bool) -> String {
    remove_text("undelivered", is_sqlite)
}

fn begin_clearing_text(is_sqlite: bool) -> String {
    let add = add_text("deleted_posts", &["id"], is_sqlite, 1);
    format!("{add} WHERE 1 = 1 ON CONFLICT (id) DO NOTHING")
}

fn add_likes_text(is_sqlite: bool, first: usize) -> String {
    add_text("likes", &["account", "post", "since"], is_sqlite, first)
}

fn remove_likes_text(is_sqlite: bool) -> String {
    remove_by_keys("likes", ["account", "post"], is_sqlite)
}

fn new_comment(((post, id), row): (&(PostId, CommentId), &CommentRow)) -> [Value; 6] {
    let (to, author) =
        row.in_reply_to.map_or((0, 0), |Reply { to, author }| (to.get(), author.get()));
    [
        post.get().into(),
        id.get().into(),
        row.author.get().into(),
        to.into(),
        author.into(),
        row.text.as_str().into(),
    ]
}

fn add_comments_text(is_sqlite: bool, first: usize) -> String {
    let numbers = ["new_post", "new_id", "new_author", "new_reply_to", "new_reply_author"];
    let columns: Vec<_> = numbers
        .map(|column| (column, Type::Number))
        .into_iter()
        .chain([("new_text", Type::Text)])
        .collect();
    let rows = json_rows::table(is_sqlite, first, &columns);
    format!(
        "INSERT INTO comments (post, id, author, reply_to, reply_author, text) \
         SELECT new_post, new_id, new_author, new_reply_to, new_reply_author, new_text FROM {rows}"
    )
}

fn remove_comments_text(is_sqlite: bool) -> String {
    remove_by_keys("comments", ["post", "id"], is_sqlite)
}

fn add_reposts_text(is_sqlite: bool, first: usize) -> String {
    add_text("reposts", &["target", "repost"], is_sqlite, first)
}

fn remove_reposts_text(is_sqlite: bool) -> String {
    remove_by_keys("reposts", ["target", "repost"], is_sqlite)
}

// An id that was used a day ago may be used again. A condition tells SQLite that ON is not of a join.
fn note_requests_text(is_sqlite: bool, first: usize) -> String {
    let add =
        add_text("requests", &["author", "request", "post", "comment", "made"], is_sqlite, first);
    format!(
        "{add} WHERE 1 = 1 ON CONFLICT (author, request) DO UPDATE \
         SET post = excluded.post, comment = excluded.comment, made = excluded.made"
    )
}

fn begin_deletions_text(is_sqlite: bool, first: usize) -> String {
    add_text("deletions", &["id"], is_sqlite, first)
}

fn end_deletions_text(is_sqlite: bool) -> String {
    remove_text("deletions", is_sqlite)
}

fn change_accounts_text(is_sqlite: bool, first: usize) -> String {
    change_text("accounts", &ACCOUNT, is_sqlite, first)
}

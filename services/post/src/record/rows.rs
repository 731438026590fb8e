//! Writes of rows. The writer holds the locks of their partitions' positions, so rows do not change
//! between a read and the write that follows it.

use std::collections::{BTreeMap, BTreeSet};

use microblog_domain::{CommentId, Partition, PostId, Stamp, UserId};
use microblog_record::{
    Replace, WriteTransaction,
    sql::{ROWS_MAX, list, number, read, read_id, rows, statement},
};
use sqlx::{
    Any,
    any::{AnyArguments, AnyRow},
    query::Query,
};

use crate::{
    journal::{Reaction, ReactionList},
    post::{Comment, Content, MadeByRequest},
};

/// Changes of the counts of posts, in the order of their columns. Collected, since each update of a
/// row is a new version of it.
pub(super) type CountChanges = BTreeMap<PostId, [i64; 3]>;

const LIKES: usize = 0;
const COMMENTS: usize = 1;
const REPOSTS: usize = 2;

impl ReactionList {
    fn table(self) -> &'static str {
        match self {
            Self::Likes => "likes",
            Self::Reposts => "reposts",
        }
    }

    fn count(self) -> usize {
        match self {
            Self::Likes => LIKES,
            Self::Reposts => REPOSTS,
        }
    }
}

/// Inserts posts that have no row.
pub(super) async fn insert_posts(
    transaction: &mut WriteTransaction,
    posts: &[(PostId, Content)],
) -> Result<(), sqlx::Error> {
    for posts in posts.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO posts (id, author, text, root, reposted) VALUES {} \
             ON CONFLICT (id) DO NOTHING",
            rows(transaction.backend_name(), posts.len(), 5)
        );
        let query = posts.iter().fold(statement(text), |query, (id, content)| {
            let Content { author, text, origin } = content;
            let (root, reposted) =
                origin.map_or((0, 0), |origin| (origin.root.get(), origin.reposted.get()));
            let query = query.bind(number(id.get())).bind(number(author.get())).bind(text.clone());
            query.bind(number(root)).bind(number(reposted))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Returns a page of the existing posts of a partition, in ascending order.
pub(super) async fn page(
    transaction: &mut WriteTransaction,
    partition: Partition,
    after: u64,
    count: usize,
) -> Result<Vec<PostId>, sqlx::Error> {
    const PAGE: &str = "SELECT id FROM posts \
        WHERE id / 4 % 1024 = $1 AND deleted = 0 AND id > $2 AND id < $3 ORDER BY id LIMIT $4";
    let query = sqlx::query(PAGE).bind(i64::from(partition.number()));
    // Damaged ids stay.
    let query = query.bind(number(after)).bind(number(Stamp::END)).bind(count as i64);
    let rows = query.fetch_all(&mut **transaction).await?;
    rows.iter().map(|row| read_id(row, 0, PostId::new)).collect()
}

/// Returns which of some posts have a row and are not deleted.
pub(super) async fn existing(
    transaction: &mut WriteTransaction,
    ids: &[PostId],
) -> Result<BTreeSet<PostId>, sqlx::Error> {
    let mut found = BTreeSet::new();
    for ids in ids.chunks(ROWS_MAX) {
        let text =
            format!("SELECT id FROM posts WHERE deleted = 0 AND id IN ({})", list(1, ids.len()));
        let rows = bind_posts(statement(text), ids).fetch_all(&mut **transaction).await?;
        for row in &rows {
            found.insert(read_id(row, 0, PostId::new)?);
        }
    }
    Ok(found)
}

/// Returns those of some entries of lists that exist.
pub(super) async fn existing_reactions(
    transaction: &mut WriteTransaction,
    list: ReactionList,
    keys: &BTreeSet<(PostId, u64)>,
) -> Result<BTreeSet<(PostId, u64)>, sqlx::Error> {
    let existing = format!("SELECT post, member FROM {} WHERE ended = 0", list.table());
    let keys: Vec<_> = keys.iter().map(|(post, member)| (post.get(), *member)).collect();
    let found = select(transaction, &existing, "member", &keys).await?;
    found.iter().map(|row| Ok((read_id(row, 0, PostId::new)?, read(row, 1)?))).collect()
}

/// Returns those of some comments that have tombstones.
pub(super) async fn deleted_comments(
    transaction: &mut WriteTransaction,
    keys: &BTreeSet<(PostId, CommentId)>,
) -> Result<BTreeSet<(PostId, CommentId)>, sqlx::Error> {
    const DELETED: &str = "SELECT post, id FROM comments WHERE deleted <> 0";
    let keys: Vec<_> = keys.iter().map(|(post, id)| (post.get(), id.get())).collect();
    let found = select(transaction, DELETED, "id", &keys).await?;
    let key = |row: &AnyRow| Ok((read_id(row, 0, PostId::new)?, read_id(row, 1, CommentId::new)?));
    found.iter().map(key).collect()
}

// Selects the rows with these posts and members. The statement has a condition already.
async fn select(
    transaction: &mut WriteTransaction,
    statement_with_condition: &str,
    member: &str,
    keys: &[(u64, u64)],
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let mut found = Vec::new();
    for keys in keys.chunks(ROWS_MAX) {
        let rows = rows(transaction.backend_name(), keys.len(), 2);
        let text = format!("{statement_with_condition} AND (post, {member}) IN (VALUES {rows})");
        let query = keys.iter().fold(statement(text), |query, (post, member)| {
            query.bind(number(*post)).bind(number(*member))
        });
        found.extend(query.fetch_all(&mut **transaction).await?);
    }
    Ok(found)
}

/// Writes tombstones of posts, with the stamps of their deletion, whether or not they have rows.
/// Deletes what belongs to them.
pub(super) async fn delete_posts(
    transaction: &mut WriteTransaction,
    posts: &[(PostId, u64)],
) -> Result<(), sqlx::Error> {
    for posts in posts.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO posts (id, deleted, author, text, root, reposted) VALUES {} \
             ON CONFLICT (id) DO UPDATE SET author = 0, text = '', root = 0, reposted = 0, \
             likes = 0, comments = 0, reposts = 0, deleted = excluded.deleted \
             WHERE posts.deleted = 0",
            rows(transaction.backend_name(), posts.len(), 6)
        );
        let query = posts.iter().fold(statement(text), |query, (id, end)| {
            let query = query.bind(number(id.get())).bind(number(*end));
            query.bind(0_i64).bind("").bind(0_i64).bind(0_i64)
        });
        query.execute(&mut **transaction).await?;
        let ids: Vec<_> = posts.iter().map(|(id, _)| *id).collect();
        delete_rows(transaction, &["comments", "likes", "reposts"], "post", &ids).await?;
    }
    Ok(())
}

/// Deletes rows without a trace, by the posts in a column.
pub(super) async fn delete_rows(
    transaction: &mut WriteTransaction,
    tables: &[&str],
    column: &str,
    posts: &[PostId],
) -> Result<(), sqlx::Error> {
    for table in tables {
        let text = format!("DELETE FROM {table} WHERE {column} IN ({})", list(1, posts.len()));
        bind_posts(statement(text), posts).execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Inserts comments that have no row.
pub(super) async fn insert_comments(
    transaction: &mut WriteTransaction,
    comments: &[Comment],
    counts: &mut CountChanges,
) -> Result<(), sqlx::Error> {
    for comments in comments.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO comments (post, id, author, text, in_reply_to, in_reply_to_author) \
             VALUES {} ON CONFLICT (post, id) DO NOTHING RETURNING post",
            rows(transaction.backend_name(), comments.len(), 6)
        );
        let query = comments.iter().fold(statement(text), |query, comment| {
            let content = &comment.content;
            let (to, author) =
                content.in_reply_to.map_or((0, 0), |reply| (reply.to.get(), reply.author.get()));
            let query = query.bind(number(comment.post.get())).bind(number(comment.id.get()));
            let query = query.bind(number(content.author.get())).bind(content.text.clone());
            query.bind(number(to)).bind(number(author))
        });
        for row in &query.fetch_all(&mut **transaction).await? {
            add(counts, read_id(row, 0, PostId::new)?, COMMENTS, 1);
        }
    }
    Ok(())
}

/// Writes tombstones of comments, with the stamps of their deletion, whether or not they have rows.
pub(super) async fn delete_comments(
    transaction: &mut WriteTransaction,
    comments: &[(PostId, CommentId, u64)],
    counts: &mut CountChanges,
) -> Result<(), sqlx::Error> {
    for comments in comments.chunks(ROWS_MAX) {
        let text = format!(
            "SELECT post FROM comments WHERE deleted = 0 AND (post, id) IN (VALUES {})",
            rows(transaction.backend_name(), comments.len(), 2)
        );
        let query = comments.iter().fold(statement(text), |query, (post, id, _)| {
            query.bind(number(post.get())).bind(number(id.get()))
        });
        for row in &query.fetch_all(&mut **transaction).await? {
            add(counts, read_id(row, 0, PostId::new)?, COMMENTS, -1);
        }
        let text = format!(
            "INSERT INTO comments (post, id, deleted, author, text, in_reply_to, \
             in_reply_to_author) VALUES {} ON CONFLICT (post, id) DO UPDATE SET author = 0, \
             text = '', in_reply_to = 0, in_reply_to_author = 0, deleted = excluded.deleted \
             WHERE comments.deleted = 0",
            rows(transaction.backend_name(), comments.len(), 7)
        );
        let query = comments.iter().fold(statement(text), |query, (post, id, end)| {
            let query = query.bind(number(post.get())).bind(number(id.get())).bind(number(*end));
            query.bind(0_i64).bind("").bind(0_i64).bind(0_i64)
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Writes entries of lists, each once.
pub(super) async fn write_reactions(
    transaction: &mut WriteTransaction,
    list: ReactionList,
    reactions: &[Reaction],
    replace: Replace,
    counts: &mut CountChanges,
) -> Result<(), sqlx::Error> {
    for reactions in reactions.chunks(ROWS_MAX) {
        // Most are new.
        let new = insert_reactions(transaction, list, reactions).await?;
        let is_new = |reaction: &&Reaction| new.contains(&(reaction.post, reaction.member));
        let (new, others): (Vec<&Reaction>, Vec<&Reaction>) = reactions.iter().partition(is_new);
        for reaction in new {
            add(counts, reaction.post, list.count(), i64::from(reaction.exists));
        }
        if !others.is_empty() {
            replace_reactions(transaction, list, &others, replace, counts).await?;
        }
    }
    Ok(())
}

/// Inserts entries that have no row, and returns their posts and members.
async fn insert_reactions(
    transaction: &mut WriteTransaction,
    list: ReactionList,
    reactions: &[Reaction],
) -> Result<BTreeSet<(PostId, u64)>, sqlx::Error> {
    let reactions: Vec<_> = reactions.iter().collect();
    let rows = insert(transaction, list, &reactions, "NOTHING RETURNING post, member").await?;
    rows.iter().map(|row| Ok((read_id(row, 0, PostId::new)?, read(row, 1)?))).collect()
}

async fn replace_reactions(
    transaction: &mut WriteTransaction,
    list: ReactionList,
    reactions: &[&Reaction],
    replace: Replace,
    counts: &mut CountChanges,
) -> Result<(), sqlx::Error> {
    let known = known_reactions(transaction, list, reactions).await?;
    let known = |reaction: &Reaction| known.get(&(reaction.post, reaction.member));
    // An end may have the stamp of its beginning.
    let is_newer = |reaction: &&&Reaction| {
        replace == Replace::All
            || known(reaction).is_none_or(|&(since, exists)| {
                since < reaction.since || since == reaction.since && (exists || !reaction.exists)
            })
    };
    let written: Vec<_> = reactions.iter().filter(is_newer).copied().collect();
    for reaction in &written {
        let existed = known(reaction).is_some_and(|&(_, exists)| exists);
        let change = i64::from(reaction.exists) - i64::from(existed);
        add(counts, reaction.post, list.count(), change);
    }
    let update = "UPDATE SET since = excluded.since, ended = excluded.ended";
    if !written.is_empty() {
        insert(transaction, list, &written, update).await?;
    }
    Ok(())
}

/// Returns since when entries are as they are, and whether they exist, by post and member.
async fn known_reactions(
    transaction: &mut WriteTransaction,
    list: ReactionList,
    reactions: &[&Reaction],
) -> Result<BTreeMap<(PostId, u64), (u64, bool)>, sqlx::Error> {
    let text = format!(
        "SELECT post, member, since, ended FROM {} WHERE (post, member) IN (VALUES {})",
        list.table(),
        rows(transaction.backend_name(), reactions.len(), 2)
    );
    let query = reactions.iter().fold(statement(text), |query, reaction| {
        query.bind(number(reaction.post.get())).bind(number(reaction.member))
    });
    // One with a damaged stamp is replaced.
    let entry = |row: &AnyRow| {
        let key = (read_id(row, 0, PostId::new)?, read(row, 1)?);
        Ok((key, (read(row, 2).unwrap_or_default(), read(row, 3)? == 0)))
    };
    query.fetch_all(&mut **transaction).await?.iter().map(entry).collect()
}

async fn insert(
    transaction: &mut WriteTransaction,
    list: ReactionList,
    reactions: &[&Reaction],
    on_conflict: &str,
) -> Result<Vec<AnyRow>, sqlx::Error> {
    let text = format!(
        "INSERT INTO {} (post, member, since, ended) VALUES {} \
         ON CONFLICT (post, member) DO {on_conflict}",
        list.table(),
        rows(transaction.backend_name(), reactions.len(), 4)
    );
    let query = reactions.iter().fold(statement(text), |query, reaction| {
        query
            .bind(number(reaction.post.get()))
            .bind(number(reaction.member))
            .bind(number(reaction.since))
            .bind(i64::from(!reaction.exists))
    });
    query.fetch_all(&mut **transaction).await
}

/// Writes requests that have no row.
pub(super) async fn insert_requests(
    transaction: &mut WriteTransaction,
    requests: &[MadeByRequest],
) -> Result<(), sqlx::Error> {
    for requests in requests.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO requests (id, author, request, post) VALUES {} ON CONFLICT (id) DO NOTHING",
            rows(transaction.backend_name(), requests.len(), 4)
        );
        let query = requests.iter().fold(statement(text), |query, made| {
            query
                .bind(number(made.id))
                .bind(number(made.author.get()))
                .bind(made.request.to_string())
                .bind(made.post.map_or(0, |post| number(post.get())))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

/// Writes deleted accounts, with the stamps of their deletion and whether it is complete.
pub(super) async fn upsert_deletions(
    transaction: &mut WriteTransaction,
    deletions: &[(UserId, (u64, bool))],
) -> Result<(), sqlx::Error> {
    for deletions in deletions.chunks(ROWS_MAX) {
        let text = format!(
            "INSERT INTO deleted_accounts (account, since, complete) VALUES {} \
             ON CONFLICT (account) DO UPDATE SET complete = excluded.complete \
             WHERE deleted_accounts.complete < excluded.complete",
            rows(transaction.backend_name(), deletions.len(), 3)
        );
        let query = deletions.iter().fold(statement(text), |query, (user, (since, complete))| {
            let query = query.bind(number(user.get())).bind(number(*since));
            query.bind(i64::from(*complete))
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

fn add(counts: &mut CountChanges, post: PostId, column: usize, change: i64) {
    if change != 0 {
        counts.entry(post).or_default()[column] += change;
    }
}

/// Changes the counts of posts.
pub(super) async fn change_counts(
    transaction: &mut WriteTransaction,
    changes: &CountChanges,
) -> Result<(), sqlx::Error> {
    let changes: Vec<_> = changes.iter().collect();
    for changes in changes.chunks(ROWS_MAX) {
        // Both databases name the columns of VALUES like this.
        let text = format!(
            "UPDATE posts SET likes = likes + made.column2, comments = comments + made.column3, \
             reposts = reposts + made.column4 FROM (VALUES {}) AS made \
             WHERE posts.id = made.column1 AND posts.deleted = 0",
            rows(transaction.backend_name(), changes.len(), 4)
        );
        let query = changes.iter().fold(statement(text), |query, (id, counts)| {
            let query = query.bind(number(id.get())).bind(counts[LIKES]);
            query.bind(counts[COMMENTS]).bind(counts[REPOSTS])
        });
        query.execute(&mut **transaction).await?;
    }
    Ok(())
}

fn bind_posts(
    query: Query<'static, Any, AnyArguments>,
    ids: &[PostId],
) -> Query<'static, Any, AnyArguments> {
    ids.iter().fold(query, |query, id| query.bind(number(id.get())))
}

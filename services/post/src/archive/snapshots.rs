//! Reads of whole posts, for restores.

use std::collections::BTreeMap;

use microblog_domain::{PostId, Stamp, UserId};
use microblog_keyspace::Entry;
use microblog_record::{
    Damaged, Error,
    sql::{list, number, read_id, statement},
};
use sqlx::{Row as _, any::AnyRow};

use super::{Archive, RECORD, posts::comment};
use crate::post::{Post, Snapshot};

/// The most entries of a list that are read at once: it may have millions.
const PAGE: usize = 10_000;

/// A table with an entry of a list in each row, of what exists.
struct ListTable<'a> {
    name: &'static str,
    columns: &'a str,
    /// The rest of the key, behind `post`.
    member: &'static str,
    /// The column that is 0 while the entry exists.
    end: &'static str,
}

impl Archive {
    /// Returns a post with its lists; `None` if there is none. Without damaged rows.
    pub async fn read_snapshot(&self, id: PostId) -> Result<Option<Snapshot>, Error> {
        let posts = self.posts(&[id], None).await?;
        Ok(self.with_lists(posts, &Damaged::new(RECORD)).await?.pop())
    }

    /// Returns posts with their lists, without damaged rows. Only those of a single post are read in
    /// pages.
    pub(crate) async fn with_lists(
        &self,
        posts: Vec<Post>,
        damaged: &Damaged,
    ) -> Result<Vec<Snapshot>, Error> {
        let ids: Vec<_> = posts.iter().map(|post| post.id).collect();
        let likes = ListTable {
            name: "likes",
            columns: "post, member, since",
            member: "member",
            end: "ended",
        };
        let comments = ListTable {
            name: "comments",
            columns: &self.comment_columns(),
            member: "id",
            end: "deleted",
        };
        let reposts =
            ListTable { name: "reposts", columns: "post, member", member: "member", end: "ended" };
        let mut likes = self.list(&likes, &ids, damaged, like).await?;
        let comment = |row: &AnyRow| comment(row).map(|comment| (comment.post, comment));
        let mut comments = self.list(&comments, &ids, damaged, comment).await?;
        let mut reposts = self.list(&reposts, &ids, damaged, repost).await?;
        let snapshot = |post: Post| Snapshot {
            likes: likes.remove(&post.id).unwrap_or_default(),
            comments: comments.remove(&post.id).unwrap_or_default(),
            reposts: reposts.remove(&post.id).unwrap_or_default(),
            post,
        };
        Ok(posts.into_iter().map(snapshot).collect())
    }

    // Returns the lists of some posts, by post.
    async fn list<T>(
        &self,
        table: &ListTable<'_>,
        ids: &[PostId],
        damaged: &Damaged,
        entry: impl Fn(&AnyRow) -> Result<(PostId, T), sqlx::Error>,
    ) -> Result<BTreeMap<PostId, Vec<T>>, Error> {
        let ListTable { name, columns, member, end } = *table;
        let select = format!("SELECT {columns} FROM {name} WHERE {end} = 0 AND post");
        let mut lists = BTreeMap::<_, Vec<T>>::new();
        let mut add = |rows: &[AnyRow]| {
            for (post, entry) in damaged.decode(name, 2, rows, &entry) {
                lists.entry(post).or_default().push(entry);
            }
        };
        if let [id] = ids {
            let text = format!("{select} = $1 AND {member} > $2 ORDER BY {member} LIMIT {PAGE}");
            let mut next = Some(i64::MIN);
            while let Some(after) = next {
                let page = statement(text.clone()).bind(number(id.get())).bind(after);
                let rows = self.rows(page).await?;
                add(&rows);
                let last = rows.last().filter(|_| rows.len() == PAGE);
                next = last.and_then(|row| row.try_get(member).ok());
            }
        } else if !ids.is_empty() {
            let all = statement(format!("{select} IN ({})", list(1, ids.len())));
            let all = ids.iter().fold(all, |query, id| query.bind(number(id.get())));
            add(&self.rows(all).await?);
        }
        Ok(lists)
    }
}

fn like(row: &AnyRow) -> Result<(PostId, Entry), sqlx::Error> {
    let member = read_id(row, 1, UserId::new)?.get();
    let score = read_id(row, 2, Stamp::new)?.get();
    Ok((read_id(row, 0, PostId::new)?, Entry { member, score }))
}

fn repost(row: &AnyRow) -> Result<(PostId, PostId), sqlx::Error> {
    Ok((read_id(row, 0, PostId::new)?, read_id(row, 1, PostId::new)?))
}

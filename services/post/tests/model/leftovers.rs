//! What Redis and the archive may hold at the end of a case.

use std::collections::BTreeSet;

use microblog_testkit::{
    Store as Redis,
    redis::{self, aio::MultiplexedConnection},
};

use crate::{
    case::Case,
    support::archives::{connect, numbers},
};

/// Kinds of keys that belong to one post.
const OF_POSTS: [&str; 6] =
    ["post", "likes", "comments", "comment_bodies", "reposts", "repost_tombstones"];

/// Other kinds that may exist when the backlogs are empty.
const OTHERS: [&str; 11] = [
    "posts",
    "clock",
    "authors",
    "request",
    "comment_admission",
    "comment_request",
    "journal",
    "delivered",
    "evictable",
    "post_tombstones",
    "watermark",
];

/// What a crashed restore may leave for a while.
const PASSING: [&str; 5] =
    ["restoring", "staged_likes", "staged_comments", "staged_comment_bodies", "staged_reposts"];

/// Connects to the servers of a store, with all permissions.
pub(crate) async fn admins(redis: &Redis) -> Vec<MultiplexedConnection> {
    let mut admins = Vec::new();
    for node in redis.nodes() {
        admins.push(node.admin().await);
    }
    admins
}

/// Deletes all keys of a store.
pub(crate) async fn empty(redis: &Redis) {
    for node in redis.nodes() {
        redis::cmd("FLUSHALL").exec_async(&mut node.admin().await).await.unwrap();
    }
}

/// Asserts that each key belongs to an existing post, or is of an allowed kind.
pub(crate) async fn has_no_leftovers(redis: &Redis) {
    for node in redis.nodes() {
        let mut admin = node.admin().await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut admin).await.unwrap();
        for key in &keys {
            let (partition, kind) = key.split_once("}:").unwrap();
            let (kind, owner) = kind.split_once(':').unwrap_or((kind, ""));
            let belongs = match kind {
                of_post if OF_POSTS.contains(&of_post) => {
                    keys.contains(&format!("{partition}}}:post:{owner}"))
                }
                passing if PASSING.contains(&passing) => {
                    // -2: it has expired since.
                    let mut life = redis::cmd("PTTL");
                    life.arg(key).query_async::<i64>(&mut admin).await.unwrap() != -1
                }
                other => OTHERS.contains(&other),
            };
            assert!(belongs, "{key} is left");
        }
    }
}

impl Case {
    /// Returns the deleted posts.
    pub(crate) fn gone(&self) -> BTreeSet<u64> {
        self.posts_where(true)
    }

    fn posts_where(&self, ended: bool) -> BTreeSet<u64> {
        let model = self.model();
        let posts = model.posts.iter().filter(|(_, made)| made.ended == ended);
        posts.map(|(id, _)| id.get()).collect()
    }

    /// Returns the posts with a tombstone in the archive.
    pub(crate) async fn tombstones(&self) -> BTreeSet<u64> {
        let gone = list(self.gone());
        self.archived_ids(&format!("SELECT id FROM posts WHERE deleted <> 0 AND id IN ({gone})"))
            .await
    }

    /// Asserts that the archive has all existing posts, and nothing of deleted ones.
    pub(crate) async fn archive_is_as_the_model(&self) {
        if self.archived.is_none() {
            return;
        }
        let authors = list(self.users.iter().map(|user| user.get()));
        let own = format!("SELECT id FROM posts WHERE deleted = 0 AND author IN ({authors})");
        let (own, there) = (self.archived_ids(&own).await, self.posts_where(false));
        assert_eq!(own, there);

        let gone = list(self.gone());
        for left in [
            format!("SELECT id FROM posts WHERE id IN ({gone}) AND (deleted = 0 OR text <> '')"),
            format!("SELECT post FROM likes WHERE post IN ({gone})"),
            format!("SELECT post FROM reposts WHERE post IN ({gone})"),
        ] {
            assert_eq!(self.archived_ids(&left).await, BTreeSet::new(), "{left}");
        }

        let own = format!("SELECT id FROM comments WHERE deleted = 0 AND author IN ({authors})");
        let own = self.archived_ids(&own).await;
        let comments = self.model().comments.clone();
        let comments = comments.iter().filter(|(_, made)| !made.ended);
        let comments = comments.filter(|(_, made)| there.contains(&made.it.post.get()));
        let comments: BTreeSet<_> = comments.map(|(id, _)| id.get()).collect();
        assert_eq!(own, comments);
    }

    async fn archived_ids(&self, query: &str) -> BTreeSet<u64> {
        let archived = self.archived.as_ref().expect("there is an archive");
        let rows = numbers(&mut connect(&archived.url).await, query).await;
        rows.into_iter().map(|row| row[0].cast_unsigned()).collect()
    }
}

// A SQL list, which is never empty.
fn list(ids: impl IntoIterator<Item = u64>) -> String {
    let ids: Vec<_> = [0].into_iter().chain(ids).map(|id| id.to_string()).collect();
    ids.join(", ")
}

//! The hot store: the only part of the post service that accesses Redis. Each method is one atomic
//! step or read. [`Posts`](crate::Posts) and [`Comments`](crate::Comments) combine them into sagas,
//! so a test can stop between any two steps.

mod archive_outbox;
mod backlog;
mod body;
mod comments;
mod erasure;
mod eviction;
mod leases;
mod likes;
mod lists;
mod outcome;
mod posts;
mod repair;
mod reposts;
mod restore;
mod verify;
mod watermark;

use std::time::Duration;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{self as keyspace, Entry, Keyspace, Library, Order, Page, Range, Recall};

use crate::{config::Config, post::Post};

pub use archive_outbox::{OutboxEntry, OutboxPage};
pub use comments::{AddedComment, CommentAdmission};
pub(crate) use erasure::{ErasureRun, ErasureStage, Fence};
pub(crate) use eviction::ARCHIVE_MARKER;
pub use eviction::PostCount;
pub use leases::Job;
pub use lists::{List, Presence};
pub use posts::{PostDeletion, Published};
pub use restore::RestoreOutcome;

/// The library of Redis functions.
const LIBRARY: Library = Library {
    name: "post",
    source: concat!(
        include_str!("../functions.lua"),
        include_str!("../functions/posts.lua"),
        include_str!("../functions/reactions.lua"),
        include_str!("../functions/archive.lua"),
        include_str!("../functions/repairs.lua"),
    ),
};

/// The lifetime of idempotency keys.
const REQUEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The post service's keyspace.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
    posts: Recall<PostId, Option<Post>>,
    posts_per_minute: u32,
    comments_per_minute: u32,
    restores_per_minute: u32,
}

impl Store {
    /// Opens the store. Connects lazily: Redis may be unavailable.
    pub fn open(config: &Config) -> Result<Self, keyspace::Error> {
        let keyspace = Keyspace::open(&config.redis, LIBRARY)?;
        Ok(Self {
            posts: keyspace.recall(posts::KIND),
            keyspace,
            posts_per_minute: config.posts_per_minute,
            comments_per_minute: config.comments_per_minute,
            restores_per_minute: config.restores_per_minute,
        })
    }

    /// Returns whether Redis answers and has the service's functions.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }

    // Returns a page of a list; one round trip.
    async fn page(
        &self,
        key: String,
        order: Order,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, keyspace::Error> {
        self.keyspace.page(&key, Range { order, after, above: None, count }).await
    }
}

/// Returns the posts of a page's entries.
pub(crate) fn post_ids(entries: &[Entry]) -> Vec<PostId> {
    entries.iter().filter_map(|entry| PostId::new(entry.member)).collect()
}

fn stamp(number: i64) -> Result<u64, keyspace::Error> {
    u64::try_from(number).map_err(|_| malformed("stamp"))
}

fn post(number: i64) -> Result<PostId, keyspace::Error> {
    u64::try_from(number).ok().and_then(PostId::new).ok_or_else(|| malformed("post id"))
}

fn user(number: u64) -> Result<UserId, keyspace::Error> {
    UserId::new(number).ok_or_else(|| malformed("account id"))
}

fn wait(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default())
}

fn malformed(what: &'static str) -> keyspace::Error {
    keyspace::Error::Malformed(what.into())
}

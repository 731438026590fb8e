//! The hot store: the only part of the post service that accesses Redis. Each method is one atomic
//! step or read. [`Posts`](crate::Posts) and [`Reactions`](crate::Reactions) combine them into
//! sagas, so a test can stop between any two steps.

mod body;
mod decode;
mod erasure;
mod eviction;
mod maintenance;
mod posts;
mod reactions;
mod recovery;
mod restore;

use std::time::Duration;

use microblog_domain::PostId;
use microblog_keyspace::{
    self as keyspace, ClientSideCache, Entry, Journals, Keyspace, Library, Order, Page, Range,
};

pub(crate) use decode::post_ids;
pub(crate) use erasure::{ErasureRun, ErasureStage, Fence};
pub use eviction::PostCount;
pub use maintenance::Job;
pub(crate) use posts::ARCHIVE_MARKER;
pub use posts::{PostDeletion, Published};
pub use reactions::{AddedComment, CommentAdmission, List, Presence};
pub(crate) use recovery::PostSet;
pub use restore::RestoreOutcome;

use crate::{config::Config, keys, post::Post};

/// The library of Redis functions.
const LIBRARY: Library = Library {
    name: "post",
    source: concat!(
        include_str!("functions.lua"),
        include_str!("functions/posts.lua"),
        include_str!("functions/delivery.lua"),
        include_str!("functions/reactions.lua"),
        include_str!("functions/archive.lua"),
        include_str!("functions/repairs.lua"),
    ),
};

/// The change journals of the service.
pub(crate) const JOURNALS: Journals = Journals { key: keys::journal };

/// The lifetime of idempotency keys.
pub(crate) const REQUEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The post service's keyspace.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
    posts: ClientSideCache<PostId, Option<Post>>,
    posts_per_minute: u32,
    comments_per_minute: u32,
    restores_per_minute: u32,
}

impl Store {
    /// Opens the store. Connects lazily: Redis may be unavailable.
    pub fn open(config: &Config) -> Result<Self, keyspace::Error> {
        let keyspace = Keyspace::open(&config.redis, LIBRARY)?;
        Ok(Self {
            posts: keyspace.client_side_cache(body::CACHED_POST),
            keyspace,
            posts_per_minute: config.posts_per_minute,
            comments_per_minute: config.comments_per_minute,
            restores_per_minute: config.restores_per_minute,
        })
    }

    /// Returns the keyspace.
    pub(crate) fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Returns a store whose calls closed partitions accept. It has a client-side cache of its own.
    pub(crate) fn ignoring_closed(&self) -> Self {
        let keyspace = self.keyspace.ignoring_closed();
        Self { posts: keyspace.client_side_cache(body::CACHED_POST), keyspace, ..self.clone() }
    }

    /// Returns whether Redis answers and has the service's functions.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }

    /// Returns a page of a list; one round trip.
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

//! The client of Redis that all steps and reads share.

use std::time::Duration;

use microblog_domain::PostId;
use microblog_keyspace::{
    self as keyspace, ClientSideCache, Entry, Keyspace, Library, Order, Page, Range,
};

use super::post_hash;
use crate::{config::Config, post::Post};

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
pub(super) const REQUEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The post service's keyspace.
#[derive(Clone)]
pub struct Store {
    pub(super) keyspace: Keyspace,
    pub(super) posts: ClientSideCache<PostId, Option<Post>>,
    pub(super) posts_per_minute: u32,
    pub(super) comments_per_minute: u32,
    pub(super) restores_per_minute: u32,
}

impl Store {
    /// Opens the store. Connects lazily: Redis may be unavailable.
    pub fn open(config: &Config) -> Result<Self, keyspace::Error> {
        let keyspace = Keyspace::open(&config.redis, LIBRARY)?;
        Ok(Self {
            posts: keyspace.client_side_cache(post_hash::KIND),
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

    /// Returns a page of a list; one round trip.
    pub(super) async fn page(
        &self,
        key: String,
        order: Order,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, keyspace::Error> {
        self.keyspace.page(&key, Range { order, after, above: None, count }).await
    }
}

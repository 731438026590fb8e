//! The lists of a post: likers, comments and reposts.

use microblog_domain::PostId;
use microblog_keyspace::{Entry, Error, Order, Page, redis::cmd};

use super::client::Store;
use crate::keys;

/// A list of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Accounts that like it, newest first.
    Likers,
    /// Its reposts, newest first.
    Reposts,
    /// Its comments.
    Comments(Order),
}

/// Whether a post and one of its lists exist, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The post is not in Redis.
    Absent,
    /// The list is empty.
    Empty,
    /// The list has entries.
    Listed,
}

impl List {
    fn key(self, id: PostId) -> String {
        match self {
            Self::Likers => keys::likes(id),
            Self::Reposts => keys::reposts(id),
            Self::Comments(_) => keys::comments(id),
        }
    }

    fn order(self) -> Order {
        match self {
            Self::Likers | Self::Reposts => Order::Newest,
            Self::Comments(order) => order,
        }
    }
}

impl Store {
    /// Returns a page of a post's list.
    pub async fn list(
        &self,
        list: List,
        id: PostId,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        self.page(list.key(id), list.order(), after, count).await
    }

    /// Returns whether a post and its list exist.
    pub async fn presence(&self, list: List, id: PostId) -> Result<Presence, Error> {
        // One command is atomic. There is no list without its post.
        let there: u8 =
            self.keyspace.query(cmd("EXISTS").arg(keys::post(id)).arg(list.key(id)).take()).await?;
        Ok(match there {
            0 => Presence::Absent,
            1 => Presence::Empty,
            _ => Presence::Listed,
        })
    }
}

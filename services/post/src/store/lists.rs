//! The lists of a post: who likes it, the comments on it, what repeats it.

use microblog_domain::PostId;
use microblog_keyspace::{Entry, Error, Order, Page, redis::cmd};

use super::Store;
use crate::keys;

/// A list that belongs to a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Who likes it, newest first.
    Likers,
    /// What repeats it, newest first.
    Reposts,
    /// The comments on it.
    Comments(Order),
}

/// What there is of a post and one of its lists, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// There is no such post here.
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

    /// Returns what there is of a post and its list.
    pub async fn presence(&self, list: List, id: PostId) -> Result<Presence, Error> {
        // One command, so that it is of one moment. No list is without its post.
        let there: u8 =
            self.keyspace.query(cmd("EXISTS").arg(keys::post(id)).arg(list.key(id)).take()).await?;
        Ok(match there {
            0 => Presence::Absent,
            1 => Presence::Empty,
            _ => Presence::Listed,
        })
    }
}

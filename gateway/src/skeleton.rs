//! The first step of a view: which entries a list has, in which order. The same to everybody.

mod accounts;
mod past;
mod posts;
mod timelines;

use microblog_proto::{post::Like, relation::Edge};
use prost::Message;
use prost_types::Timestamp;
use tonic::Status;

use crate::{people::Visit, rpc::Gateway};

pub(crate) use accounts::List;
pub(crate) use posts::{Comments, Likers, Reposts};
pub(crate) use timelines::{SINCE, Stretch, Timeline, Whose};

/// A part of a list.
pub(crate) struct Slice<Entry> {
    /// Its entries.
    pub(crate) entries: Vec<Entry>,
    /// From where to go on; empty at the end of the list.
    pub(crate) next_page_token: String,
}

/// A list that is shown in pages.
pub(crate) trait Listing: Sync {
    /// What the skeleton has of an entry.
    type Entry: Send;
    /// An entry as it is shown.
    type Shown: Message;

    /// Returns up to `size` entries of the list from a token on; fewer do not mean that the list
    /// ends, an empty token does. One call.
    fn slice(
        &self,
        gateway: &Gateway,
        size: usize,
        page_token: String,
    ) -> impl Future<Output = Result<Slice<Self::Entry>, Status>> + Send;

    /// Returns those of the entries that the viewer is shown, in their order.
    fn hydrate(
        &self,
        gateway: &Gateway,
        visit: Visit<'_>,
        entries: Vec<Self::Entry>,
    ) -> impl Future<Output = Result<Vec<Self::Shown>, Status>> + Send;
}

/// An account on a list, and since when.
pub(crate) struct Entry {
    /// The account, which may be gone.
    pub(crate) user_id: u64,
    /// Since when.
    pub(crate) since: Option<Timestamp>,
}

impl From<Edge> for Entry {
    fn from(edge: Edge) -> Self {
        Self { user_id: edge.user_id, since: edge.since }
    }
}

impl From<Like> for Entry {
    fn from(like: Like) -> Self {
        Self { user_id: like.user_id, since: like.liked_at }
    }
}

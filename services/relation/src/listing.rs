//! The lists that callers read: the stored ones, and those that are computed from two stored ones.

use futures::stream::{self, Stream};
use microblog_domain::{Scope, UserId};
use microblog_keyspace::{Entry, Order, Page, Range};

use crate::{
    error::Error,
    graph::List,
    intersection::{Intersection, IntersectionCursor},
    not_followed_back,
    store::Store,
};

/// A list of a user.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listing {
    /// A stored list.
    Stored {
        /// The list.
        list: List,
        /// Its user.
        user: UserId,
        /// Only entries with a greater version.
        above: Option<u64>,
        /// The order.
        order: Order,
    },
    /// The followers of a user whom the user does not follow.
    NotFollowedBack(UserId),
    /// An intersection of two stored lists.
    Intersection(Intersection),
}

/// A page of a list.
#[derive(Debug, Default)]
pub(crate) struct ListingPage {
    /// The entries in the order of the list.
    pub(crate) entries: Vec<Entry>,
    /// The token of the next page; empty at the end.
    pub(crate) next_page_token: String,
    /// On the first page of followings, newest first: the version up to which they are settled.
    pub(crate) settled_version: u64,
}

impl Listing {
    /// Returns a page of at most `count` entries. The scope identifies the list in page tokens.
    pub(crate) async fn page(
        self,
        store: &Store,
        scope: Scope,
        page_token: &str,
        count: usize,
    ) -> Result<ListingPage, Error> {
        match self {
            Self::Stored { list, user, above, order } => {
                let after = Entry::from_token(scope, page_token)?;
                let page = store.range(list, user, Range { order, after, above, count }).await?;
                let is_settled = order == Order::Newest && after.is_none();
                let settled_version = match page.entries.first() {
                    Some(newest) if list == List::Following && is_settled => {
                        store.settled(user, newest.score).await?
                    }
                    _ => 0,
                };
                let next_page_token = page.next_token(scope);
                Ok(ListingPage { entries: page.entries, next_page_token, settled_version })
            }
            Self::NotFollowedBack(user) => {
                let after = Entry::from_token(scope, page_token)?;
                let page = not_followed_back::page(store, user, after, count).await?;
                let token = |last: Entry| scope.token([last.score, last.member]);
                let next_page_token = page.next.map_or_else(String::new, token);
                Ok(ListingPage { entries: page.entries, next_page_token, ..Default::default() })
            }
            Self::Intersection(intersection) => {
                let cursor = match IntersectionCursor::from_token(scope, page_token)? {
                    Some(cursor) => cursor,
                    None => intersection.start(store).await?,
                };
                let page = intersection.page(store, cursor, count).await?;
                let token = |cursor: IntersectionCursor| cursor.token(scope);
                let next_page_token = page.next.map_or_else(String::new, token);
                Ok(ListingPage { entries: page.entries, next_page_token, ..Default::default() })
            }
        }
    }
}

/// Returns all followers of a user after an entry, newest first, in pages of `count`.
pub(crate) fn followers(
    store: Store,
    user: UserId,
    after: Option<Entry>,
    count: usize,
) -> impl Stream<Item = Result<Page, Error>> {
    stream::try_unfold(Some(after), move |position| {
        let store = store.clone();
        async move {
            let Some(after) = position else { return Ok(None) };
            let page = store.page(List::Followers, user, after, None, count).await?;
            let next = page.more.then(|| page.entries.last().copied());
            Ok(Some((page, next)))
        }
    })
}

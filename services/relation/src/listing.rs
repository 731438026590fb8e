//! The lists that callers read: the stored ones, and those that are computed from two stored ones.

use futures::stream::{self, Stream};
use microblog_domain::{Scope, UserId};
use microblog_keyspace::{Entry, Order, Page, Range};

use crate::{
    error::Error,
    graph::List,
    intersection::{self, Intersection, IntersectionCursor},
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
        /// The order.
        order: Order,
    },
    /// The followers of a user whom the user does not follow.
    NotFollowedBack(UserId),
    /// An intersection of two stored lists.
    Intersection(Intersection),
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct ListingPage {
    /// The entries in the order of the list.
    pub(crate) entries: Vec<Entry>,
    /// The token of the next page; empty at the end.
    pub(crate) next_page_token: String,
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
            Self::Stored { list, user, order } => {
                let after = Entry::from_token(scope, page_token)?;
                let range = Range { order, after, above: None, count };
                let page = store.range(list, user, range).await?;
                let next_page_token = page.next_token(scope);
                Ok(ListingPage { entries: page.entries, next_page_token })
            }
            Self::NotFollowedBack(user) => {
                let after = Entry::from_token(scope, page_token)?;
                let lists = [(List::Followers, user), (List::Following, user)];
                let (entries, last) = intersection::scan(store, lists, false, after, count).await?;
                let next_page_token = last.map_or_else(String::new, |last| last.token(scope));
                Ok(ListingPage { entries, next_page_token })
            }
            Self::Intersection(intersection) => {
                let cursor = match IntersectionCursor::from_token(scope, page_token)? {
                    Some(cursor) => cursor,
                    None => intersection.start(store).await?,
                };
                let page = intersection.page(store, cursor, count).await?;
                let token = |cursor: IntersectionCursor| cursor.token(scope);
                let next_page_token = page.next.map_or_else(String::new, token);
                Ok(ListingPage { entries: page.entries, next_page_token })
            }
        }
    }
}

/// The most ids in a response: below 64 KiB with at most 8 bytes per id.
const IDS_MAX: usize = 8_000;

/// A stored list whose ids are returned, newest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdList {
    /// The list.
    pub(crate) list: List,
    /// Its user.
    pub(crate) user: UserId,
    /// Only entries with a greater version.
    pub(crate) newer_than: Option<u64>,
}

/// A page of up to 8,000 ids.
#[derive(Debug)]
pub(crate) struct IdPage {
    /// The entries.
    pub(crate) page: Page,
    /// On the first page of followings: the version up to which they are settled; else 0.
    pub(crate) settled_version: u64,
}

impl IdList {
    /// Returns a page. The scope identifies the list in page tokens.
    pub(crate) async fn page(
        self,
        store: &Store,
        scope: Scope,
        page_token: &str,
    ) -> Result<IdPage, Error> {
        let Self { list, user, newer_than } = self;
        let after = Entry::from_token(scope, page_token)?;
        let page = store.page(list, user, after, newer_than, IDS_MAX).await?;
        let settled_version = match page.entries.first() {
            Some(newest) if list == List::Following && after.is_none() => {
                store.settled(user, newest.score).await?
            }
            _ => 0,
        };
        Ok(IdPage { page, settled_version })
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

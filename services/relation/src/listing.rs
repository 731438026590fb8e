//! The lists that callers read: the stored ones, and those that are computed from two stored ones.

use futures::stream::{self, Stream};
use microblog_domain::{Order, Scope, UserId};
use microblog_storage::Record;

use crate::{
    error::Error,
    graph::List,
    intersection::{self, Intersection, IntersectionCursor},
    lists::{Lists, Page, Range, from_token, token},
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
    /// The stored list that the entries are from, and its user.
    pub(crate) of: (List, UserId),
    /// The entries in the order of the list.
    pub(crate) entries: Vec<Record>,
    /// The token of the next page; empty at the end.
    pub(crate) next_page_token: String,
}

impl Listing {
    /// Returns a page of at most `count` entries. The scope identifies the list in page tokens.
    pub(crate) async fn page(
        self,
        lists: &Lists,
        scope: Scope,
        page_token: &str,
        count: usize,
    ) -> Result<ListingPage, Error> {
        match self {
            Self::Stored { list, user, order } => {
                let after = from_token(scope, page_token)?;
                let range = Range { order, after, newer_than_ms: None, count };
                let page = lists.page(list, user, range).await?;
                let next_page_token = page.next_token(scope);
                Ok(ListingPage { of: (list, user), entries: page.entries, next_page_token })
            }
            Self::NotFollowedBack(user) => {
                let after = from_token(scope, page_token)?;
                let both = [(List::Followers, user), (List::Following, user)];
                let (entries, last) = intersection::scan(lists, both, false, after, count).await?;
                let next_page_token = last.map_or_else(String::new, |last| token(last, scope));
                Ok(ListingPage { of: both[0], entries, next_page_token })
            }
            Self::Intersection(intersection) => {
                let cursor = match IntersectionCursor::from_token(scope, page_token)? {
                    Some(cursor) => cursor,
                    None => intersection.start(lists).await?,
                };
                let page = intersection.page(lists, cursor, count).await?;
                let token = |cursor: IntersectionCursor| cursor.token(scope);
                let next_page_token = page.next.map_or_else(String::new, token);
                let of = intersection.first();
                Ok(ListingPage { of, entries: page.entries, next_page_token })
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
    /// Only entries that are newer than this time, in Unix ms.
    pub(crate) newer_than_ms: Option<u64>,
}

impl IdList {
    /// Returns a page of up to 8,000 ids. The scope identifies the list in page tokens.
    pub(crate) async fn page(
        self,
        lists: &Lists,
        scope: Scope,
        page_token: &str,
    ) -> Result<Page, Error> {
        let Self { list, user, newer_than_ms } = self;
        let after = from_token(scope, page_token)?;
        let range = Range { order: Order::Newest, after, newer_than_ms, count: IDS_MAX };
        Ok(lists.page(list, user, range).await?)
    }
}

/// Returns all followers of a user behind an entry, newest first, in pages of `count`, as the database has
/// them: fan-out on write must not miss one that the cache does not have yet.
pub(crate) fn followers(
    lists: Lists,
    user: UserId,
    after: Option<Record>,
    count: usize,
) -> impl Stream<Item = Result<Page, Error>> {
    stream::try_unfold(Some(after), move |position| {
        let lists = lists.clone();
        async move {
            let Some(after) = position else { return Ok(None) };
            let range = Range::newest(after, count);
            let page = lists.page_of_database(List::Followers, user, range).await?;
            let next = page.more.then(|| page.entries.last().copied());
            Ok(Some((page, next)))
        }
    })
}

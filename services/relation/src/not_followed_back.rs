//! The followers of a user whom the user does not follow back. Reads the followers in chunks, and
//! looks each up in the id set of followings. A chunk costs two round trips to the user's
//! partition.

use microblog_domain::UserId;
use microblog_keyspace::Entry;

use crate::{
    error::Error,
    graph::List,
    store::{Store, ids},
};

const CHUNK: usize = 500;

/// The most followers that one call scans.
const EXAMINED_MAX: usize = 5_000;

/// A page of followers who are not followed back.
pub(crate) struct FilteredPage {
    /// Newest first.
    pub(crate) entries: Vec<Entry>,
    /// The last scanned follower, where the next page starts; `None` at the end.
    pub(crate) next: Option<Entry>,
}

/// Returns up to `count` of them among the next 5,000 followers after an entry.
pub(crate) async fn page(
    store: &Store,
    user: UserId,
    mut after: Option<Entry>,
    count: usize,
) -> Result<FilteredPage, Error> {
    let mut entries = Vec::new();
    for _ in 0..EXAMINED_MAX / CHUNK {
        let page = store.page(List::Followers, user, after, None, CHUNK).await?;
        let is_followed = store.in_id_set(List::Following, user, &ids(&page.entries)).await?;
        for (i, entry) in page.entries.iter().enumerate() {
            if is_followed.get(i) == Some(&false) {
                entries.push(*entry);
            }
            if entries.len() == count {
                let is_last = !page.more && i + 1 == page.entries.len();
                return Ok(FilteredPage { entries, next: Some(*entry).filter(|_| !is_last) });
            }
        }
        after = page.entries.last().copied();
        if !page.more {
            return Ok(FilteredPage { entries, next: None });
        }
    }
    Ok(FilteredPage { entries, next: after })
}

//! The followers of a user whom the user does not follow: the list of followers in chunks, each
//! looked up in the id set of followings. A chunk costs a round trip, and its look-up another, both to
//! the user's partition.

use microblog_domain::UserId;
use microblog_keyspace::Entry;

use crate::{
    error::Error,
    graph::List,
    store::{Store, ids},
};

const CHUNK: usize = 500;

/// How many followers one call examines, so that its cost is bounded.
const EXAMINED_MAX: usize = 5_000;

/// Some followers who are not followed back.
pub(crate) struct Found {
    /// Newest first.
    pub(crate) entries: Vec<Entry>,
    /// The last follower that was examined, after whom to go on; `None` at the end of the list.
    pub(crate) next: Option<Entry>,
}

/// Returns up to `count` of those among the next 5,000 followers after an entry.
pub(crate) async fn page(
    store: &Store,
    user: UserId,
    mut after: Option<Entry>,
    count: usize,
) -> Result<Found, Error> {
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
                return Ok(Found { entries, next: Some(*entry).filter(|_| !is_last) });
            }
        }
        after = page.entries.last().copied();
        if !page.more {
            return Ok(Found { entries, next: None });
        }
    }
    Ok(Found { entries, next: after })
}

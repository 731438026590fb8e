//! Fan-out on read (pull): merges the user timelines of several authors.

use microblog_domain::{PostId, UserId};

use crate::{
    entry::{Entry, newest},
    error::Error,
    list::{HOME_MAX, List},
    store::{Store, Tail},
};

/// The total number of posts to fetch first, at 10 to 50 for each author: a few pages of a home
/// timeline.
const TAILS: usize = 20_000;

/// How far down user timelines are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchDepth {
    /// The newest posts of each author.
    Tails,
    /// The newest posts of all authors together, up to the maximum length.
    Full,
    /// As `Full`, for all followings, including those with fan-out on write.
    AllFollowings,
}

/// Returns the merged posts of authors. One round trip to each partition, all concurrent, and at
/// most one more for more than tails.
pub(crate) async fn list(
    store: &Store,
    authors: &[UserId],
    depth: FetchDepth,
) -> Result<List, Error> {
    if depth != FetchDepth::Tails {
        return Ok(List::new(newest_of(store, authors, HOME_MAX).await?, None));
    }
    let tails = store.tails(authors, Some(tail(authors))).await?;
    let known_down_to = tails.iter().filter_map(known_down_to).max();
    Ok(List::new(tails.into_iter().flat_map(|tail| tail.entries).collect(), known_down_to))
}

/// Returns the newest posts of authors, up to `max`, newest first. Fetches tails first, then the
/// whole timelines of those authors that may have more among the newest.
pub(crate) async fn newest_of(
    store: &Store,
    authors: &[UserId],
    max: usize,
) -> Result<Vec<Entry>, Error> {
    let tails = store.tails(authors, Some(tail(authors))).await?;
    let ends = tails.iter().flat_map(|tail| tail.entries.iter().copied()).collect();
    let found = newest(ends, max);
    let oldest = found.get(max - 1).map(|entry| entry.post);
    let has_more = |tail: &Tail| {
        known_down_to(tail)
            .is_some_and(|known_down_to| oldest.is_none_or(|last| known_down_to > last))
    };
    let authors = authors.iter().zip(&tails);
    let prolific: Vec<_> =
        authors.filter_map(|(&author, tail)| has_more(tail).then_some(author)).collect();
    if prolific.is_empty() {
        return Ok(found);
    }
    let whole = store.tails(&prolific, None).await?;
    Ok(newest(whole.into_iter().flat_map(|tail| tail.entries).chain(found).collect(), max))
}

fn tail(authors: &[UserId]) -> usize {
    (TAILS / authors.len().max(1)).clamp(10, 50)
}

// Returns the post below which a tail may lack posts.
fn known_down_to(tail: &Tail) -> Option<PostId> {
    tail.entries.first().filter(|_| !tail.is_complete).map(|entry| entry.post)
}

//! Timelines of several authors, merged.

use microblog_domain::{PostId, UserId};

use crate::{
    entry::{Entry, newest},
    error::Error,
    list::{HOME_MAX, List},
    store::{Store, Tail},
};

/// How many posts are fetched of all authors together at first, if that is from 10 to 50 of each: a
/// few pages of a reader's timeline.
const TAILS: usize = 20_000;

/// How far down authors' timelines are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The newest of each.
    Tails,
    /// The newest of all.
    Whole,
    /// The newest of all whom the reader follows, whether they are pushed or not.
    Everybody,
}

/// Returns what authors posted. One round trip to each partition, all sent together, and at most one
/// more for the whole depth.
pub(crate) async fn list(store: &Store, authors: &[UserId], depth: Depth) -> Result<List, Error> {
    if depth != Depth::Tails {
        return Ok(List::new(newest_of(store, authors, HOME_MAX).await?, None));
    }
    let tails = store.tails(authors, Some(tail(authors))).await?;
    let cut = tails.iter().filter_map(cut).max();
    Ok(List::new(tails.into_iter().flat_map(|tail| tail.entries).collect(), cut))
}

/// Returns the newest posts of authors, up to `max`, newest first: their ends, and then the whole
/// timelines of those who have more of them than that.
pub(crate) async fn newest_of(
    store: &Store,
    authors: &[UserId],
    max: usize,
) -> Result<Vec<Entry>, Error> {
    let tails = store.tails(authors, Some(tail(authors))).await?;
    let ends = tails.iter().flat_map(|tail| tail.entries.iter().copied()).collect();
    let found = newest(ends, max);
    let oldest = found.get(max - 1).map(|entry| entry.post);
    let has_more = |tail: &Tail| cut(tail).is_some_and(|cut| oldest.is_none_or(|last| cut > last));
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

// Below which post something may be missing.
fn cut(tail: &Tail) -> Option<PostId> {
    tail.entries.first().filter(|_| !tail.is_whole).map(|entry| entry.post)
}

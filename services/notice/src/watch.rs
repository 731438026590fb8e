//! `WatchNotices`: polls an account's notices while the caller consumes the stream. Nothing is buffered:
//! a slow or idle caller reads the missed notices from the list.

use std::time::Duration;

use futures::{Stream, stream};
use microblog_domain::{PageSize, UserId};
use tokio::time::sleep;

use crate::{
    error::Error,
    store::{Notices, Query, Store},
    wire::all_kinds,
};

/// The poll interval: a notice shows within a second of its arrival.
const POLL_PERIOD: Duration = Duration::from_millis(400);

/// Streams the new notices of an account: the first ones at once, even if there are none.
pub(crate) fn watch(
    store: Store,
    user: UserId,
    since: Option<u64>,
) -> impl Stream<Item = Result<Notices, Error>> + Send {
    let first = (store, since, true);
    stream::try_unfold(first, move |(store, since, is_first)| async move {
        let notices = if is_first {
            first_of(&store, user, since).await?
        } else {
            next(&store, user, since.unwrap_or_default()).await?
        };
        let top = notices.top;
        Ok(Some((notices, (store, Some(top), false))))
    })
}

async fn first_of(store: &Store, user: UserId, since: Option<u64>) -> Result<Notices, Error> {
    match since {
        Some(since) => read(store, user, since).await,
        None => Ok(Notices { top: store.top(user).await?, notices: Vec::new(), next: None }),
    }
}

async fn next(store: &Store, user: UserId, since: u64) -> Result<Notices, Error> {
    loop {
        sleep(POLL_PERIOD).await;
        // Without notices after the account's end, or after Redis lost data.
        if store.top(user).await? > since {
            return read(store, user, since).await;
        }
    }
}

async fn read(store: &Store, user: UserId, above: u64) -> Result<Notices, Error> {
    let (kinds, count) = (all_kinds(), PageSize::MAX);
    let query = Query { kinds, below: None, above, count, unseen: false };
    Ok(store.list(user, &query).await?)
}

//! `WatchNotices`: polls an account's notices while the caller consumes the stream. Nothing is buffered:
//! a slow or idle caller reads the missed notices from the list.

use std::time::Duration;

use futures::{Stream, stream};
use microblog_domain::{PageSize, UserId};
use tokio::time::sleep;

use crate::{
    error::Error,
    notice::Notice,
    store::{Query, Store},
    wire::all_kinds,
};

/// The poll interval: a notice shows within a second of its arrival.
const POLL_PERIOD: Duration = Duration::from_millis(400);

/// New notices.
pub(crate) struct Update {
    pub(crate) notices: Vec<Notice>,
    /// The position above which acts are new.
    pub(crate) since: u64,
    /// The position from which a stream may resume.
    pub(crate) token: u64,
}

/// A watch of an account's notices.
struct Watch {
    store: Store,
    user: UserId,
    /// The position up to which all notices were sent.
    since: u64,
    /// Of several pages of new notices, the newest position when the first one was read, and the
    /// position below which the next one begins.
    rest: Option<(u64, u64)>,
}

/// Streams the new notices of an account: the first ones at once, even if there are none.
pub(crate) fn watch(
    store: Store,
    user: UserId,
    since: Option<u64>,
) -> impl Stream<Item = Result<Update, Error>> + Send {
    stream::try_unfold(None, move |watch| {
        let store = store.clone();
        async move {
            let (update, watch) = match watch {
                None => first(store, user, since).await?,
                Some(watch) => next(watch).await?,
            };
            Ok(Some((update, Some(watch))))
        }
    })
}

async fn first(store: Store, user: UserId, since: Option<u64>) -> Result<(Update, Watch), Error> {
    let Some(since) = since else {
        let top = store.top(user).await?;
        let update = Update { notices: Vec::new(), since: top, token: top };
        return Ok((update, Watch { store, user, since: top, rest: None }));
    };
    read(Watch { store, user, since, rest: None }).await
}

async fn next(watch: Watch) -> Result<(Update, Watch), Error> {
    // None are left after the account's end, or after Redis lost data.
    while watch.rest.is_none() && watch.store.top(watch.user).await? <= watch.since {
        sleep(POLL_PERIOD).await;
    }
    read(watch).await
}

/// Reads a page of the new notices.
async fn read(mut watch: Watch) -> Result<(Update, Watch), Error> {
    let query = Query {
        kinds: all_kinds(),
        below: watch.rest.map(|(_, below)| below),
        above: watch.since,
        count: PageSize::MAX,
        unseen: false,
    };
    let found = watch.store.list(watch.user, &query).await?;
    let top = watch.rest.map_or(found.top, |(top, _)| top);
    watch.rest = found.next.map(|below| (top, below));
    let since = watch.since;
    if watch.rest.is_none() {
        watch.since = top;
    }
    let update = Update { notices: found.notices, since, token: watch.since };
    Ok((update, watch))
}

//! `WatchNotices`: polls an account's notices while the caller consumes the stream. Nothing is buffered:
//! a slow or idle caller reads the missed notices from the list.

use std::time::Duration;

use futures::{Stream, stream};
use microblog_domain::{PageSize, UserId};
use microblog_storage::ReadError;
use tokio::time::sleep;

use crate::{
    lists::{Notices, Query},
    notice::{KINDS, Notice},
};

/// The poll interval: a notice shows within a second of its arrival.
const POLL_PERIOD: Duration = Duration::from_millis(400);

/// The same without the cache: each poll is a statement.
const UNCACHED_POLL_PERIOD: Duration = Duration::from_secs(2);

/// New notices.
pub(crate) struct Update {
    pub(crate) notices: Vec<Notice>,
    /// The position above which acts are new.
    pub(crate) since: u64,
    /// The position from which a stream may resume.
    pub(crate) token: u64,
}

/// A watch of an account's notices.
#[derive(Clone)]
struct Watch {
    list: Notices,
    user: UserId,
    /// The position up to which all notices were sent.
    since: u64,
    /// Of several pages of new notices, the newest position when the first one was read, and the
    /// position below which the next one begins.
    rest: Option<(u64, u64)>,
}

/// Streams the new notices of an account: the first ones at once, even if there are none.
pub(crate) fn watch(
    list: Notices,
    user: UserId,
    since: Option<u64>,
) -> impl Stream<Item = Result<Update, ReadError>> + Send {
    stream::try_unfold(None, move |watch| {
        let list = list.clone();
        async move {
            let (update, watch) = match watch {
                None => first(list, user, since).await?,
                Some(watch) => next(watch).await?,
            };
            Ok(Some((update, Some(watch))))
        }
    })
}

async fn first(
    list: Notices,
    user: UserId,
    since: Option<u64>,
) -> Result<(Update, Watch), ReadError> {
    let Some(since) = since else {
        let top = list.top(user).await?;
        let update = Update { notices: Vec::new(), since: top, token: top };
        return Ok((update, Watch { list, user, since: top, rest: None }));
    };
    read(Watch { list, user, since, rest: None }).await
}

async fn next(watch: Watch) -> Result<(Update, Watch), ReadError> {
    loop {
        if watch.rest.is_some() || watch.has_new().await? {
            match read(watch.clone()).await {
                Err(ReadError::Overloaded) => {}
                read => return read,
            }
        }
        let is_cached = watch.list.reader.is_trusted(watch.user.get());
        sleep(if is_cached { POLL_PERIOD } else { UNCACHED_POLL_PERIOD }).await;
    }
}

impl Watch {
    async fn has_new(&self) -> Result<bool, ReadError> {
        match self.list.top(self.user).await {
            // Without a cache, many streams wait for the database: each is a little later.
            Err(ReadError::Overloaded) => Ok(false),
            top => Ok(top? > self.since),
        }
    }
}

/// Reads a page of the new notices.
async fn read(mut watch: Watch) -> Result<(Update, Watch), ReadError> {
    let query = Query {
        kinds: KINDS.into(),
        below: watch.rest.map(|(_, below)| below),
        above: watch.since,
        count: PageSize::MAX,
        unseen: false,
    };
    let found = watch.list.list(watch.user, &query).await?;
    // A cache that was cut off may be older than what the stream resumes from.
    let top = watch.rest.map_or(found.top, |(top, _)| top).max(watch.since);
    watch.rest = found.next.map(|below| (top, below));
    let since = watch.since;
    if watch.rest.is_none() {
        watch.since = top;
    }
    let update = Update { notices: found.notices, since, token: watch.since };
    Ok((update, watch))
}

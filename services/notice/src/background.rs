//! Background jobs. The feeds are divided among the worker threads of a replica; the other jobs run in one of them.

use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use microblog_chassis::{Worker, run_periodically};
use microblog_keyspace::Keyspace;
use microblog_storage::{Item as _, Lease, Tables, Verifier, Writer, transaction::database_now_ms};

use crate::{
    error::Error,
    feed::Follower,
    group::Calls,
    items::NoticeItem,
    notice::DAY_MS,
    peers::Peers,
    source::Source,
    steps::{Call, KEPT_DAYS},
    tables::expired,
};

/// The period of the removal of what has expired.
const PERIOD: Duration = Duration::from_secs(60);

/// The most accounts whose notices are removed together.
const EXPIRED_MAX: usize = 50;

/// Returns the followers of change feeds of a thread. They never complete.
pub(crate) fn followers(
    tables: &Tables,
    writer: &Writer<Calls>,
    peers: &Peers,
    worker: Worker,
) -> Vec<BoxFuture<'static, ()>> {
    let is_ours = |source: &Source| *source as usize % worker.count == worker.index;
    let follower =
        |source| Follower::new(source, tables.clone(), writer.clone(), peers.clone()).run().boxed();
    Source::ALL.into_iter().filter(is_ours).map(follower).collect()
}

/// Returns the other jobs. They never complete.
pub(crate) fn jobs(
    tables: &Tables,
    keyspace: &Keyspace,
    writer: &Writer<Calls>,
) -> Vec<BoxFuture<'static, ()>> {
    let verifier = Verifier::new(tables.clone(), keyspace.clone(), NoticeItem::PREFIX);
    let (tables, writer, lease) = (tables.clone(), writer.clone(), Lease::new("expiry"));
    let expire = async move || remove_expired(&tables, &writer, &lease).await;
    vec![
        Box::pin(verifier.run()),
        Box::pin(run_periodically("removing expired notices", PERIOD, expire)),
    ]
}

// Removes the notices and mentions of accounts without an act for long, if this replica is the one that does.
async fn remove_expired(
    tables: &Tables,
    writer: &Writer<Calls>,
    lease: &Lease,
) -> Result<(), Error> {
    let database = tables.database().await?;
    let today = database_now_ms(database).await? / DAY_MS;
    while lease.take(database).await? {
        let users = expired(database, today.saturating_sub(KEPT_DAYS), EXPIRED_MAX).await?;
        let is_last = users.len() < EXPIRED_MAX;
        let calls = users.into_iter().map(|user| writer.write(Call::Expire(user)));
        futures::future::try_join_all(calls).await?;
        if is_last {
            break;
        }
    }
    Ok(())
}

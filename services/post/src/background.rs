//! The jobs that run beside the calls, in one worker of every replica.

use std::time::Duration;

use futures::future::BoxFuture;
use microblog_chassis::Rounds;
use microblog_domain::Partition;
use tokio::time::sleep;

use crate::{
    archive::{self, Archive},
    archiver::Archiver,
    delivery::Delivery,
    forget,
    mover::Mover,
    posts::Posts,
    store::Store,
    sweeper::{PATIENCE, Sweeper},
    tiers::Tiers,
};

/// How often each job looks for work: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// How long the archiver waits after a failure: what waits may be much, and is read in vain.
const PAUSE: Duration = Duration::from_secs(5);

/// Returns the jobs, each running for ever.
pub(crate) fn jobs(tiers: &Tiers, delivery: &Delivery) -> Vec<BoxFuture<'static, ()>> {
    let posts = Posts::new(tiers.clone(), delivery.clone());
    let sweeper = || Sweeper::new(tiers.clone(), delivery.clone());
    vec![
        Box::pin(tell(sweeper())),
        Box::pin(deliver(sweeper())),
        Box::pin(forget(tiers.clone(), posts)),
    ]
}

/// Returns the job that archives, and moves what is old to the archive.
pub(crate) fn archiving(
    store: &Store,
    archive: &Archive,
    config: &archive::Config,
) -> Vec<BoxFuture<'static, ()>> {
    let archiver = Archiver::new(store.clone(), archive.clone());
    let mover = Mover::new(store.clone(), archive.clone(), config);
    vec![Box::pin(archive_and_move(archiver, mover))]
}

async fn tell(mut sweeper: Sweeper) {
    let mut rounds = Rounds::new("telling of reposts", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(sweeper.tell(PATIENCE).await);
    }
}

async fn deliver(mut sweeper: Sweeper) {
    let mut rounds = Rounds::new("delivering posts", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(sweeper.deliver(PATIENCE).await);
    }
}

async fn forget(tiers: Tiers, posts: Posts) {
    let mut rounds = Rounds::new("forgetting", PERIOD);
    loop {
        rounds.next().await;
        rounds.note(forget::forget_marked(&tiers, &posts).await);
    }
}

// Archives what waits, and then moves what is old in one partition: all of them take a quarter of an
// hour.
async fn archive_and_move(mut archiver: Archiver, mover: Mover) {
    let mut rounds = Rounds::new("archiving", PERIOD);
    let mut partitions = Partition::all().cycle();
    loop {
        rounds.next().await;
        let done = async {
            if archiver.round().await? {
                let partition = partitions.next().unwrap_or(Partition::new(0));
                mover.partition(partition).await?;
                if partition.number() == 0 {
                    mover.purge().await?;
                }
            }
            Ok::<_, crate::Error>(())
        }
        .await;
        let has_failed = done.is_err();
        rounds.note(done);
        if has_failed {
            sleep(PAUSE).await;
        }
    }
}

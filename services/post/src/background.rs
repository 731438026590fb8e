//! The jobs that run beside the calls, in one worker of every replica.

use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use microblog_chassis::{PeriodicJob, run_on_dedicated_thread};
use microblog_domain::Partition;
use tokio::time::sleep;

use crate::{
    archive::{self, Archive},
    archiver::Archiver,
    delivery::Delivery,
    erasure::Eraser,
    error::Error,
    evictor::Evictor,
    forget,
    lease::Lease,
    posts::Posts,
    store::{Job, Store},
    sweeper::{PENDING_AFTER, Sweeper, UNDELIVERED_AFTER},
    tiered_store::TieredStore,
};

/// How often each job looks for work: 1,024 small reads in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// How often it is looked for deleted accounts to erase, which wait for minutes before that.
const ERASURE_PERIOD: Duration = Duration::from_secs(5);

// A post is seen a period after it was written down at the latest, and taken up another one later.
const DELIVERED_WITHIN: Duration = Duration::from_secs(2);
const _: () = assert!(UNDELIVERED_AFTER.as_millis() < PERIOD.as_millis());
const _: () = assert!(2 * PERIOD.as_millis() <= DELIVERED_WITHIN.as_millis());

/// How often the clocks of the partitions are measured.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// How long a job rests that failed for want of the archive: longer than others take to notice. What
/// waits may be much, and is read in vain.
const BACK_OFF: Duration = Duration::from_secs(5);

/// How many partitions the mover looks through in a round, and how many authors in all, but for the
/// last partition's. With few authors it is round in half a minute; with a thousand in each
/// partition, in a quarter of an hour.
const PARTITIONS_MAX: usize = 32;
const AUTHORS_MAX: usize = 1_000;

/// Returns the jobs, each running for ever.
pub(crate) fn jobs(
    tiered: &TieredStore,
    delivery: &Delivery,
    chassis: &microblog_chassis::Config,
) -> Vec<BoxFuture<'static, ()>> {
    // No call of a deleted account's is under way any more: each ends within its deadline, and a
    // write that was begun by then not much later.
    let grace = 2 * Duration::from_millis(chassis.max_timeout_ms);
    let eraser = Eraser::new(tiered.clone(), grace);
    let eraser_lease = Lease::new(tiered.store().clone(), Job::Erasing);
    let posts = Posts::new(tiered.clone(), delivery.clone());
    let sweeper = || Sweeper::new(tiered.clone(), delivery.clone());
    vec![
        Box::pin(notify(sweeper())),
        Box::pin(deliver(sweeper())),
        Box::pin(forget(tiered.clone(), posts)),
        Box::pin(erase(eraser, eraser_lease)),
        Box::pin(measure_clocks(tiered.store().clone())),
    ]
}

async fn measure_clocks(store: Store) {
    let mut job = PeriodicJob::new("measuring the clocks", CLOCKS_PERIOD);
    loop {
        job.tick().await;
        job.record(store.measure_clocks().await);
    }
}

/// Returns the jobs that archive, and move what is old to the archive, for ever. In a thread of their
/// own: when many post, they keep a processor busy, for which callers would have to wait.
pub(crate) fn archiving(
    store: Store,
    archive: Archive,
    config: &archive::Config,
) -> BoxFuture<'static, ()> {
    let archiver = Archiver::new(store.clone(), archive.clone());
    let evictor = Evictor::new(store.clone(), archive, config);
    let (archiver_lease, evictor_lease) =
        (Lease::new(store.clone(), Job::Archiving), Lease::new(store, Job::Evicting));
    run_on_dedicated_thread("archiving", async move {
        tokio::join!(archive_all(archiver, archiver_lease), evict_all(evictor, evictor_lease));
    })
}

async fn notify(mut sweeper: Sweeper) {
    let mut job = PeriodicJob::new("telling of reposts", PERIOD);
    loop {
        job.tick().await;
        job.record(sweeper.notify_targets(PENDING_AFTER).await);
    }
}

async fn deliver(mut sweeper: Sweeper) {
    let mut job = PeriodicJob::new("delivering posts", PERIOD);
    loop {
        job.tick().await;
        job.record(sweeper.deliver(UNDELIVERED_AFTER).await);
    }
}

async fn forget(tiered: TieredStore, posts: Posts) {
    let mut job = PeriodicJob::new("forgetting", PERIOD);
    loop {
        job.tick().await;
        job.record(forget::forget_marked(&tiered, &posts).await);
    }
}

async fn erase(eraser: Eraser, lease: Lease) {
    let mut job = PeriodicJob::new("erasing", ERASURE_PERIOD);
    loop {
        job.tick().await;
        let done = lease.hold(eraser.run_once()).await;
        record_and_back_off(&mut job, done).await;
    }
}

async fn archive_all(mut archiver: Archiver, lease: Lease) {
    let mut job = PeriodicJob::new("archiving", PERIOD);
    loop {
        job.tick().await;
        let done = lease.hold(archiver.drain()).await;
        if matches!(done, Ok(None)) {
            archiver.reset_backlog();
        }
        record_and_back_off(&mut job, done).await;
    }
}

// Goes round all partitions, beginning anywhere: processes may be started again and again.
async fn evict_all(evictor: Evictor, lease: Lease) {
    let mut job = PeriodicJob::new("moving old posts", PERIOD);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut next = (now.subsec_micros() % u32::from(Partition::COUNT)) as u16;
    loop {
        job.tick().await;
        let done = lease.hold(evict_some(&evictor, &mut next)).await;
        record_and_back_off(&mut job, done).await;
    }
}

async fn evict_some(evictor: &Evictor, next: &mut u16) -> Result<(), Error> {
    let mut authors = 0;
    for _ in 0..PARTITIONS_MAX {
        authors += evictor.partition(Partition::new(*next)).await?.authors;
        *next = (*next + 1) % Partition::COUNT;
        if *next == 0 {
            evictor.purge().await?;
        }
        if authors >= AUTHORS_MAX {
            break;
        }
    }
    Ok(())
}

async fn record_and_back_off<T>(job: &mut PeriodicJob, done: Result<Option<T>, Error>) {
    let has_failed = done.is_err();
    job.record(done.map(|_| ()));
    if has_failed {
        sleep(BACK_OFF).await;
    }
}

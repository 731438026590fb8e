//! Background jobs, which run in one worker of every replica. Some jobs run in one replica at a
//! time, under a lease: two at once would only repeat work.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::{BoxFuture, join_all};
use microblog_chassis::{PeriodicJob, run_on_dedicated_thread, run_periodically};
use microblog_domain::Partition;
use tokio::time::sleep;
use uuid::Uuid;

use crate::{
    archive::{self, Archive},
    delivery::Delivery,
    erasure::Eraser,
    error::Error,
    evictor::Evictor,
    forget,
    posts::Posts,
    record::{self, remove_tombstones},
    store::{Job, Store},
    sweeper::{PENDING_AFTER, Sweeper, UNDELIVERED_AFTER},
    tiered_store::TieredStore,
};

/// The period of a job: each run reads 1,024 short lists in one batch.
const PERIOD: Duration = Duration::from_secs(1);

/// The period of the job that erases deleted accounts, which first wait for minutes.
const ERASURE_PERIOD: Duration = Duration::from_secs(5);

// The sweeper sees a post at most one period after its creation, and delivers it at most one period
// later.
const DELIVERED_WITHIN: Duration = Duration::from_secs(2);
const _: () = assert!(UNDELIVERED_AFTER.as_millis() < PERIOD.as_millis());
const _: () = assert!(2 * PERIOD.as_millis() <= DELIVERED_WITHIN.as_millis());

/// How often the clocks of the partitions are measured.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// How often tombstones that are not needed any more are looked for.
const TOMBSTONES_PERIOD: Duration = Duration::from_secs(60);

/// How long a job backs off after a failure. Longer than the archive's circuit breaker pauses.
const BACK_OFF: Duration = Duration::from_secs(5);

/// The most partitions and authors that one run of the evictor visits; it finishes the partition in
/// which it reaches the latter. A cycle over all partitions takes half a minute with few authors,
/// and a quarter of an hour with a thousand in each partition.
const PARTITIONS_MAX: usize = 32;
const AUTHORS_MAX: usize = 1_000;

/// Returns the jobs, which never end.
pub(crate) fn jobs(
    tiered: &TieredStore,
    delivery: &Delivery,
    chassis: &microblog_chassis::Config,
) -> Vec<BoxFuture<'static, ()>> {
    // After this time, no call of a deleted account is in flight: calls end within their deadline,
    // and the writes that they began end soon after.
    let grace = 2 * Duration::from_millis(chassis.max_timeout_ms);
    let eraser = Eraser::new(tiered.clone(), grace);
    let eraser_lease = Lease::new(tiered.store().clone(), Job::Erasing);
    let posts = Posts::new(tiered.clone(), delivery.clone());
    let sweeper = || Sweeper::new(tiered.clone(), delivery.clone());
    let (mut notifier, mut deliverer) = (sweeper(), sweeper());
    let (marked, clocks) = (tiered.clone(), tiered.store().ignoring_closed());
    let notify = async move || notifier.notify_targets(PENDING_AFTER).await;
    let deliver = async move || deliverer.deliver(UNDELIVERED_AFTER).await;
    let forget = async move || forget::forget_marked(&marked, &posts).await;
    let measure = async move || clocks.measure_clocks().await;
    vec![
        Box::pin(run_periodically("notifying reposted posts", PERIOD, notify)),
        Box::pin(run_periodically("delivering posts", PERIOD, deliver)),
        Box::pin(run_periodically("forgetting", PERIOD, forget)),
        Box::pin(erase(eraser, eraser_lease)),
        Box::pin(run_periodically("measuring the clocks", CLOCKS_PERIOD, measure)),
    ]
}

/// Returns the recorder and the evictor, which never end. They run on a dedicated thread, since
/// many posts keep a processor busy, and calls must not wait for it. Recorders of several replicas
/// may run at once: they share the work.
pub(crate) fn archiving(
    store: Store,
    archive: Archive,
    config: &archive::Config,
) -> BoxFuture<'static, ()> {
    let recorder = Arc::new(record::recorder(&store, &archive, config));
    let evictor = Evictor::new(store.clone(), archive.clone(), recorder.clone(), config);
    let lease = Lease::new(store.clone(), Job::Evicting);
    let config = config.clone();
    let remove = async move || remove_tombstones(&store, &archive, &config).await;
    run_on_dedicated_thread("archiving", async move {
        tokio::join!(
            join_all(recorder.jobs()),
            run_periodically("removing tombstones", TOMBSTONES_PERIOD, remove),
            evict_all(evictor, lease),
        );
    })
}

async fn erase(eraser: Eraser, lease: Lease) {
    let mut job = PeriodicJob::new("erasing", ERASURE_PERIOD);
    loop {
        job.tick().await;
        let done = lease.hold(eraser.run_once()).await;
        record_and_back_off(&mut job, done).await;
    }
}

// Cycles over all partitions from a random one on, since processes may restart often.
async fn evict_all(evictor: Evictor, lease: Lease) {
    let mut job = PeriodicJob::new("evicting", PERIOD);
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
        let partition = Partition::new(*next);
        // A partition that fails must not keep the others in Redis.
        *next = (*next + 1) % Partition::COUNT;
        authors += evictor.partition(partition).await?.authors;
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

/// How often a running job renews its lease: a third of the lease's lifetime.
const RENEWAL_PERIOD: Duration = Duration::from_secs(3);

/// A lease on a job, which another process may hold.
struct Lease {
    store: Store,
    job: Job,
    holder: String,
}

impl Lease {
    /// Returns a lease that is not acquired yet.
    fn new(store: Store, job: Job) -> Self {
        Self { store, job, holder: Uuid::new_v4().to_string() }
    }

    /// Runs the work while it holds the lease. Returns `None` if another process holds the lease,
    /// or takes it over. Releases the lease if the work fails: another process may succeed.
    async fn hold<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<Option<T>, Error> {
        if !self.store.acquire_lease(self.job, &self.holder).await? {
            return Ok(None);
        }
        let done = tokio::select! {
            done = work => done.map(Some),
            lost = self.until_lost() => lost.map(|()| None),
        };
        if done.is_err() {
            self.store.release_lease(self.job, &self.holder).await?;
        }
        done
    }

    async fn until_lost(&self) -> Result<(), Error> {
        loop {
            sleep(RENEWAL_PERIOD).await;
            if !self.store.acquire_lease(self.job, &self.holder).await? {
                return Ok(());
            }
        }
    }
}

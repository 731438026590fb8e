//! Recorders, evictors and restores: two processes that are killed at any moment, and others that
//! execute single steps late.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use microblog_domain::{Partition, PostId, Stamp};
use microblog_post::{Archive, Error, Evictor, PostTables, RestoreOutcome, recorder};
use microblog_record::{RecordError, Recorder};
use microblog_testkit::redis;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::case::{Case, PAUSE, patiently};

/// Returns a random number below a bound.
pub(crate) fn any_below(end: u64) -> u64 {
    Uuid::new_v4().as_u64_pair().1 % end
}

// Waits: mostly briefly, now and then until others have done much.
async fn pause_randomly(case: &Case) {
    match any_below(8) {
        0 => sleep(2 * case.pause()).await,
        1 | 2 => sleep(Duration::from_millis(any_below(20))).await,
        _ => tokio::task::yield_now().await,
    }
}

/// Opens the journals.
pub(crate) async fn begin(case: &Case) {
    if let Some(archived) = &case.archived {
        compare(&case.recorder(&archived.callers)).await;
    }
}

/// Starts to record and evict, unless that begins later.
pub(crate) fn spawn(case: &Case, background: &mut JoinSet<()>) {
    let Some(archived) = case.archived.as_ref().filter(|_| case.is_archived) else { return };
    for archive in &archived.jobs {
        let recorder = case.recorder(archive);
        background.spawn(record_for_ever(case.clone(), recorder.clone()));
        background.spawn(evict_for_ever(case.clone(), archive.clone(), recorder.clone()));
        background.spawn(evict_late_for_ever(case.clone(), recorder));
    }
    background.spawn(restore_late_for_ever(case.clone(), archived.callers.clone()));
}

// Executes work that is cancelled now and then.
async fn cancelled_now_and_then<T, E: std::fmt::Debug>(work: impl Future<Output = Result<T, E>>) {
    let life = match any_below(3) {
        0 => Duration::from_millis(any_below(30)),
        _ => Duration::from_secs(60),
    };
    if let Ok(Err(error)) = timeout(life, work).await {
        panic!("{error:?}");
    }
}

async fn record_for_ever(case: Case, recorder: Arc<Recorder<PostTables>>) {
    loop {
        cancelled_now_and_then(recorder.record(&partitions(&case))).await;
        sleep(case.pause()).await;
    }
}

async fn evict_for_ever(case: Case, archive: Archive, recorder: Arc<Recorder<PostTables>>) {
    let evictor = case.evictor(&archive, &recorder);
    loop {
        for partition in partitions(&case) {
            cancelled_now_and_then(evictor.partition(partition)).await;
        }
        cancelled_now_and_then(evictor.purge()).await;
        sleep(PAUSE).await;
    }
}

fn partitions(case: &Case) -> Vec<Partition> {
    let mut partitions: Vec<_> = case.users.iter().map(|user| user.partition()).collect();
    partitions.sort_unstable();
    partitions.dedup();
    partitions
}

// Evicts single posts step by step, late, or cancelled between two steps.
async fn evict_late_for_ever(case: Case, recorder: Arc<Recorder<PostTables>>) {
    loop {
        sleep(PAUSE).await;
        let partition = case.users[any_below(4) as usize].partition();
        let now = Stamp::first_at(SystemTime::now(), partition).get();
        let ids = case.store.evictable(partition, now).await.unwrap();
        if ids.is_empty() {
            continue;
        }
        let id = ids[any_below(ids.len() as u64) as usize];
        evict_late(&case, &recorder, id).await.unwrap();
    }
}

async fn evict_late(case: &Case, recorder: &Recorder<PostTables>, id: PostId) -> Result<(), Error> {
    let Some(mark) = case.store.mark_for_eviction(&[id]).await?[0] else { return Ok(()) };
    pause_randomly(case).await;
    record(recorder, &[id.partition()]).await?;
    pause_randomly(case).await;
    if any_below(4) == 0 {
        case.watch.count().late += 1;
        return Ok(());
    }
    pause_randomly(case).await;
    let evicted = case.store.evict(&[(id, mark)]).await?;
    case.watch.count().late += u64::from(evicted == [false]);
    Ok(())
}

// Restores single posts step by step, late: its lease may have expired.
async fn restore_late_for_ever(case: Case, archive: Archive) {
    loop {
        sleep(PAUSE).await;
        let ids = case.certain_posts(&case.users).there;
        let ids: Vec<_> = ids.into_iter().collect();
        let exist = case.store.exist(&ids).await.unwrap();
        // Or a post that was just restored: the caller may have missed that.
        let is_evicted = |exists: bool| !exists || any_below(4) == 0;
        let evicted = ids.into_iter().zip(exist).filter(|(_, exists)| is_evicted(*exists));
        let evicted: Vec<_> = evicted.map(|(id, _)| id).collect();
        if !evicted.is_empty() {
            let id = evicted[any_below(evicted.len() as u64) as usize];
            restore_late(&case, &archive, id).await.unwrap();
        }
    }
}

async fn restore_late(case: &Case, archive: &Archive, id: PostId) -> Result<(), Error> {
    let holder = Uuid::new_v4().to_string();
    if !case.store.begin_restore(id, &holder).await? {
        return Ok(());
    }
    let Some(snapshot) = archive.read_snapshot(id).await? else { return Ok(()) };
    pause_randomly(case).await;
    let is_lost = any_below(2) == 0;
    if is_lost {
        case.lose_lease(id).await;
        pause_randomly(case).await;
    }
    let is_gone = case.model().posts[&id].ended;
    let now = Stamp::first_at(SystemTime::now(), id.partition()).get();
    let restored = case.store.restore(&snapshot, &holder, now, "").await?;
    assert!(!is_lost || restored == RestoreOutcome::Retry, "{id}: {restored:?} without the lease");
    assert!(
        !is_gone || restored != RestoreOutcome::Restored,
        "{id} is restored after its deletion"
    );
    case.watch.count().late += u64::from(restored != RestoreOutcome::Restored);
    Ok(())
}

// Opens the journals, and compares the stores: calls are rejected before. The second run notes the
// positions, so that recorders that are made later do not reject calls again.
async fn compare(recorder: &Recorder<PostTables>) {
    for _ in 0..2 {
        recorder.run().await.unwrap();
    }
}

// Records all changes of some partitions.
async fn record(
    recorder: &Recorder<PostTables>,
    partitions: &[Partition],
) -> Result<(), RecordError> {
    while !recorder.record(partitions).await?.more.is_empty() {}
    Ok(())
}

impl Case {
    fn recorder(&self, archive: &Archive) -> Arc<Recorder<PostTables>> {
        let config = &self.archived.as_ref().expect("there is an archive").config;
        Arc::new(recorder(&self.store, archive, config))
    }

    fn evictor(&self, archive: &Archive, recorder: &Arc<Recorder<PostTables>>) -> Evictor {
        let config = &self.archived.as_ref().expect("there is an archive").config;
        Evictor::new(self.store.clone(), archive.clone(), recorder.clone(), config)
    }

    // Deletes a lease, as if it had expired.
    async fn lose_lease(&self, id: PostId) {
        let key = format!("post:{{{}}}:restoring:{id}", id.partition());
        for admin in &self.admins {
            // All but one node of a cluster reject it.
            let _: Result<u64, _> =
                redis::cmd("DEL").arg(&key).query_async(&mut admin.clone()).await;
        }
    }

    // Likewise the leases of all killed processes.
    async fn lose_leases(&self) {
        let ids: Vec<_> = self.model().posts.keys().copied().collect();
        for id in ids {
            self.lose_lease(id).await;
        }
    }
}

/// Deletes what killed processes left.
pub(crate) async fn let_time_pass(case: &Case) {
    if case.archived.is_some() {
        case.lose_leases().await;
    }
}

/// Evicts all that can be evicted.
pub(crate) async fn settle(case: &Case) {
    let Some(archived) = &case.archived else { return };
    let recorder = case.recorder(&archived.callers);
    compare(&recorder).await;
    let evictor = case.evictor(&archived.callers, &recorder);
    for partition in partitions(case) {
        evictor.partition(partition).await.unwrap();
    }
    record(&recorder, &partitions(case)).await.unwrap();
}

/// Deletes an archived post, if there is one.
pub(crate) async fn delete_archived(case: &Case) {
    for id in case.certain_posts(&case.users).there {
        let is_here = case.store.exist(&[id]).await.unwrap() == [true];
        case.watch.see(id, is_here);
        if !is_here {
            let author = case.model().posts[&id].it.author;
            patiently(|| case.posts.delete(author, id)).await.unwrap();
            let mut model = case.model();
            let made = model.posts.get_mut(&id).unwrap();
            (made.ends, made.ended) = (true, true);
            case.watch.count().archived_deleted += 1;
            return;
        }
    }
}

/// Purges tombstones.
pub(crate) async fn purge(case: &Case) {
    let Some(archived) = &case.archived else { return };
    let gone = case.gone();
    if case.is_archived {
        assert_eq!(case.tombstones().await, gone);
    }
    while archived.callers.purge_before(Stamp::END - 1, 0).await.unwrap() > 0 {}
    assert_eq!(case.tombstones().await, BTreeSet::new());
}

/// Restores every post.
pub(crate) async fn restore_all(case: &Case) {
    let posts = case.model().posts.clone();
    for (&id, made) in &posts {
        let is_back = patiently(|| case.tiered.restore(id)).await.unwrap();
        assert_eq!(is_back, !made.ended, "{id}");
        if is_back {
            case.watch.see(id, true);
        }
    }
    if let Some(archived) = &case.archived {
        let recorder = case.recorder(&archived.callers);
        record(&recorder, &partitions(case)).await.unwrap();
    }
}

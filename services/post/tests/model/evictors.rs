//! What archives posts, moves them to the archive and brings them back, meanwhile: by two processes,
//! killed at any moment, and step by step by some that are late.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime},
};

use microblog_domain::{Partition, PostId, Stamp};
use microblog_post::{Archive, Archiver, Error, Evictor, RestoreOutcome};
use microblog_testkit::redis;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use uuid::Uuid;

use crate::case::{Archived, Case, PAUSE, patiently};

/// Returns a number below another one.
pub(crate) fn any_below(end: u64) -> u64 {
    Uuid::new_v4().as_u64_pair().1 % end
}

// Waits, mostly not for long; now and then until others have done much.
async fn dawdle(case: &Case) {
    match any_below(8) {
        0 => sleep(2 * case.pause()).await,
        1 | 2 => sleep(Duration::from_millis(any_below(20))).await,
        _ => tokio::task::yield_now().await,
    }
}

/// From now on, what is made and ends is noted for the archive.
pub(crate) async fn begin(case: &Case) {
    if case.archived.is_some() {
        let partitions = case.users.map(|user| user.partition());
        case.store.enable_archive_outbox(&partitions).await.unwrap();
    }
}

/// Begins to archive and to move, for ever.
pub(crate) fn spawn(case: &Case, background: &mut JoinSet<()>) {
    let Some(archived) = &case.archived else { return };
    for archive in &archived.jobs {
        background.spawn(archive_for_ever(case.clone(), archive.clone()));
        background.spawn(move_for_ever(case.clone(), archived.clone(), archive.clone()));
        background.spawn(move_late_for_ever(case.clone(), archive.clone()));
    }
    background.spawn(bring_back_late_for_ever(case.clone(), archived.callers.clone()));
}

// Carries out what is killed now and then before its end.
async fn mortal<T>(work: impl Future<Output = Result<T, Error>>) {
    let life = match any_below(3) {
        0 => Duration::from_millis(any_below(30)),
        _ => Duration::from_secs(60),
    };
    if let Ok(Err(error)) = timeout(life, work).await {
        panic!("{error:?}");
    }
}

async fn archive_for_ever(case: Case, archive: Archive) {
    let mut archiver = Archiver::new(case.store.clone(), archive);
    // The first one makes the tables, under a lock that its connection keeps, whoever gives up. One
    // who is killed closes that, which those here do not.
    archiver.drain_page().await.unwrap();
    loop {
        mortal(archiver.drain_page()).await;
        sleep(case.pause()).await;
    }
}

async fn move_for_ever(case: Case, archived: Archived, archive: Archive) {
    let evictor = Evictor::new(case.store.clone(), archive, &archived.config);
    loop {
        for partition in partitions(&case) {
            mortal(evictor.partition(partition)).await;
        }
        mortal(evictor.purge()).await;
        sleep(PAUSE).await;
    }
}

fn partitions(case: &Case) -> Vec<Partition> {
    let mut partitions: Vec<_> = case.users.iter().map(|user| user.partition()).collect();
    partitions.dedup_by_key(|partition| partition.number());
    partitions
}

// Moves single posts step by step, and is late, or killed, between any two of them.
async fn move_late_for_ever(case: Case, archive: Archive) {
    loop {
        sleep(PAUSE).await;
        let partition = case.users[any_below(4) as usize].partition();
        let now = Stamp::first_at(SystemTime::now(), partition).get();
        let ids = case.store.evictable(partition, now).await.unwrap();
        if ids.is_empty() {
            continue;
        }
        let id = ids[any_below(ids.len() as u64) as usize];
        move_late(&case, &archive, id).await.unwrap();
    }
}

async fn move_late(case: &Case, archive: &Archive, id: PostId) -> Result<(), Error> {
    let Some(mark) = case.store.mark_for_eviction(&[id]).await?[0] else { return Ok(()) };
    let Some(post) = case.store.post(id, None).await? else { return Ok(()) };
    dawdle(case).await;
    let snapshot = case.store.read_snapshot(post, mark).await?;
    dawdle(case).await;
    if !archive.write_snapshots(&[snapshot]).await?.contains(&id) || any_below(4) == 0 {
        case.watch.count().late += 1;
        return Ok(());
    }
    dawdle(case).await;
    let evicted = case.store.evict(&[(id, mark)]).await?;
    case.watch.count().late += u64::from(evicted == [false]);
    Ok(())
}

// Brings single posts back step by step, and is late: others may believe that it died.
async fn bring_back_late_for_ever(case: Case, archive: Archive) {
    loop {
        sleep(PAUSE).await;
        let ids = case.certain_posts(&case.users).there;
        let ids: Vec<_> = ids.into_iter().collect();
        let exist = case.store.exist(&ids).await.unwrap();
        // Or one that has just come back: that it was away may be known from long ago.
        let is_away = |exists: bool| !exists || any_below(4) == 0;
        let away = ids.into_iter().zip(exist).filter(|(_, exists)| is_away(*exists));
        let away: Vec<_> = away.map(|(id, _)| id).collect();
        if !away.is_empty() {
            let id = away[any_below(away.len() as u64) as usize];
            bring_back_late(&case, &archive, id).await.unwrap();
        }
    }
}

async fn bring_back_late(case: &Case, archive: &Archive, id: PostId) -> Result<(), Error> {
    let holder = Uuid::new_v4().to_string();
    if !case.store.begin_restore(id, &holder).await? {
        return Ok(());
    }
    let Some(snapshot) = archive.read_snapshot(id).await? else { return Ok(()) };
    dawdle(case).await;
    let is_lost = any_below(2) == 0;
    if is_lost {
        case.lose_lease(id).await;
        dawdle(case).await;
    }
    let is_gone = case.model().posts[&id].ended;
    let now = Stamp::first_at(SystemTime::now(), id.partition()).get();
    let restored = case.store.restore(&snapshot, &holder, now, "").await?;
    assert!(!is_lost || restored == RestoreOutcome::Retry, "{id}: {restored:?} without the lease");
    assert!(!is_gone || restored != RestoreOutcome::Restored, "{id} comes back, and was deleted");
    case.watch.count().late += u64::from(restored != RestoreOutcome::Restored);
    Ok(())
}

impl Case {
    // What its time limit does to a lease, at once.
    async fn lose_lease(&self, id: PostId) {
        let key = format!("post:{{{}}}:restoring:{id}", id.partition());
        for admin in &self.admins {
            // All but one node of a cluster refuse it.
            let _: Result<u64, _> =
                redis::cmd("DEL").arg(&key).query_async(&mut admin.clone()).await;
        }
    }

    // Likewise to those of all who were killed.
    async fn lose_leases(&self) {
        let ids: Vec<_> = self.model().posts.keys().copied().collect();
        for id in ids {
            self.lose_lease(id).await;
        }
    }
}

/// Ends what those left who were killed.
pub(crate) async fn let_time_pass(case: &Case) {
    if case.archived.is_some() {
        case.lose_leases().await;
    }
}

/// Moves all that may go.
pub(crate) async fn settle(case: &Case) {
    let Some(archived) = &case.archived else { return };
    let archive = &archived.callers;
    let mut archiver = Archiver::new(case.store.clone(), archive.clone());
    while archiver.drain_page().await.unwrap() {}
    let evictor = Evictor::new(case.store.clone(), archive.clone(), &archived.config);
    for partition in partitions(case) {
        evictor.partition(partition).await.unwrap();
    }
    // What was not noted, since it was made before there was an archive.
    while archiver.drain_page().await.unwrap() {}
    for partition in partitions(case) {
        evictor.partition(partition).await.unwrap();
    }
}

/// Deletes a post that left Redis, if there is one.
pub(crate) async fn delete_there(case: &Case) {
    for id in case.certain_posts(&case.users).there {
        let is_here = case.store.exist(&[id]).await.unwrap() == [true];
        case.watch.see(id, is_here);
        if !is_here {
            let author = case.model().posts[&id].it.author;
            patiently(|| case.posts.delete(author, id)).await.unwrap();
            let mut model = case.model();
            let made = model.posts.get_mut(&id).unwrap();
            (made.ends, made.ended) = (true, true);
            case.watch.count().deleted_there += 1;
            return;
        }
    }
}

/// Removes the rows of what ended.
pub(crate) async fn purge(case: &Case) {
    let Some(archived) = &case.archived else { return };
    let gone = case.gone();
    if case.is_archived {
        assert_eq!(case.tombstones().await, gone);
    }
    while archived.callers.purge(Stamp::END - 1).await.unwrap() > 0 {}
    assert_eq!(case.tombstones().await, BTreeSet::new());
}

/// Brings back every post.
pub(crate) async fn bring_all_back(case: &Case) {
    let posts = case.model().posts.clone();
    for (&id, made) in &posts {
        let is_back = patiently(|| case.tiered.restore(id)).await.unwrap();
        assert_eq!(is_back, !made.ended, "{id}");
        if is_back {
            case.watch.see(id, true);
        }
    }
}
